"""How things stand: what waits for workers and for people, what runs, and who works. Changes nothing.

Read from PostgreSQL, so it is true without Redis, without workers, and for work that Redis has forgotten. It follows the scope that is
open: within `tenant_scope` one tenant's work, within `system_scope` everybody's; the workers are everybody's in either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from django.conf import settings

from activities.admission import keys, rebuilding
from activities.admission.exchange import band_of
from activities.selectors import BAND_NAMES, PATIENCE_SECONDS
from agents.models import Agent
from tenants import redis as connections
from tenants.sql import Statement

KINDS = ("approval", "review", "resolution", "escalation", "task")

_FOLDER = Path(__file__).parent / "sql" / "standing"
_QUEUES, _RUNS, _WORKERS, _TOTALS, _PEOPLE, _REPEATED, _AWAY = (
    Statement.load(_FOLDER, name)
    for name in ("queues", "runs", "workers", "totals", "people", "repeated", "turned_away")
)


@dataclass(slots=True)
class RoleStanding:
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
class PeopleStanding:
    """What people are asked for, of one kind."""

    kind: str
    waiting: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Everything at once. `roles` holds every role of the registry, in order, and any other that has work."""

    roles: list[RoleStanding]
    people: list[PeopleStanding]
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


def standing(*, refusals: bool = True) -> Standing:
    """How things stand now, in a handful of indexed queries. Without `refusals` nobody counts what was repeated or turned away."""
    silence = {"silence": settings.ORCHESTRATOR_LOST_AFTER_SECONDS}
    totals = _TOTALS.run(silence)[0]
    repeated = {row.agent_role: row.count for row in (_REPEATED.run({}) if refusals else ())}
    away = {(row.agent_role, row.reason): row.count for row in (_AWAY.run({}) if refusals else ())}
    return Standing(
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
    return {role: int(held or 0) for role, held in zip(roles, used, strict=True)}


def _roles(silence: Mapping[str, Any]) -> list[RoleStanding]:
    found = {
        role: RoleStanding(role, paused=paused or not enabled)
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


def _entry(found: dict[str, RoleStanding], role: str) -> RoleStanding:
    return found.setdefault(role, RoleStanding(role))


def _people() -> list[PeopleStanding]:
    rows = {row.kind: row for row in _PEOPLE.run({})}
    return [
        PeopleStanding(kind, rows[kind].waiting, rows[kind].oldest_seconds) for kind in KINDS if kind in rows
    ]
