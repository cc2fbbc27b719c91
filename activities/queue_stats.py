"""Statistics of the queues: what waits for workers and for people, what runs, and which workers are alive. Read only.

Read from PostgreSQL, so they hold without Redis, without workers, and for work that Redis has lost. In a `tenant_scope` they cover one
tenant's work, in `system_scope` that of all tenants; the workers are always those of all tenants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import (
    Case,
    DateTimeField,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    IntegerField,
    OuterRef,
    Q,
    Value,
    When,
)
from django.db.models.functions import Now

from activities.admission import rebuilding, scripts
from activities.admission.exchange import LEVEL_MS, band_of
from activities.models import Activity, Wake, WorkerProcess
from activities.models.activity import in_status
from activities.selectors import BAND_NAMES, count_slots
from activities.states import BANDS, Status, WakeState
from agents.models import Agent
from tenants import clock
from tenants.context import system_scope
from tenants.sql import Statement

KINDS = ("approval", "review", "resolution", "escalation", "task")

_FOLDER = Path(__file__).parent / "sql" / "standing"
_QUEUES, _RUNS, _WORKERS, _TOTALS, _PEOPLE, _REPEATED, _TURNED_AWAY = (
    Statement.load(_FOLDER, name)
    for name in ("queues", "runs", "workers", "totals", "people", "repeated", "turned_away")
)


@dataclass(slots=True)
class RoleStats:
    """Statistics of one role: what waits in each band, what runs, and its workers."""

    role: str
    paused: bool = False
    waiting: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BAND_NAMES, 0))
    delayed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BAND_NAMES, 0))
    oldest_seconds: float = 0.0
    running: int = 0
    accepted: int = 0
    workers: int = 0
    seats: int = 0

    @property
    def depth(self) -> int:
        return sum(self.waiting.values())

    @property
    def later(self) -> int:
        return sum(self.delayed.values())


@dataclass(frozen=True, slots=True)
class PeopleStats:
    """What waits for people, of one kind."""

    kind: str
    waiting: int
    items: int  # of the inbox, where escalations of similar failures are one item
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class QueueStats:
    """All statistics. `roles` holds every role of the registry, in order, then other roles that have work."""

    roles: list[RoleStats]
    people: list[PeopleStats]
    workers: int
    silent: int
    lost: int
    spooled: int
    spooled_seconds: float
    failed: int
    needs_review: int
    blocked: int
    items_waiting: int  # of mailboxes with external consumers
    items_delayed: int
    items_claimed: int
    items_oldest_seconds: float
    repeated: dict[str, int]  # submissions that created nothing, by role
    turned_away: dict[tuple[str, str], int]  # by role and reason


def stats_of_queues(*, refusals: bool = True) -> QueueStats:
    """Return the current statistics, with a few indexed queries. Without `refusals`, `repeated` and `turned_away` are empty."""
    silence = {"silence": settings.ORCHESTRATOR_LOST_AFTER_SECONDS}
    totals = _TOTALS.run(silence)[0]
    repeated = {row.agent_role: row.count for row in (_REPEATED.run({}) if refusals else ())}
    turned_away = {
        (row.agent_role, row.reason): row.count for row in (_TURNED_AWAY.run({}) if refusals else ())
    }
    return QueueStats(
        roles=_roles(silence),
        people=_people(),
        repeated=repeated,
        turned_away=turned_away,
        **totals._asdict(),
    )


def stats_of_all_tenants() -> QueueStats:
    """Return the figures of all tenants together."""
    with system_scope():
        return stats_of_queues()


def admission_is_open() -> bool:
    """Whether admission grants work: not between a wipe of Redis and its rebuilding. Raises `redis.RedisError`."""
    return rebuilding.is_open()


def slots_of_roles(roles: Sequence[str]) -> dict[str, int]:
    """Return the number of slots that each role holds, including granted ones; empty if Redis is down or not rebuilt yet."""
    return dict(zip(roles, count_slots([f"role:{role}" for role in roles]), strict=False))


def _roles(silence: Mapping[str, Any]) -> list[RoleStats]:
    stats = {
        role: RoleStats(role, paused=paused or not enabled)
        for role, paused, enabled in Agent.objects.order_by("role").values_list("role", "paused", "enabled")
    }
    for row in _QUEUES.run({}):
        entry = stats.setdefault(row.agent_role, RoleStats(row.agent_role))
        band = BAND_NAMES[band_of(row.priority) - 1]
        entry.waiting[band] += row.waiting
        entry.delayed[band] += row.delayed
        entry.oldest_seconds = max(entry.oldest_seconds, row.oldest_seconds or 0.0)
    for row in _RUNS.run({}):
        entry = stats.setdefault(row.agent_role, RoleStats(row.agent_role))
        entry.running, entry.accepted = row.running, row.accepted
    for row in _WORKERS.run(silence):
        entry = stats.setdefault(row.role, RoleStats(row.role))
        entry.workers, entry.seats = row.workers, row.seats
    return list(stats.values())


def _people() -> list[PeopleStats]:
    rows = {row.kind: row for row in _PEOPLE.run({})}
    return [
        PeopleStats(kind, rows[kind].waiting, rows[kind].items, rows[kind].oldest_seconds)
        for kind in KINDS
        if kind in rows
    ]


# Idle workers: they beat and have a free seat, but do not take the work that was granted to them.
#
# Recovery does not detect them, because their lease is valid; only the age of their grants reveals them. Redis reports that age by its own
# clock, and PostgreSQL the live workers.


@dataclass(frozen=True, slots=True)
class IdleRole:
    """A role whose workers take no work, with the age of its oldest grant and the tenants of the granted work."""

    role: str
    oldest_seconds: float
    grants: int
    tenants: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class GrantedWork:
    """Work that was granted to workers of one role and has not started yet."""

    count: int
    oldest_seconds: float


def read_granted() -> dict[str, GrantedWork]:
    """Return granted work by role. Raises `redis.RedisError`, and `scripts.Closed` while admission is closed."""
    ages_of: dict[str, list[float]] = {}
    for grant in scripts.unstarted():
        ages_of.setdefault(grant.role, []).append(grant.age_seconds)
    return {role: GrantedWork(len(ages), max(ages)) for role, ages in ages_of.items()}


def list_idle_roles() -> list[IdleRole]:
    """Return idle roles by name. Raises `redis.RedisError`, and `scripts.Closed` while admission is closed."""
    late: dict[str, list[scripts.Unstarted]] = {}
    for grant in scripts.unstarted():
        if grant.age_seconds > settings.ORCHESTRATOR_IDLE_SECONDS:
            late.setdefault(grant.role, []).append(grant)
    if not late:
        return []
    available = _roles_with_free_seat()
    return [
        IdleRole(
            role=role,
            oldest_seconds=max(grant.age_seconds for grant in grants),
            grants=len(grants),
            tenants=tuple(dict.fromkeys(grant.tenant_id for grant in grants)),
        )
        for role, grants in sorted(late.items())
        if role in available
    ]


def _roles_with_free_seat() -> set[str]:
    """Return the roles of which some live process could take more work now."""
    silence = timedelta(seconds=settings.ORCHESTRATOR_LOST_AFTER_SECONDS)
    with system_scope():
        workers = WorkerProcess.objects.filter(
            ended_at=None, beat_at__gt=Now() - silence, active__lt=F("concurrency")
        )
        rows = list(workers.values_list("roles", "closed"))
    return {role for roles, closed in rows for role in roles if not closed}


# The head of a tenant's queue for a role, in the order in which admission takes the tenant's own work.

MOST_WAITERS = 20


@dataclass(frozen=True, slots=True)
class Waiter:
    """A waiting activity. `place` counts from 1; work of a group at its limit may be overtaken. `waited_seconds` counts from submission."""

    place: int
    id: UUID
    name: str
    band: str
    priority: int
    waited_seconds: float
    group: str
    attempts: int


def head_of_line(tenant_id: UUID, role: str) -> Sequence[Waiter]:
    """Return the first activities that could start now. In the caller's `tenant_scope`."""
    due = Q(due_at=None) | Q(due_at__lte=Now())
    reasons = Wake.objects.for_tenant(tenant_id).filter(
        due, activity_id=OuterRef("pk"), state=WakeState.PENDING
    )
    ready = Activity.objects.for_tenant(tenant_id).filter(
        Exists(reasons), in_status(Status.CREATED), assignee_type="agent", agent_role=role
    )
    rows = ready.annotate(band=_BAND, turn=_TURN).order_by("band", "turn", "pk")
    columns = ("pk", "name", "priority", "created_at", "group_key", "attempts")
    now = clock.now()
    return [
        Waiter(
            place, row.pk, row.name, BAND_NAMES[band_of(row.priority) - 1], row.priority,
            (now - row.created_at).total_seconds(), row.group_key or "", row.attempts,
        )
        for place, row in enumerate(rows.only(*columns)[:MOST_WAITERS], start=1)
    ]  # fmt: skip


_LEVELS = sorted(BANDS.values())
#: Each band begins at its level and ends where the next one begins.
_BAND = Case(
    *(When(priority__lt=level, then=Value(place)) for place, level in enumerate(_LEVELS[1:])),
    default=Value(len(_LEVELS)),
    output_field=IntegerField(),
)
#: Within a band, `LEVEL_MS` of waiting are worth one level of priority.
_TURN = ExpressionWrapper(
    F("created_at")
    + ExpressionWrapper(
        F("priority") * Value(timedelta(milliseconds=LEVEL_MS)), output_field=DurationField()
    ),
    output_field=DateTimeField(),
)
