"""The batches of the provider that a role leads to, for the engine, which looks after them.

A batch outlives the settings under which it was sent: keys are changed, roles are done otherwise. It is reached as long as its role leads
to the same place by a batch adapter, under whatever credential holds now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import response_parser
from agents.adapters import message_batches
from agents.adapters.message_batches import MOST_REQUESTS, Answer, MessageBatches, usage_of
from agents.contracts import BATCHES_OF, AdapterSettings, Completed
from agents.exceptions import ConfigurationError
from agents.governor.providers import provider_of

__all__ = ("MOST_REQUESTS", "Answer", "MessageBatches", "client_for", "read_completed", "usage_of")


def client_for(chosen: AdapterSettings, key: str) -> MessageBatches:
    """The client for the batches of the provider with this key, which is stored with each item. Raises `AgentError` when the settings
    lead to another provider by now.
    """
    provider = provider_of(chosen)
    if chosen.adapter not in BATCHES_OF or _place(provider.key) != _place(key):
        raise ConfigurationError(f"The role does not lead to batches of {_place(key)} any more.")
    return MessageBatches(provider)


def read_completed(message: Mapping[str, Any], options: Mapping[str, Any]) -> Completed | None:
    """The validated result of a message; None when the conversation has to go on. Raises `AgentError`."""
    completed = message_batches.read_completed(message, options)
    if completed is not None:
        response_parser.require_well_formed(completed)
    return completed


def _place(key: str) -> str:
    """Adapter, host and port, without the credential."""
    return key.rpartition("|")[0]
