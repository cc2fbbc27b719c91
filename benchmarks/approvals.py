"""Decisions over HTTP: approvals one after the other, and one approval that 50 activities of 5 pipelines wait for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from activities import activity_tree
from activities.human_tasks import approvals
from activities.human_tasks.approvals import NewApproval
from activities.models import Activity, ActivityRun
from activities.submission import NewActivity, submit
from benchmarks import environment
from benchmarks.environment import wait_until
from benchmarks.figures import Figures, percentile
from benchmarks.workload import ROLE, ApiClient, make_tenant, save_pipeline, wait_for_workers
from pipelines.submission import NewRun, start_runs
from tenants.context import tenant_scope
from tenants.models import Tenant

RUNS, STEPS = 5, 10


def approve(folder: Path, scale: float) -> Figures:
    """Approve gates one after the other by `POST /activities/{id}/approve/`."""
    tenant, count = make_tenant("gates"), max(int(200 * scale), 20)
    gates = _gates(tenant, count)
    with environment.web(folder) as port:
        reviewer = ApiClient(port, tenant)
        seconds = [reviewer.time("POST", f"/activities/{gate}/approve/", {"notes": "good"}) for gate in gates]
    seconds = seconds[10:]  # the first ones open connections and prepare statements
    return {
        "approve p50 ms": statistics.median(seconds) * 1000,
        "approve p95 ms": percentile(seconds, 95) * 1000,
        "approve max ms": max(seconds) * 1000,
    }


def _gates(tenant: Tenant, count: int) -> list[UUID]:
    with tenant_scope(tenant.pk):
        items = [
            NewActivity(name=f"sign {number}", human_role="reviewer", is_approval_gate=True)
            for number in range(count)
        ]
        return [item.id for item in submit(items, actor="bench")]


def fan_out(folder: Path, scale: float) -> Figures:
    """Decide one approval that 50 activities of 5 pipeline runs wait for. Measures until workers have started all of them."""
    tenant = make_tenant("linked")
    steps = [{"id": f"s{number}", "agent_role": ROLE, "depends_on": []} for number in range(STEPS)]
    for number in range(RUNS):
        save_pipeline(tenant, f"wide-{number}", steps)
    with environment.web(folder) as port, environment.workers(folder):
        wait_for_workers(2)
        approval, waiting = _hold_runs(tenant)
        reviewer = ApiClient(port, tenant)
        began = time.perf_counter()
        decided = reviewer.time("POST", f"/approvals/{approval}/decide/", {"decision": "approved"})
        wait_until(lambda: _count_started(tenant) == len(waiting), 60)
        started = time.perf_counter() - began
    return {"decide ms": decided * 1000, "all started s": started, "linked": float(len(waiting))}


def _hold_runs(tenant: Tenant) -> tuple[UUID, list[UUID]]:
    """Return an approval and the activities that wait for it. One transaction starts and holds them, so that no worker takes one before."""
    with tenant_scope(tenant.pk):
        for number in range(RUNS):
            start_runs(tenant.pk, f"wide-{number}", [NewRun()], actor="bench")
        ids = list(Activity.objects.for_tenant(tenant.pk).values_list("pk", flat=True))
        linked = activity_tree.lock(tenant.pk, ids)
        new = NewApproval(type="content_direction", title="Which direction?")
        approval = approvals.open_approval(tenant.pk, new, actor="bench", identity="bench")
        approvals.link(tenant.pk, approval, list(linked.values()), actor="bench")
    return approval, ids


def _count_started(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        runs = ActivityRun.objects.for_tenant(tenant.pk).order_by()
        return int(runs.values("activity_id").distinct().count())


SCENARIOS: dict[str, Callable[[Path, float], Figures]] = {"approve": approve, "fan_out": fan_out}
