"""Who refers to an agent of the registry. Agents know nothing of pipelines, so whoever has references says how to find them.

Over all tenants, for the platform's admins. Asked when an agent is about to be switched off or deleted, and by `manage.py agents check`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import DatabaseError

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
class Broken:
    """Something that refers to what is missing or switched off."""

    reference: Reference
    fault: str

    def __str__(self) -> str:
        return f"{self.reference}: {self.fault}"


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of references. `of` finds those to a role that matter now; `broken` those of any role that lead nowhere."""

    of: Callable[[str], Sequence[Reference]]
    broken: Callable[[], Sequence[Broken]]


_sources: dict[str, Source] = {}


def provide(name: str, source: Source) -> None:
    """Have this source asked from now on. Providing it again replaces it."""
    _sources[name] = source


def to(role: str) -> list[Reference]:
    """Everything that is switched on and needs this agent."""
    return [found for source in _sources.values() for found in source.of(role)]


def broken() -> list[Broken]:
    """Everything that is switched on and refers to an agent or a pipeline that is missing or switched off."""
    return [found for source in _sources.values() for found in source.broken()]


def warn_of_broken() -> None:
    """Log what leads nowhere, for the start of a process, which goes on whatever comes of it."""
    try:
        found = broken()
    except DatabaseError as error:
        logger.warning(
            "References not looked at",
            extra={"action": "references_not_looked_at", "reason": type(error).__name__},
        )
        return
    for each in found:
        logger.warning(
            "Reference leads nowhere",
            extra={"action": "reference_broken", "reference": str(each.reference), "fault": each.fault},
        )


def in_words(found: Sequence[Reference]) -> str:
    """The references as a message names them."""
    names = ", ".join(map(str, found[:NAMED]))
    return f"{names} and {len(found) - NAMED} more" if len(found) > NAMED else names
