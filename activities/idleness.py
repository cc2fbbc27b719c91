"""Idleness: workers that beat, have a free seat, and still do not take up what was granted to them.

Their lease keeps their runs, so recovery sees nothing wrong; only the grants that grow old give them away. Redis says how old these are,
by its own clock, and PostgreSQL who works.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now

from activities import leases
from activities.admission import scripts
from activities.models import WorkerProcess
from tenants.context import system_scope


@dataclass(frozen=True, slots=True)
class IdleRole:
    """A role whose workers take nothing: how old its oldest grant is, and whose work it is."""

    role: str
    oldest_seconds: float
    grants: int
    tenants: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """What was granted to workers of one role and not taken up yet."""

    count: int
    oldest_seconds: float


def granted() -> dict[str, Granted]:
    """By role. Raises `redis.RedisError`, and `scripts.Closed` while nothing is granted at all."""
    ages: dict[str, list[float]] = {}
    for grant in scripts.unstarted():
        ages.setdefault(grant.role, []).append(grant.age_seconds)
    return {role: Granted(len(found), max(found)) for role, found in ages.items()}


def idle_roles() -> list[IdleRole]:
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
