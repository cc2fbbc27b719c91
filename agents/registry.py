"""The registry of agents: who refers to an agent, how one is removed, and which columns of its row people write, and which health.

Agents know nothing of pipelines, so apps with references say how to find them (`provide`). They are asked for over all tenants when an
agent is about to be switched off or deleted, and by `manage.py agents check`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import DatabaseError

from agents.exceptions import AgentInUse, NotFound
from agents.models import Agent, Health
from tenants.context import SYSTEM

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


# Removal: an agent leaves the registry, with its deployments and what tenants have set for it. Never one that something refers to.
#
# What it did stays: activities and runs name their role as text.


def refuse_if_used(role: str) -> None:
    """Raises `AgentInUse` naming what refers to the agent."""
    if found := references_to(role):
        raise AgentInUse(
            f"The agent {role} cannot be deleted: it is needed by {references_in_words(found)}. "
            "Change these first, or switch the agent off instead."
        )


def remove(role: str, *, revision: int) -> None:
    """Delete the agent as it was seen. Raises `AgentInUse`, or `NotFound` when it was changed or deleted since.

    As the role that sees all tenants, since settings of every tenant go with it.
    """
    refuse_if_used(role)
    deleted, _ = Agent.objects.using(SYSTEM).filter(role=role, revision=revision).delete()
    if not deleted:
        raise NotFound("agent", role)


logger = logging.getLogger(__name__)

NAMED = 20  # in a message; more help nobody


@dataclass(frozen=True, slots=True)
class Reference:
    """Something of a tenant that needs an agent."""

    kind: str  # "schedule", "pipeline", "activity", ...
    name: str
    tenant_id: UUID
    tenant: str  # its slug
    role: str
    model: str = ""  # "app.model" and `key` of its row, for links
    key: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.tenant})"


@dataclass(frozen=True, slots=True)
class BrokenReference:
    """Something that refers to what is missing or switched off."""

    reference: Reference
    error: str

    def __str__(self) -> str:
        return f"{self.reference}: {self.error}"


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """One kind of references. `of` finds those to a role that matter now; `broken` those of any role that lead nowhere."""

    of: Callable[[str], Sequence[Reference]]
    broken: Callable[[], Sequence[BrokenReference]]


_sources: dict[str, ReferenceSource] = {}


def provide_references(name: str, source: ReferenceSource) -> None:
    """Have this source asked from now on. Providing it again replaces it."""
    _sources[name] = source


def references_to(role: str) -> list[Reference]:
    """Everything that is switched on and needs this agent."""
    return [found for source in _sources.values() for found in source.of(role)]


def list_broken_references() -> list[BrokenReference]:
    """Everything that is switched on and refers to an agent or a pipeline that is missing or switched off."""
    return [found for source in _sources.values() for found in source.broken()]


def warn_of_broken_references() -> None:
    """Log what leads nowhere, for the start of a process, which goes on whatever comes of it."""
    try:
        found = list_broken_references()
    except DatabaseError as error:
        logger.warning(
            "References not looked at",
            extra={"action": "references_not_looked_at", "reason": type(error).__name__},
        )
        return
    for each in found:
        logger.warning(
            "Reference leads nowhere",
            extra={"action": "reference_broken", "reference": str(each.reference), "fault": each.error},
        )


def references_in_words(found: Sequence[Reference]) -> str:
    """The references as a message names them."""
    names = ", ".join(map(str, found[:NAMED]))
    return f"{names} and {len(found) - NAMED} more" if len(found) > NAMED else names
