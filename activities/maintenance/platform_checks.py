"""Conditions: what is not as it should be on the platform is told once when it begins, and once when it is over.

Each is a row for as long as it lasts. The row and the alerts about it are one transaction, so that of several leaders that see the same
thing one tells of it, and a leader that is killed in between leaves neither. What cannot be asked at the moment stays as it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from psycopg.types.json import Jsonb

from activities import queue_stats
from activities.admission import Closed
from activities.alerts import LONGEST_TITLE, raise_alert
from activities.maintenance import invariants, job_records
from activities.models import Activity, Condition, FailuresInARow
from activities.models.activity import in_status
from activities.models.alert import AlertKind, Severity
from activities.states import LIVE
from agents.governor import overview
from tenants import clock
from tenants.context import SYSTEM, system_scope
from tenants.exceptions import LimiterUnavailable
from tenants.identifiers import first_id_at
from tenants.models import Tenant
from tenants.sql import Statement

logger = logging.getLogger(__name__)

# Noticing: the questions whose answers are conditions. They read, and change nothing.


_OLD = Statement.load(Path(__file__).resolve().parent.parent / "sql" / "conditions", "old_queues")


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition, as it is now. `tenants` is asked for once, when it begins; `over` is what people are told when it has ended."""

    subject: str
    title: str
    over: str
    tenants: Callable[[], Sequence[UUID]]
    body: str = ""
    severity: Severity = Severity.WARNING
    facts: Mapping[str, Any] = field(default_factory=dict)


def find_idle_workers() -> list[Finding]:
    """Raises `redis.RedisError`, `scripts.Closed`."""
    return [
        Finding(
            subject=idle.role,
            title=f"Workers of {idle.role} take nothing",
            over=f"Workers of {idle.role} take work again",
            body="Work was granted to them and does not begin, although they say that they live. It waits until one of them takes it.",
            severity=Severity.CRITICAL,
            tenants=lambda found=idle: found.tenants,  # type: ignore[misc]  # bound now, since the loop goes on
            facts={"role": idle.role, "oldest_seconds": round(idle.oldest_seconds)},
        )
        for idle in queue_stats.list_idle_roles()
    ]


def old_queues() -> list[Finding]:
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
        Finding(
            subject=role,
            title=f"Work for {role} waits for too long",
            over=f"Work for {role} begins in time again",
            body=f"Some of it has waited for more than {target / 60:g} minutes. Ask why of one activity to see what it waits for.",
            tenants=lambda concerned=found: [row.tenant_id for row in concerned],  # type: ignore[misc]  # as above
            facts={"role": role, "target_seconds": target},
        )
        for role, found in sorted(by_role.items())
    ]


def failures_in_a_row() -> list[Finding]:
    """Roles of a tenant, and schedules, whose runs have failed that often one after the other. None where the number is 0."""
    most = settings.ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW
    if most <= 0:
        return []
    with system_scope():
        rows = list(FailuresInARow.objects.filter(count__gte=most).order_by("pk"))
    return [_failing(row) for row in rows]


def _failing(row: FailuresInARow) -> Finding:
    of_schedule = row.kind == FailuresInARow.Kind.SCHEDULE
    who = f"What the schedule {row.subject} starts" if of_schedule else row.subject
    return Finding(
        subject=f"{row.tenant_id}:{row.kind}:{row.subject}",
        title=f"{who} fails again and again",
        over=f"{who} succeeds again",
        body=f"{row.count:,} runs have failed one after the other since {row.since:%Y-%m-%d %H:%M} UTC, the last with the code "
        f"{row.error_code or 'unknown'}. None has succeeded meanwhile.",
        tenants=lambda: [row.tenant_id],
        facts={
            row.kind: row.subject,
            "failures": row.count,
            "error": row.error_code,
            "since": row.since.isoformat(),
        },
    )


def open_breakers() -> list[Finding]:
    """Raises `redis.RedisError`, `LimiterUnavailable`."""
    return [
        Finding(
            subject=provider.key,
            title=f"The model provider {provider.adapter} at {provider.place} fails",
            over=f"The model provider {provider.adapter} at {provider.place} answers again",
            body="It failed several times in a row and is not called for a while. Work that needs it waits and uses up no attempt.",
            tenants=lambda key=provider.key: _tenants_led_to(key),  # type: ignore[misc]  # as above
            facts={"adapter": provider.adapter, "place": provider.place},
        )
        for provider in overview.failing()
    ]


def failing_providers() -> QuerySet[Condition]:
    """What people were told of providers that fail, for as long as they do."""
    return Condition.objects.filter(kind=AlertKind.BREAKER_OPEN)


