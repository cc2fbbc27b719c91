"""How runs went lately: how many, how long they took, how many failed. Of one tenant, over the last day.

Read backwards along the key of runs, which grows with time, so that it costs what a day holds and not what all years do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median, quantiles
from uuid import UUID

from activities.models import ActivityRun
from activities.states import RunStatus
from tenants import clock
from tenants.identifiers import first_id_at

WITHIN = timedelta(hours=24)
MOST = 500  # of the newest; with more the figures are those of the last hours
ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STALLED)


@dataclass(slots=True)
class Lately:
    """Figures of some runs. `seconds` are those of runs that came to a good end."""

    seconds: list[float] = field(default_factory=list)
    completed: int = 0
    failed: int = 0  # stalled ones among them

    @property
    def ended(self) -> int:
        return self.completed + self.failed

    @property
    def p50(self) -> float | None:
        return median(self.seconds) if self.seconds else None

    @property
    def p95(self) -> float | None:
        if len(self.seconds) < 2:
            return self.p50
        return quantiles(self.seconds, n=20, method="inclusive")[-1]

    @property
    def failure_rate(self) -> float | None:
        """The share of those that ended; None when none has."""
        return self.failed / self.ended if self.ended else None

    @property
    def failure_percent(self) -> str:
        return "\u2013" if self.failure_rate is None else f"{self.failure_rate:.0%}"

    def count(self, status: str, seconds: float) -> None:
        if status == RunStatus.COMPLETED:
            self.completed += 1
            self.seconds.append(seconds)
        else:
            self.failed += 1


@dataclass(frozen=True, slots=True)
class Runs:
    """The figures by role, and by version where one role was asked for. `since` when there were too many to count them all: then only what
    began later is counted."""

    by_role: Mapping[str, Lately]
    by_version: dict[str, Lately]
    since: datetime | None = None


def lately(tenant_id: UUID, role: str | None = None, *, now: datetime | None = None) -> Runs:
    """The runs of the last day, of all roles or of one. In the caller's `tenant_scope`."""
    since = (now or clock.now()) - WITHIN
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(pk__gte=first_id_at(since), status__in=ENDED)
    if role is not None:
        rows = rows.filter(activity__agent_role=role)
    facts = ("activity__agent_role", "agent_version", "status", "started_at", "ended_at")
    return _counted(list(rows.order_by("-pk").values_list(*facts)[: MOST + 1]))


def _counted(rows: Sequence[tuple[str, str, str, datetime, datetime]]) -> Runs:
    by_role: dict[str, Lately] = defaultdict(Lately)
    by_version: dict[str, Lately] = defaultdict(Lately)
    for role, version, status, started_at, ended_at in rows[:MOST]:
        seconds = (ended_at - started_at).total_seconds()
        by_role[role].count(status, seconds)
        by_version[version].count(status, seconds)
    since = rows[MOST - 1][3] if len(rows) > MOST else None
    return Runs(by_role, dict(by_version), since)
