"""The page of the worker processes: live ones, and those that were lost recently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.http import HttpRequest, HttpResponse

from activities import selectors
from activities.leases import ALL, DRAINING
from activities.models import ActivityRun, WorkerProcess
from console.page import PageContext, page
from tenants import clock
from tenants.context import tenant_scope
from tenants.wording import name_some


@page("workers")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """All live processes by host, and those lost within the last hour, with their runs of this tenant. Lost and silent ones come first."""
    now = clock.now()
    with tenant_scope(visit.tenant_id):
        lost = Q(end_reason="lost", ended_at__gt=now - LOST_WITHIN)
        found = WorkerProcess.objects.filter(Q(ended_at=None) | lost)
        processes = list(found.order_by("host", "started_at", "pk")[: MOST_LISTED + 1])
        runs = selectors.runs_of_workers(visit.tenant_id, processes)
    rows = [
        Row(worker, runs.get(worker.pk, ()), max(0.0, (now - worker.beat_at).total_seconds()))
        for worker in processes[:MOST_LISTED]
    ]
    live = [worker for worker in processes if worker.ended_at is None]
    context = {
        "rows": sorted(rows, key=lambda row: row.state not in ("lost", "silent")),
        "has_more": len(processes) > MOST_LISTED,
        "live": live,
        "seats": sum(worker.concurrency for worker in live if worker.roles),
        "active": sum(worker.active for worker in live),
        "versions": sorted({worker.version for worker in live if worker.version}),
    }
    return visit.render("console/workers/every.html", context)


MOST_LISTED = 200
MOST_ROLES = 4  # listed in a row
LOST_WITHIN = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Row:
    """One process. `runs` are those of the tenant."""

    worker: WorkerProcess
    runs: Sequence[ActivityRun]
    silent_seconds: float  # since its last heartbeat

    @property
    def state(self) -> str:
        """The most serious state that applies."""
        if self.worker.ended_at:
            return "lost"
        if self.silent_seconds > settings.ORCHESTRATOR_LOST_AFTER_SECONDS:
            return "silent"
        if ALL in self.worker.closed:
            return DRAINING if self.worker.closed[ALL] == DRAINING else "intake closed"
        return "running"

    @property
    def named_roles(self) -> str:
        return name_some(self.worker.roles, MOST_ROLES) or "system tasks"

    @property
    def why_closed(self) -> str:
        """The reason why its intake is closed, unless the state says it."""
        return str(self.worker.closed.get(ALL, "")) if self.state == "intake closed" else ""

    @property
    def busy(self) -> float:
        """The share of its seats in use."""
        return min(1.0, self.worker.active / self.worker.concurrency) if self.worker.concurrency else 0.0

    @property
    def load(self) -> Sequence[tuple[str, float]]:
        """Used shares of the resources of its host or container."""
        load = self.worker.load or {}
        return [
            (words, float(load[name]))
            for name, words in (("cpu", "processor"), ("memory", "memory"))
            if name in load
        ]