def find_broken_invariants() -> list[Finding]:
    """As the last check has found them. Raises `redis.RedisError`."""
    known = invariants.last_known()
    if known is None:
        return []
    return [
        Finding(
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


def failing_jobs() -> list[Finding]:
    """Parts of upkeep that fail again and again, or hang. The part that asks this cannot tell of itself; `/readyz` does."""
    return [
        Finding(
            subject=job.name,
            title=f"A part of upkeep fails: {job.name}",
            over=f"A part of upkeep works again: {job.name}",
            body=f"The system job {job.name} of {job.owner} {_FAULTS[job.state]}. The other parts go on without it.",
            severity=Severity.CRITICAL,
            tenants=_tenants_at_work,
            facts={"job": job.name, "owner": job.owner, "state": job.state, "error": job.error},
        )
        for job in job_records.read_jobs().unwell
    ]


#: Whose answers are which kind of alert.
QUESTIONS: Mapping[AlertKind, Callable[[], list[Finding]]] = {
    AlertKind.IDLE_WORKER: find_idle_workers,
    AlertKind.QUEUE_OLD: old_queues,
    AlertKind.BREAKER_OPEN: open_breakers,
    AlertKind.FAILURES_IN_A_ROW: failures_in_a_row,
    AlertKind.INVARIANT_BROKEN: find_broken_invariants,
    AlertKind.UPKEEP_FAILING: failing_jobs,
}


def _tenants_at_work() -> list[UUID]:
    """The tenants that have unfinished work, for which upkeep matters now."""
    with system_scope():
        rows = Activity.objects.filter(in_status(*LIVE)).order_by()
        return list(rows.values_list("tenant_id", flat=True).distinct())


def _tenants_led_to(provider: str) -> list[UUID]:
    """The tenants whose unfinished work belongs to a role that leads to the provider."""
    with system_scope():
        unfinished = Activity.objects.filter(
            in_status("created", "assigned", "in_progress"), assignee_type="agent"
        )
        pairs = list(unfinished.order_by().values_list("tenant_id", "agent_role").distinct())
    return list(
        dict.fromkeys(tenant for tenant, role in pairs if overview.leads_to(tenant, role or "", provider))
    )


# The lookout of the leader: every question in its turn. One that cannot be answered keeps the others from nothing.


LOOK_SECONDS = 10.0
#: A question that reads more the more is wrong.
SELDOM = {AlertKind.QUEUE_OLD: 60.0}


@dataclass(slots=True)
class Lookout:
    """Says when each question is due again, by its own clock."""

    clock: Callable[[], float] = time.monotonic
    checked_at: dict[AlertKind, float] = field(default_factory=dict)

    def look(self) -> int:
        """Ask what is due, and tell people of what has begun or ended since; how much that was. Cheap to call at every tick."""
        now, count = self.clock(), 0
        for kind, question in QUESTIONS.items():
            if now - self.checked_at.get(kind, -1e9) < SELDOM.get(kind, LOOK_SECONDS):
                continue
            self.checked_at[kind] = now
            try:
                noticed = question()
            except (redis.RedisError, Closed, LimiterUnavailable) as error:
                # Nobody knows, so what people were told stays as it is.
                logger.info(
                    "Condition unknown",
                    extra={"action": "condition_unknown", "kind": kind.value, "reason": type(error).__name__},
                )
                continue
            count += tell_changes(kind, noticed)
        return count


# Telling: what was noticed is compared with what people know already, and they are told of the difference.


_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "conditions"
_BEGIN, _END = (Statement.load(_FOLDER, name) for name in ("begin", "end"))
LONGEST_NAME = 400


def tell_changes(kind: AlertKind, noticed: Sequence[Finding]) -> int:
    """Tell of each that has begun, and of each of this kind that is over; how many this told of.

    Any number of processes may do it at once.
    """
    now = {f"{kind.value}:{found.subject}"[:LONGEST_NAME]: found for found in noticed}
    with system_scope():
        known = set(Condition.objects.filter(kind=kind.value).values_list("name", flat=True))
    begun = [_begin(name, kind, now[name]) for name in sorted(now.keys() - known)]
    over = [_end(name) for name in sorted(known - now.keys())]
    return sum(begun) + sum(over)


def _begin(name: str, kind: AlertKind, found: Finding) -> bool:
    tenants = list(found.tenants())
    row = {
        "name": name,
        "kind": kind.value,
        "over": found.over[:LONGEST_TITLE],
        "facts": Jsonb(dict(found.facts)),
        "tenants": Jsonb([str(tenant) for tenant in tenants]),
    }
    with system_scope(), transaction.atomic(using=SYSTEM):
        rows = _BEGIN.run(row, using=SYSTEM)
        for begun in rows:
            key = f"condition:{begun.id}:began"
            _tell(
                tenants,
                kind,
                found.title,
                key=key,
                body=found.body,
                severity=found.severity,
                facts=found.facts,
            )
            logger.warning(
                "Condition began",
                extra={"action": "condition_began", "condition": name, "tenants": len(tenants)},
            )
    return bool(rows)


def _end(name: str) -> bool:
    with system_scope(), transaction.atomic(using=SYSTEM):
        rows = _END.run({"name": name}, using=SYSTEM)
        for ended in rows:
            tenants = map(UUID, ended.tenants)
            key = f"condition:{ended.id}:over"
            _tell(
                tenants, AlertKind(ended.kind), ended.over, key=key, severity=Severity.INFO, facts=ended.facts
            )
            logger.info("Condition over", extra={"action": "condition_over", "condition": name})
    return bool(rows)


def _tell(
    tenants: Iterable[UUID], kind: AlertKind, title: str, *, key: str, severity: Severity, facts: Mapping[str, Any], body: str = ""
) -> None:  # fmt: skip
    """Every tenant that is concerned and still there, and the platform's channels once."""
    present = Tenant.objects.filter(pk__in=list(tenants)).order_by("pk").values_list("pk", flat=True)
    for number, tenant_id in enumerate(present):
        raise_alert(
            tenant_id, kind, title, body=body, severity=severity, facts=facts, dedup_key=key, platform=number == 0
        )  # fmt: skip
