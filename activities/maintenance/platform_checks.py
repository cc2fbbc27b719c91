"""Platform checks: find problems of the platform, and alert people once when one begins and once when it ends.

A problem is a row (a condition) while it lasts. The row and its alerts are one transaction, so only one of several leaders announces it,
and a leader that is killed in between leaves neither. If a check cannot run, its conditions stay as they are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
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
from agents.governor import overview, providers
from tenants import clock, outages
from tenants.context import SYSTEM, system_scope
from tenants.exceptions import LimiterUnavailable
from tenants.identifiers import first_id_at
from tenants.models import Tenant
from tenants.sql import Statement

logger = logging.getLogger(__name__)


_OLD = Statement.load(Path(__file__).resolve().parent.parent / "sql" / "conditions", "old_queues")


@dataclass(frozen=True, slots=True)
class Finding:
    """One current problem. `tenants` is called once, when it begins; `over` is the title of the alert when it has ended."""

    subject: str
    title: str
    over: str
    tenants: Callable[[], Sequence[UUID]]
    body: str = ""
    severity: Severity = Severity.WARNING
    facts: Mapping[str, Any] = field(default_factory=dict)


def find_idle_workers() -> list[Finding]:
    """Find roles whose workers are alive but take no work. Raises `redis.RedisError`, `scripts.Closed`."""
    return [
        Finding(
            subject=idle.role,
            title=f"Workers of {idle.role} take no work",
            over=f"Workers of {idle.role} take work again",
            body="Work was granted to them and does not start, although they send heartbeats. It waits until one of them takes it.",
            severity=Severity.CRITICAL,
            tenants=partial(list, idle.tenants),
            facts={"role": idle.role, "oldest_seconds": round(idle.oldest_seconds)},
        )
        for idle in queue_stats.list_idle_roles()
    ]


def find_old_queues() -> list[Finding]:
    """Find roles with work that is ready but has waited for longer than the target. None without a target."""
    target = settings.ORCHESTRATOR_QUEUE_TARGET_SECONDS
    if not target:
        return []
    newest = clock.now() - timedelta(seconds=target)
    parameters = {"before": first_id_at(newest), "target": target, **providers.names_by_adapter()}
    rows = _OLD.run(parameters, using=SYSTEM)
    by_role: dict[str, list[Any]] = {}
    for row in rows:
        by_role.setdefault(row.agent_role, []).append(row)
    return [
        Finding(
            subject=role,
            title=f"Work for {role} waits for too long",
            over=f"Work for {role} starts in time again",
            body=f"Some of it has waited for more than {target / 60:g} minutes. The page of an activity says why it waits.",
            tenants=partial(list, [row.tenant_id for row in rows]),
            facts={"role": role, "target_seconds": target},
        )
        for role, rows in sorted(by_role.items())
    ]


def find_failures_in_a_row() -> list[Finding]:
    """Find schedules, and roles of a tenant, whose last runs have all failed. None if the setting is 0."""
    most = settings.ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW
    if most <= 0:
        return []
    with system_scope():
        rows = list(FailuresInARow.objects.filter(count__gte=most).order_by("pk"))
    return [_describe_failures(row) for row in rows]


def _describe_failures(row: FailuresInARow) -> Finding:
    is_schedule = row.kind == FailuresInARow.Kind.SCHEDULE
    subject = f"The schedule {row.subject}" if is_schedule else row.subject
    return Finding(
        subject=f"{row.tenant_id}:{row.kind}:{row.subject}",
        title=f"{subject} fails repeatedly",
        over=f"{subject} succeeds again",
        body=f"The last {row.count:,} runs have all failed since {row.since:%Y-%m-%d %H:%M} UTC, the last with the code "
        f"{row.error_code or 'unknown'}.",
        tenants=lambda: [row.tenant_id],
        facts={
            row.kind: row.subject,
            "failures": row.count,
            "error": row.error_code,
            "since": row.since.isoformat(),
        },
    )


def find_open_breakers() -> list[Finding]:
    """Find providers whose circuit breaker is open. Raises `redis.RedisError`, `LimiterUnavailable`."""
    return [
        Finding(
            subject=provider.key,
            title=f"The model provider {provider.adapter} at {provider.place} fails",
            over=f"The model provider {provider.adapter} at {provider.place} answers again",
            body="It failed several times in a row and is not called for a while. Work that needs it waits, and uses up no attempt.",
            tenants=partial(_tenants_using, provider.key),
            facts={"adapter": provider.adapter, "place": provider.place},
        )
        for provider in overview.failing()
    ]


def failing_providers() -> QuerySet[Condition]:
    return Condition.objects.filter(kind=AlertKind.BREAKER_OPEN)


def find_broken_invariants() -> list[Finding]:
    """Find the violations of the last check of the invariants. Raises `redis.RedisError`."""
    last_outcome = invariants.last_known()
    if last_outcome is None:
        return []
    return [
        Finding(
            subject=name,
            title=f"The invariant {name} does not hold",
            over=f"The invariant {name} holds again",
            body=f"{(invariants.SAFETY | invariants.LIVENESS).get(name, name)}: the last check found rows that violate this.",
            severity=Severity.CRITICAL,
            tenants=partial(invariants.tenants_concerned, name),
            facts={"invariant": name},
        )
        for name, count in sorted(last_outcome[1].items())
        if count
    ]


_PROBLEMS = {"late": "hangs", "failing": "fails"}


def find_failing_jobs() -> list[Finding]:
    """Find system jobs that fail repeatedly or hang. The job that runs this check cannot report itself; `/readyz` does."""
    return [
        Finding(
            subject=job.name,
            title=f"A system job fails: {job.name}",
            over=f"A system job works again: {job.name}",
            body=f"The system job {job.name} of {job.owner} {_PROBLEMS[job.state]}. The other jobs continue.",
            severity=Severity.CRITICAL,
            tenants=_tenants_at_work,
            facts={"job": job.name, "owner": job.owner, "state": job.state, "error": job.error},
        )
        for job in job_records.read_jobs().unhealthy
    ]


#: The checks, by the kind of their alerts.
CHECKS: Mapping[AlertKind, Callable[[], list[Finding]]] = {
    AlertKind.IDLE_WORKER: find_idle_workers,
    AlertKind.QUEUE_OLD: find_old_queues,
    AlertKind.BREAKER_OPEN: find_open_breakers,
    AlertKind.FAILURES_IN_A_ROW: find_failures_in_a_row,
    AlertKind.INVARIANT_BROKEN: find_broken_invariants,
    AlertKind.UPKEEP_FAILING: find_failing_jobs,
}


def _tenants_at_work() -> list[UUID]:
    with system_scope():
        rows = Activity.objects.filter(in_status(*LIVE)).order_by()
        return list(rows.values_list("tenant_id", flat=True).distinct())


def _tenants_using(provider: str) -> list[UUID]:
    """Return the tenants with unfinished work of roles that use the provider."""
    with system_scope():
        unfinished = Activity.objects.filter(
            in_status("created", "assigned", "in_progress"), assignee_type="agent"
        )
        pairs = list(unfinished.order_by().values_list("tenant_id", "agent_role").distinct())
    return list(
        dict.fromkeys(
            tenant for tenant, role in pairs if overview.calls_provider(tenant, role or "", provider)
        )
    )


# Running the checks. One that fails does not affect the others.


CHECK_SECONDS = 10.0
#: Checks that run less often, because they read more the more is wrong.
RARE_CHECK_SECONDS = {AlertKind.QUEUE_OLD: 60.0}


@dataclass(slots=True)
class PlatformMonitor:
    """Runs each check when it is due again, by its own clock."""

    clock: Callable[[], float] = time.monotonic
    checked_at: dict[AlertKind, float] = field(default_factory=dict)

    def check_due(self) -> int:
        """Run the checks that are due, and announce changes. Returns the number of announcements. Cheap to call at every tick."""
        now, count = self.clock(), 0
        for kind, check in CHECKS.items():
            if now - self.checked_at.get(kind, -1e9) < RARE_CHECK_SECONDS.get(kind, CHECK_SECONDS):
                continue
            self.checked_at[kind] = now
            try:
                findings = check()
            except (redis.RedisError, Closed, LimiterUnavailable) as error:
                # The state is unknown, so the conditions stay as they are.
                logger.info(
                    "Condition unknown",
                    extra={"action": "condition_unknown", "kind": kind.value, "reason": type(error).__name__},
                )
                continue
            count += announce_changes(kind, findings)
        return count


# Announcing: people are alerted about the difference between the findings and the known conditions.


_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "conditions"
_BEGIN, _END = (Statement.load(_FOLDER, name) for name in ("begin", "end"))
LONGEST_NAME = 400


def announce_changes(kind: AlertKind, findings: Sequence[Finding]) -> int:
    """Announce each finding that is new, and each known condition of this kind that has ended. Returns the number of announcements.

    Safe in any number of processes at once.
    """
    current = {f"{kind.value}:{finding.subject}"[:LONGEST_NAME]: finding for finding in findings}
    with system_scope():
        known = set(Condition.objects.filter(kind=kind.value).values_list("name", flat=True))
    changes = [partial(_begin, name, kind, current[name]) for name in sorted(current.keys() - known)]
    changes += [partial(_end, name) for name in sorted(known - current.keys())]
    announced = 0
    for change in changes:
        with outages.one_of_many(
            logger, "Condition not announced", action="condition_failed", kind=kind.value
        ):
            announced += change()
    return announced


def _begin(name: str, kind: AlertKind, finding: Finding) -> bool:
    tenants = list(finding.tenants())
    row = {
        "name": name,
        "kind": kind.value,
        "over": finding.over[:LONGEST_TITLE],
        "facts": Jsonb(dict(finding.facts)),
        "tenants": Jsonb([str(tenant) for tenant in tenants]),
    }
    with system_scope(), transaction.atomic(using=SYSTEM):
        rows = _BEGIN.run(row, using=SYSTEM)
        for begun in rows:
            key = f"condition:{begun.id}:began"
            _alert(
                tenants,
                kind,
                finding.title,
                key=key,
                body=finding.body,
                severity=finding.severity,
                facts=finding.facts,
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
            _alert(
                tenants, AlertKind(ended.kind), ended.over, key=key, severity=Severity.INFO, facts=ended.facts
            )
            logger.info("Condition over", extra={"action": "condition_over", "condition": name})
    return bool(rows)


def _alert(
    tenants: Iterable[UUID], kind: AlertKind, title: str, *, key: str, severity: Severity, facts: Mapping[str, Any], body: str = ""
) -> None:  # fmt: skip
    """Raise the alert for every tenant that still exists, and once for the platform's own channels."""
    present = Tenant.objects.filter(pk__in=list(tenants)).order_by("pk").values_list("pk", flat=True)
    for number, tenant_id in enumerate(present):
        raise_alert(
            tenant_id, kind, title, body=body, severity=severity, facts=facts, dedup_key=key, platform=number == 0
        )  # fmt: skip
