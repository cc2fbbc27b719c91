"""The overview: one sentence on how things are, with its reasons, and the figures behind it.

For a tenant's member it shows the tenant's work; for the platform's superusers everybody's, or one tenant's that they name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from uuid import UUID

from django.db import DatabaseError

from activities.queue_stats import PeopleStats, QueueStats, RoleStats, stats_of_queues
from console import dependencies
from console.dependencies import Check
from tenants.context import system_scope, tenant_scope

from .labels import in_words

PATIENCE_SECONDS = 1.0  # a person waits for this page
SPOOL_SECONDS = 60.0  # outputs are copied within a second or two; older ones mean that MongoDB is away
NO_WORKER = "no worker"
NAMED = 5  # roles in one reason
WORDS = {
    "approval": "approvals",
    "review": "reviews",
    "resolution": "blockers to remove",
    "escalation": "escalations",
    "task": "tasks",
}


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One role in the table."""

    standing: RoleStats
    oldest: str
    state: str
    bands: list[tuple[str, int]]

    @property
    def idle(self) -> bool:
        """Nothing waits or runs there, and nobody has stopped it."""
        queue = self.standing
        return not (queue.depth or queue.later or queue.running or queue.paused)


@dataclass(frozen=True, slots=True)
class PeopleRow:
    """One kind of thing that people are asked for."""

    kind: str
    words: str
    waiting: int
    oldest: str
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page shows. `figures` is None when PostgreSQL does not answer."""

    status: str
    sentence: str
    reasons: list[str]
    checks: list[Check]
    figures: QueueStats | None
    queues: list[QueueRow]
    people: list[PeopleRow]

    @property
    def busy(self) -> list[QueueRow]:
        """What needs somebody first: queues that nobody serves, then the longest."""
        return sorted(
            (row for row in self.queues if not row.idle),
            key=lambda row: (row.state != NO_WORKER, -row.standing.depth),
        )

    @property
    def resting(self) -> list[QueueRow]:
        return [row for row in self.queues if row.idle]

    @property
    def waiting(self) -> int:
        return sum(row.standing.depth for row in self.queues)

    @property
    def longest_wait(self) -> str:
        """Of what waits for workers."""
        waiting = [row.standing.oldest_seconds for row in self.queues if row.standing.depth]
        return in_words(max(waiting)) if waiting else ""

    @property
    def later(self) -> int:
        return sum(row.standing.later for row in self.queues)

    @property
    def seats(self) -> int:
        """How many pieces of work the best served role could run at once."""
        return max((row.standing.seats for row in self.queues), default=0)

    @property
    def running(self) -> int:
        return sum(row.standing.running for row in self.queues)

    @property
    def asked(self) -> int:
        return sum(row.waiting for row in self.people)

    @property
    def longest_asked(self) -> str:
        """Of what waits for people."""
        waiting = [row.oldest_seconds for row in self.people if row.waiting]
        return in_words(max(waiting)) if waiting else ""


def overview(tenant_id: UUID | None) -> Overview:
    """How things are for one tenant, or with None for all. Never raises because a server is away."""
    return overview_within(tenant_scope(tenant_id) if tenant_id else system_scope())


def overview_within(scope: AbstractContextManager[None]) -> Overview:
    """How things are for what a scope sees, which is entered once. Never raises because a server is away."""
    checks = dependencies.check_all(patience_seconds=PATIENCE_SECONDS)
    figures = None if dependencies.status_of(checks) == "unavailable" else _figures(scope)
    reasons = [check.sentence for check in checks if not check.well]
    reasons += _reasons(figures) if figures else []
    status = dependencies.status_of(checks)
    if status == "ready" and reasons:
        status = "degraded"
    return Overview(
        status=status,
        sentence=_sentence(status, figures),
        reasons=reasons,
        checks=checks,
        figures=figures,
        queues=[_queue_row(role) for role in figures.roles] if figures else [],
        people=[_people_row(asked) for asked in figures.people] if figures else [],
    )


def _figures(scope: AbstractContextManager[None]) -> QueueStats | None:
    try:
        with scope:
            return stats_of_queues(refusals=False)
    except DatabaseError:
        return None  # It answered a moment ago. The page says what is known.


def _reasons(figures: QueueStats) -> Iterator[str]:
    unserved = [role for role in figures.roles if role.depth and not role.workers and not role.paused]
    if unserved:
        yield _unserved(sorted(unserved, key=lambda role: -role.depth))
    if figures.silent:
        yield f"{_count(figures.silent, 'worker process does', 'worker processes do')} not beat any more."
    if figures.spooled_seconds > SPOOL_SECONDS:
        yield f"{_count(figures.spooled, 'output waits', 'outputs wait')} for MongoDB, the first for {in_words(figures.spooled_seconds)}."


def _unserved(roles: list[RoleStats]) -> str:
    named = ", ".join(f"{role.role} ({role.depth} waiting)" for role in roles[:NAMED])
    more = f" and {_count(len(roles) - NAMED, 'other role', 'other roles')}" if len(roles) > NAMED else ""
    return f"No worker serves {named}{more}."


def _sentence(status: str, figures: QueueStats | None) -> str:
    if status == "unavailable" or figures is None:
        return "Unavailable."
    if status == "degraded":
        return "Degraded."
    return "All is well." if figures.workers else "All is well, but no worker runs."


def _queue_row(role: RoleStats) -> QueueRow:
    state = (
        "paused"
        if role.paused
        else NO_WORKER
        if role.depth and not role.workers
        else "served"
        if role.workers
        else ""
    )
    bands = [(band, count) for band, count in role.waiting.items() if count]
    return QueueRow(role, in_words(role.oldest_seconds) if role.depth else "", state, bands)


def _people_row(asked: PeopleStats) -> PeopleRow:
    return PeopleRow(
        asked.kind, WORDS[asked.kind], asked.waiting, in_words(asked.oldest_seconds), asked.oldest_seconds
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
