"""Removal: an agent leaves the registry, with its deployments and what tenants have set for it. Never one that something refers to.

What it did stays: activities and runs name their role as text.
"""

from __future__ import annotations

from agents import references
from agents.exceptions import AgentInUse, AgentNotFound
from agents.models import Agent
from tenants.context import SYSTEM


def refuse_if_used(role: str) -> None:
    """Raises `AgentInUse` naming what refers to the agent."""
    if found := references.to(role):
        raise AgentInUse(
            f"The agent {role} cannot be deleted: it is needed by {references.in_words(found)}. "
            "Change these first, or switch the agent off instead."
        )


def remove(role: str, *, revision: int) -> None:
    """Delete the agent as it was seen. Raises `AgentInUse`, or `AgentNotFound` when it was changed or deleted since.

    As the role that sees all tenants, since settings of every tenant go with it.
    """
    refuse_if_used(role)
    deleted, _ = Agent.objects.using(SYSTEM).filter(role=role, revision=revision).delete()
    if not deleted:
        raise AgentNotFound(f"The agent {role!r} has changed meanwhile, or is gone.")
