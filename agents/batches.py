"""Gives the engine access to the batches of a role's provider.

A batch outlives the settings under which it was sent: keys are rotated, and roles get other settings. It can be reached as long as its role
has a batch adapter for the same host and port, with the current credential.
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
    """Return the client for the batches of the provider with this key, which is stored with each item. Raises `AgentError` when the
    settings now name another provider.
    """
    provider = provider_of(chosen)
    if chosen.adapter not in BATCHES_OF or _place(provider.key) != _place(key):
        raise ConfigurationError(f"The role no longer uses batches of {_place(key)}.")
    return MessageBatches(provider)


def read_completed(message: Mapping[str, Any], options: Mapping[str, Any]) -> Completed | None:
    """Return the validated result of a message, or None when the conversation must continue from it. Raises `AgentError`."""
    completed = message_batches.read_completed(message, options)
    if completed is None:
        response_parser.require_storable(message, "message")
    else:
        response_parser.require_well_formed(completed)
    return completed


def _place(key: str) -> str:
    """Return adapter, host and port, without the credential."""
    return key.rpartition("|")[0]
