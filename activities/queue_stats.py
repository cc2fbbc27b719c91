"""How things stand: what waits for workers and for people, what runs, and who works. Changes nothing.

Read from PostgreSQL, so it is true without Redis, without workers, and for work that Redis has forgotten. It follows the scope that is
open: within `tenant_scope` one tenant's work, within `system_scope` everybody's; the workers are everybody's in either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
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

from activities import leases
from activities.admission import keys, rebuilding, scripts
from activities.admission.exchange import LEVEL_MS, band_of
from activities.models import Activity, Wake, WorkerProcess
from activities.models.activity import in_status
from activities.selectors import BAND_NAMES, PATIENCE_SECONDS
from activities.states import BANDS, Status, WakeState
from agents.models import Agent
from tenants import clock
from tenants import redis as connections
from tenants.context import system_scope
from tenants.sql import Statement

KINDS = ("approval", "review", "resolution", "escalation", "task")

_FOLDER = Path(__file__).parent / "sql" / "standing"
_QUEUES, _RUNS, _WORKERS, _TOTALS, _PEOPLE, _REPEATED, _AWAY = (
    Statement.load(_FOLDER, name)
    for name in ("queues", "runs", "workers", "totals", "people", "repeated", "turned_away")
)


@dataclass(slots=True)
class RoleStats:
    """One role: what waits in each band, what runs, who serves it."""

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
    """What people are asked for, of one kind."""

    kind: str
    waiting: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Everything at once. `roles` holds every role of the registry, in order, and any other that has work."""

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
    repeated: dict[str, int]  # submissions that created nothing, by role
    turned_away: dict[tuple[str, str], int]  # by role and reason


def stats_of_queues(*, refusals: bool = True) -> QueueStats:
    """How things stand now, in a handful of indexed queries. Without `refusals` nobody counts what was repeated or turned away."""
    silence = {"silence": settings.ORCHESTRATOR_LOST_AFTER_SECONDS}
    totals = _TOTALS.run(silence)[0]
    repeated = {row.agent_role: row.count for row in (_REPEATED.run({}) if refusals else ())}
    away = {(row.agent_role, row.reason): row.count for row in (_AWAY.run({}) if refusals else ())}
    return QueueStats(
        roles=_roles(silence), people=_people(), repeated=repeated, turned_away=away, **totals._asdict()
    )


def admission_is_open() -> bool:
    """Whether work is being granted: not while Redis was wiped and is not rebuilt. Raises `redis.RedisError`."""
    return rebuilding.is_open()


def slots_of_roles(roles: Sequence[str]) -> dict[str, int]:
    """How many slots each of these roles holds, granted ones among them; empty while Redis does not answer or is not rebuilt."""
    client = connections.client(timeout_seconds=PATIENCE_SECONDS)
    try:
        name: Any = client.get(keys.pointer())
        if name is None or not roles:
            return {}
        used = client.hmget(f"{keys.generation(name.decode())}used", [f"role:{role}" for role in roles])
    except redis.RedisError:
        return {}
    return {role: int(count or 0) for role, count in zip(roles, used, strict=True)}


def _roles(silence: Mapping[str, Any]) -> list[RoleStats]:
    found = {
        role: RoleStats(role, paused=paused or not enabled)
        for role, paused, enabled in Agent.objects.order_by("role").values_list("role", "paused", "enabled")
    }
    for row in _QUEUES.run({}):
        entry, band = _entry(found, row.agent_role), BAND_NAMES[band_of(row.priority) - 1]
        entry.waiting[band] += row.waiting
        entry.delayed[band] += row.delayed
        entry.oldest_seconds = max(entry.oldest_seconds, row.oldest_seconds or 0.0)
    for row in _RUNS.run({}):
        entry = _entry(found, row.agent_role)
        entry.running, entry.accepted = row.running, row.accepted
    for row in _WORKERS.run(silence):
        entry = _entry(found, row.role)
        entry.workers, entry.seats = row.workers, row.seats
    return list(found.values())


def _entry(found: dict[str, RoleStats], role: str) -> RoleStats:
    return found.setdefault(role, RoleStats(role))


def _people() -> list[PeopleStats]:
    rows = {row.kind: row for row in _PEOPLE.run({})}
    return [
        PeopleStats(kind, rows[kind].waiting, rows[kind].oldest_seconds) for kind in KINDS if kind in rows
    ]


