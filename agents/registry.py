"""The registry of agents: removal of agents, references to them, and which columns a change of an agent writes.

`agents` must not import pipelines, so apps with references register a source of them (`provide_references`). The sources are read for all
tenants when an agent is about to be switched off or deleted, and by `manage.py agents check`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from agents.exceptions import AgentInUse, NotFound
from agents.models import Agent, Health
from tenants.context import SYSTEM
from tenants.wording import name_some

#: The columns that `agents.health` writes, with their values before the first check. Other changes must not overwrite them with older
#: values. They are reset after a change of address, because the old health says nothing about the new address.
UNCHECKED: Mapping[str, Any] = {
    "health": Health.UNKNOWN, "health_detail": "", "health_failures": 0, "health_checked_at": None, "health_due_at": None,
}  # fmt: skip


def columns_to_save(*, address_changed: bool) -> list[str]:
    """Return the columns that a change of the agent writes. They include those of health only if its address has changed."""
    names = [field.name for field in Agent._meta.concrete_fields if not field.primary_key]
    return [name for name in names if name != "created_at" and (address_changed or name not in UNCHECKED)]


def reset_health(agent: Agent) -> None:
    """Reset the health after a change of address, without saving the row. The agent is then checked soon."""
    for name, value in UNCHECKED.items():
        setattr(agent, name, value)


# Removal deletes an agent with its deployments and tenants' settings for it, but never one that something refers to.
#
# Its work stays: activities and runs store their role as text.


def remove(role: str, *, revision: int) -> None:
    """Delete the agent at this revision. Raises `AgentInUse`, or `NotFound` when it was changed or deleted meanwhile.

    Uses the database role that sees all tenants, because settings of every tenant are deleted as well.
    """
    if references := references_to(role):
        raise AgentInUse(
            f"The agent {role} cannot be deleted: it is needed by {references_in_words(references)}. "
            "Change these first, or switch the agent off instead."
        )
    deleted, _ = Agent.objects.using(SYSTEM).filter(role=role, revision=revision).delete()
    if not deleted:
        raise NotFound("agent", role)


logger = logging.getLogger(__name__)

NAMED = 20  # references in a message; more do not help anybody


@dataclass(frozen=True, slots=True)
class Reference:
    """Something of a tenant that needs an agent."""

    what: str  # "schedule Weekly report", "2 open activities"
    tenant_id: UUID
    tenant: str  # its slug
    role: str
    model: str = ""  # "app.model" and `key` of its row, for links
    key: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.tenant})"


@dataclass(frozen=True, slots=True)
class BrokenReference:
    """A reference to something that is missing or switched off."""

    reference: Reference
    error: str

    def __str__(self) -> str:
        return f"{self.reference}: {self.error}"


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """A source of one kind of references: the current ones to a role, and the broken ones of any role."""

    references_to: Callable[[str], Sequence[Reference]]
    broken: Callable[[], Sequence[BrokenReference]]


_sources: dict[str, ReferenceSource] = {}


def provide_references(name: str, source: ReferenceSource) -> None:
    """Register this source of references. A source with the same name is replaced."""
    _sources[name] = source


def references_to(role: str) -> list[Reference]:
    """Return the references of everything enabled that needs this agent."""
    return [reference for source in _sources.values() for reference in source.references_to(role)]


def list_broken_references() -> list[BrokenReference]:
    """Return the references of everything enabled to agents or pipelines that are missing or switched off."""
    return [reference for source in _sources.values() for reference in source.broken()]


def warn_of_broken_references() -> None:
    """Log the broken references when a process starts. A failure of the database does not stop the process."""
    try:
        broken = list_broken_references()
    except DatabaseError as error:
        logger.warning(
            "References could not be checked",
            extra={"action": "references_not_looked_at", "reason": type(error).__name__},
        )
        return
    for each in broken:
        logger.warning(
            "Broken reference",
            extra={"action": "reference_broken", "reference": str(each.reference), "fault": each.error},
        )


def references_in_words(references: Sequence[Reference]) -> str:
    return name_some(references, NAMED)
