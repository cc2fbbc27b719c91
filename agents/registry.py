"""What of an agent's row people write, and what health writes: neither may overwrite the other's columns."""

from __future__ import annotations

from agents.models import Agent, Health

#: Written by `agents.health`; a form or a request that was read before must not bring back old findings.
OF_HEALTH = ("health", "health_detail", "health_checked_at", "health_failures", "health_due_at")


def columns_to_save(*, moved: bool) -> list[str]:
    """The columns that a change of the agent writes; with those of health only when it has moved to another address."""
    names = [field.name for field in Agent._meta.concrete_fields if not field.primary_key]
    return [name for name in names if name != "created_at" and (moved or name not in OF_HEALTH)]


def forget_health(agent: Agent) -> None:
    """The agent has another address: what was known says nothing about it, and it is looked at soon."""
    agent.health, agent.health_detail, agent.health_failures = Health.UNKNOWN, "", 0
    agent.health_checked_at = agent.health_due_at = None