# Idleness: workers that beat, have a free seat, and still do not take up what was granted to them.
#
# Their lease keeps their runs, so recovery sees nothing wrong; only the grants that grow old give them away. Redis says how old these
# are,
# by its own clock, and PostgreSQL who works.


@dataclass(frozen=True, slots=True)
class IdleRole:
    """A role whose workers take nothing: how old its oldest grant is, and whose work it is."""

    role: str
    oldest_seconds: float
    grants: int
    tenants: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class GrantedWork:
    """What was granted to workers of one role and not taken up yet."""

    count: int
    oldest_seconds: float


def read_granted() -> dict[str, GrantedWork]:
    """By role. Raises `redis.RedisError`, and `scripts.Closed` while nothing is granted at all."""
    ages: dict[str, list[float]] = {}
    for grant in scripts.unstarted():
        ages.setdefault(grant.role, []).append(grant.age_seconds)
    return {role: GrantedWork(len(found), max(found)) for role, found in ages.items()}


def list_idle_roles() -> list[IdleRole]:
    """By name. Raises `redis.RedisError`, and `scripts.Closed` while nothing is granted at all."""
    late: dict[str, list[scripts.Unstarted]] = {}
    for grant in scripts.unstarted():
        if grant.age_seconds > settings.ORCHESTRATOR_IDLE_SECONDS:
            late.setdefault(grant.role, []).append(grant)
    if not late:
        return []
    able = _able_to_take()
    return [
        IdleRole(
            role=role,
            oldest_seconds=max(grant.age_seconds for grant in grants),
            grants=len(grants),
            tenants=tuple(dict.fromkeys(grant.tenant_id for grant in grants)),
        )
        for role, grants in sorted(late.items())
        if role in able
    ]


def _able_to_take() -> set[str]:
    """The roles of which some process that beats could take more at this moment."""
    silence = timedelta(seconds=settings.ORCHESTRATOR_LOST_AFTER_SECONDS)
    with system_scope():
        workers = WorkerProcess.objects.filter(
            ended_at=None, beat_at__gt=Now() - silence, active__lt=F("concurrency")
        )
        rows = list(workers.values_list("roles", "closed"))
    return {role for roles, closed in rows for role in roles if not closed.keys() & {leases.ALL, role}}


# The head of a tenant's line for a role: what starts next, in the order in which admission takes the tenant's own work.


SHOWN = 20


@dataclass(frozen=True, slots=True)
class Waiter:
    """Work that waits. `place` counts from 1; of two groups, one that is at its bound lets others pass.

    `waited_seconds` began when it was submitted.
    """

    place: int
    id: UUID
    name: str
    band: str
    priority: int
    waited_seconds: float
    group: str
    attempts: int


def head_of_line(tenant_id: UUID, role: str) -> Sequence[Waiter]:
    """The first of those that could start now. In the caller's `tenant_scope`."""
    due = Q(due_at=None) | Q(due_at__lte=Now())
    reasons = Wake.objects.for_tenant(tenant_id).filter(
        due, activity_id=OuterRef("pk"), state=WakeState.PENDING
    )
    ready = Activity.objects.for_tenant(tenant_id).filter(
        Exists(reasons), in_status(Status.CREATED), assignee_type="agent", agent_role=role
    )
    rows = ready.annotate(band=_BAND, turn=_TURN).order_by("band", "turn", "pk")
    shown = ("pk", "name", "priority", "created_at", "group_key", "attempts")
    now = clock.now()
    return [
        Waiter(
            place, row.pk, row.name, BAND_NAMES[band_of(row.priority) - 1], row.priority,
            (now - row.created_at).total_seconds(), row.group_key or "", row.attempts,
        )
        for place, row in enumerate(rows.only(*shown)[:SHOWN], start=1)
    ]  # fmt: skip


_LEVELS = sorted(BANDS.values())
#: Each band begins at its level and ends where the next one begins.
_BAND = Case(
    *(When(priority__lt=level, then=Value(place)) for place, level in enumerate(_LEVELS[1:])),
    default=Value(len(_LEVELS)),
    output_field=IntegerField(),
)
#: Within a band, so much waiting is worth one level of priority.
_TURN = ExpressionWrapper(
    F("created_at")
    + ExpressionWrapper(
        F("priority") * Value(timedelta(milliseconds=LEVEL_MS)), output_field=DurationField()
    ),
    output_field=DateTimeField(),
)
