"""Decisions over HTTP: one approval at a time, and one that fifty activities of five pipelines wait for."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from activities import activity_tree
from activities.human_tasks import approvals
from activities.human_tasks.approvals import NewApproval
from activities.models import Activity, ActivityRun
from activities.submission import NewActivity, submit
from benchmarks import scenarios, setting
from benchmarks.serving import web
from pipelines.submission import NewRun, start_runs
from tenants import tokens
from tenants.context import tenant_scope
from tenants.models import Tenant

Figures = dict[str, float]
RUNS, STEPS = 5, 10


class _Reviewer:
    """A client with a token of its own and a connection that stays open."""

    def __init__(self, port: int, tenant: Tenant) -> None:
        _, secret = tokens.create(tenant, "admin", f"bench {uuid4().hex[:8]}")
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def post(self, address: str, body: dict[str, Any]) -> float:
        """Seconds until the answer is there."""
        began = time.perf_counter()
        self.connection.request("POST", address, json.dumps(body), self.headers)
        answer = self.connection.getresponse()
        text = answer.read()
        seconds = time.perf_counter() - began
        assert answer.status == 200, text
        return seconds


def approve(folder: Path, scale: float) -> Figures:
    """One gate after the other is approved by `POST /activities/{id}/approve/`."""
    tenant, count = scenarios._tenant(f"gates-{uuid4().hex[:8]}"), max(int(200 * scale), 20)
    gates = _gates(tenant, count)
    with web(folder) as port:
        reviewer = _Reviewer(port, tenant)
        taken = [reviewer.post(f"/api/v1/activities/{gate}/approve/", {"notes": "good"}) for gate in gates]
    ordered = sorted(taken[10:])  # the first ones make connections and prepare statements
    return {
        "approve p50 ms": statistics.median(ordered) * 1000,
        "approve p95 ms": ordered[int(len(ordered) * 0.95)] * 1000,
        "approve max ms": ordered[-1] * 1000,
    }


def _gates(tenant: Tenant, count: int) -> list[UUID]:
    with tenant_scope(tenant.pk):
        items = [
            NewActivity(name=f"sign {number}", human_role="reviewer", is_approval_gate=True)
            for number in range(count)
        ]
        return [item.id for item in submit(items, actor="bench")]


def fan_out(folder: Path, scale: float) -> Figures:
    """One approval that 50 activities of 5 pipeline runs wait for, from the decision until each has been started by a worker."""
    tenant = scenarios._tenant(f"linked-{uuid4().hex[:8]}")
    steps = [{"id": f"s{number}", "agent_role": scenarios.ROLE, "depends_on": []} for number in range(STEPS)]
    for number in range(RUNS):
        scenarios._pipeline(tenant, f"wide-{number}", steps)
    with web(folder) as port, setting.our_workers(folder / "ours.log"):
        scenarios._wait_for_workers(2)
        approval, waiting = _held(tenant)
        reviewer = _Reviewer(port, tenant)
        began = time.perf_counter()
        answered = reviewer.post(f"/api/v1/approvals/{approval}/decide/", {"decision": "approved"})
        setting.wait(lambda: _started(tenant) == len(waiting), 60)
        woken = time.perf_counter() - began
        assert woken < 60
    return {"decide ms": answered * 1000, "all started s": woken, "linked": float(len(waiting))}


def _held(tenant: Tenant) -> tuple[UUID, list[UUID]]:
    """The approval and what waits for it. Held in the transaction that starts the runs, so that no worker comes before."""
    with tenant_scope(tenant.pk):
        for number in range(RUNS):
            start_runs(tenant.pk, f"wide-{number}", [NewRun()], actor="bench")
        ids = list(Activity.objects.for_tenant(tenant.pk).values_list("pk", flat=True))
        linked = activity_tree.lock(tenant.pk, ids)
        new = NewApproval(type="content_direction", title="Which direction?")
        approval = approvals.open_approval(tenant.pk, new, actor="bench", identity="bench")
        approvals.link(tenant.pk, approval, list(linked.values()), actor="bench", may_hold=ids)
    return approval, ids


def _started(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        runs = ActivityRun.objects.for_tenant(tenant.pk).order_by()
        return int(runs.values("activity_id").distinct().count())


ALL: dict[str, Callable[[Path, float], Figures]] = {"approve": approve, "fan_out": fan_out}
