"""Noticing: the questions whose answers are conditions. They read, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import idleness, invariants, job_records
from activities.models import Activity
from activities.models.alert import AlertKind, Severity
from agents.governor import overview
from tenants import clock
from tenants.context import SYSTEM, system_scope
from tenants.identifiers import first_id_at
from tenants.sql import Statement

_OLD = Statement.load(Path(__file__).resolve().parent.parent / "sql" / "conditions", "old_queues")


@dataclass(frozen=True, slots=True)
class Noticed:
    """One condition, as it is now. `tenants` is asked for once, when it begins; `over` is what people are told when it has ended."""

    subject: str
    title: str
    over: str
    tenants: Callable[[], Sequence[UUID]]
    body: str = ""
    severity: Severity = Severity.WARNING
    facts: Mapping[str, Any] = field(default_factory=dict)


def idle_workers() -> list[Noticed]:
    """Raises `redis.RedisError`, `scripts.Closed`."""
    return [
        Noticed(
            subject=idle.role,
            title=f"Workers of {idle.role} take nothing",
            over=f"Workers of {idle.role} take work again",
            body="Work was granted to them and does not begin, although they say that they live. It waits until one of them takes it.",
            severity=Severity.CRITICAL,
            tenants=lambda found=idle: found.tenants,  # type: ignore[misc]  # bound now, since the loop goes on
            facts={"role": idle.role, "oldest_seconds": round(idle.oldest_seconds)},
        )
        for idle in idleness.idle_roles()
    ]


def old_queues() -> list[Noticed]:
    """Work that could begin and has not for longer than the target, by role. None without a target."""
    target = settings.ORCHESTRATOR_QUEUE_TARGET_SECONDS
    if not target:
        return []
    newest = clock.now() - timedelta(seconds=target)
    rows = _OLD.run({"before": first_id_at(newest), "target": target}, using=SYSTEM)
    by_role: dict[str, list[Any]] = {}
    for row in rows:
        by_role.setdefault(row.agent_role, []).append(row)
    return [
        Noticed(
            subject=role,
            title=f"Work for {role} waits for too long",
            over=f"Work for {role} begins in time again",
            body=f"Some of it has waited for more than {target / 60:g} minutes. Ask why of one activity to see what it waits for.",
            tenants=lambda concerned=found: [row.tenant_id for row in concerned],  # type: ignore[misc]  # as above
            facts={"role": role, "target_seconds": target},
        )
        for role, found in sorted(by_role.items())
    ]


def open_breakers() -> list[Noticed]:
    """Raises `redis.RedisError`, `LimiterUnavailable`."""
    return [
        Noticed(
            subject=provider.key,
            title=f"The model provider {provider.adapter} at {provider.place} fails",
            over=f"The model provider {provider.adapter} at {provider.place} answers again",
            body="It failed several times in a row and is not called for a while. Work that needs it waits and uses up no attempt.",
            tenants=lambda key=provider.key: _tenants_led_to(key),  # type: ignore[misc]  # as above
            facts={"adapter": provider.adapter, "place": provider.place},
        )
        for provider in overview.failing()
    ]


def broken_invariants() -> list[Noticed]:
    """As the last check has found them. Raises `redis.RedisError`."""
    known = invariants.last_known()
    if known is None:
        return []
    return [
        Noticed(
            subject=name,
            title=f"The invariant {name} does not hold",
            over=f"The invariant {name} holds again",
            body=f"{(invariants.SAFETY | invariants.LIVENESS).get(name, name)}: the last check found rows of which that is not so.",
            severity=Severity.CRITICAL,
            tenants=lambda broken=name: invariants.tenants_concerned(broken),  # type: ignore[misc]  # as above
            facts={"invariant": name},
        )
        for name, count in sorted(known[1].items())
        if count
    ]


_FAULTS = {"late": "hangs", "failing": "fails"}


def failing_jobs() -> list[Noticed]:
    """Parts of upkeep that fail again and again, or hang. The part that asks this cannot tell of itself; `/readyz` does."""
    return [
        Noticed(
            subject=job.name,
            title=f"A part of upkeep fails: {job.name}",
            over=f"A part of upkeep works again: {job.name}",
            body=f"The system job {job.name} of {job.owner} {_FAULTS[job.state]}. The other parts go on without it.",
            severity=Severity.CRITICAL,
            tenants=_tenants_at_work,
            facts={"job": job.name, "owner": job.owner, "state": job.state, "error": job.error},
        )
        for job in job_records.read().unwell
    ]


#: Whose answers are which kind of alert.
QUESTIONS: Mapping[AlertKind, Callable[[], list[Noticed]]] = {
    AlertKind.IDLE_WORKER: idle_workers,
    AlertKind.QUEUE_OLD: old_queues,
    AlertKind.BREAKER_OPEN: open_breakers,
    AlertKind.INVARIANT_BROKEN: broken_invariants,
    AlertKind.UPKEEP_FAILING: failing_jobs,
}


def _tenants_at_work() -> list[UUID]:
    """The tenants that have unfinished work, for which upkeep matters now."""
    unfinished = (
        "created",
        "assigned",
        "in_progress",
        "awaiting_approval",
        "awaiting_subtask",
        "awaiting_review",
        "blocked",
    )
    with system_scope():
        rows = Activity.objects.filter(status__in=unfinished).order_by()
        return list(rows.values_list("tenant_id", flat=True).distinct())


def _tenants_led_to(provider: str) -> list[UUID]:
    """The tenants whose unfinished work belongs to a role that leads to the provider."""
    with system_scope():
        unfinished = Activity.objects.filter(
            status__in=("created", "assigned", "in_progress"), assignee_type="agent"
        )
        pairs = list(unfinished.order_by().values_list("tenant_id", "agent_role").distinct())
    return list(
        dict.fromkeys(tenant for tenant, role in pairs if overview.leads_to(tenant, role or "", provider))
    )
