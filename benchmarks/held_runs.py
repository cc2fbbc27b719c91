"""Thousands of runs that their agent has accepted and completes later, with two workers of 16 threads each.

Servers, workers and a web process are real. While all runs are open, the start of other work of the same tenant is measured, of the same
and of another role. Both workers must keep their seats, threads and leases. A failed check raises an error instead of giving a figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from activities import relay
from activities.admission import keys, rebuilding
from activities.maintenance.invariants import examine
from activities.models import Activity, ActivityRun, WorkerProcess
from activities.submission import NewActivity, submit
from agents.contracts import Callback
from agents.models import AgentConfig
from benchmarks import environment
from benchmarks.callback_agent import CallbackAgent, call_back
from benchmarks.environment import wait_until
from benchmarks.figures import Figures, percentiles
from benchmarks.workload import count_rows
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client

ROLE, OTHER_ROLE = "qa", "seo"
SEATS = 4
PROBES = 40
HOLD_SECONDS = 35.0  # longer than the 30 s after which the lease of a silent worker or agent ends
CALLERS = 4
BEATING = 200  # runs whose agent sends heartbeats; the others may be silent until their deadline
BEAT_SECONDS = 10.0


def held(count: int) -> Callable[[Path, float], Figures]:
    """Return a scenario with `count` runs open at the same time."""

    def scenario(folder: Path, scale: float) -> Figures:
        return _measure(folder, int(count * scale), HOLD_SECONDS * scale)

    return scenario


def _measure(folder: Path, count: int, hold_seconds: float) -> Figures:
    port = environment.free_port()
    os.environ["PORT"] = str(port)  # of the callbacks' address
    with CallbackAgent() as agent, environment.web(folder, port=port, processes=1):
        tenant = _tenant(agent.url, count + PROBES)
        with environment.workers(folder, roles=f"agent__{ROLE},agent__{OTHER_ROLE}") as workers:
            wait_until(lambda: _count_live_workers() == 2 and rebuilding.is_open(), 60)
            idle_probe = _start_milliseconds(tenant, OTHER_ROLE)
            threads = workers.count_threads()
            began = time.perf_counter()
            _submit(tenant, ROLE, count)
            wait_until(lambda: _count_open(tenant) == count, 60 + count / 20, pause=0.2)
            accepted_seconds = time.perf_counter() - began
            figures = {
                "open at once": float(_count_open(tenant)),
                "accepted per second": count / accepted_seconds,
                "seats of workers taken by them": float(_count_seats()),
                "threads of workers more than before": float(workers.count_threads() - threads),
                "connections from workers to the agent": float(workers.count_connections(agent.port)),
            }
            open_since = time.monotonic()
            with ThreadPoolExecutor(1) as pool:
                beating = pool.submit(_beat, agent.open[:BEATING], open_since + hold_seconds)
                figures |= percentiles("start of another role, none open", idle_probe, percents=(50, 95))
                figures |= percentiles(
                    "start of another role", _start_milliseconds(tenant, OTHER_ROLE), percents=(50, 95)
                )
                figures |= percentiles(
                    "start of the same role", _start_milliseconds(tenant, ROLE), percents=(50, 95)
                )
                figures["heartbeats"] = float(beating.result())
            _expect(_count_open(tenant) == count, "not all runs are open any more")
            _expect(_count_live_workers() == 2, "a worker was declared lost")
            _expect_invariants()
            began = time.perf_counter()
            for answer in call_back(agent.open, "complete/", {"output": {"data": {"held": True}}}, CALLERS):
                _expect(answer.status == 200 and answer.body["accepted"], f"a result was refused: {answer}")
            figures["completed per second"] = count / (time.perf_counter() - began)
            wait_until(lambda: count_rows(Activity, tenant, status="done") == count + PROBES * 3)
            relay.flush(30)
            wait_until(lambda: not examine(quiesced=True).violations, 60, pause=1.0)
    figures["runs that began twice"] = float(count_rows(ActivityRun, tenant) - count_rows(Activity, tenant))
    return figures


def _tenant(endpoint: str, cap: int) -> Tenant:
    """Create a tenant whose caps allow that many runs, because an accepted run counts against all of them except the workers' seats."""
    slug = f"holding-{uuid4().hex[:8]}"
    with system_scope():
        tenant = Tenant.objects.create(slug=slug, name=slug)
    inline = {"adapter": "inline", "endpoint": "benchmarks.agents:one_kilobyte"}
    with tenant_scope(tenant.pk):
        for role, fields in ((ROLE, {"adapter": "http", "endpoint": endpoint}), (OTHER_ROLE, inline)):
            AgentConfig.objects.create(tenant=tenant, agent_id=role, max_concurrency=cap, **fields)
    return tenant


def _submit(tenant: Tenant, role: str, count: int) -> None:
    for start in range(0, count, 1_000):
        with tenant_scope(tenant.pk):
            submit(
                [
                    NewActivity(name="held", agent_role=role, timeout_seconds=3_600)
                    for _ in range(min(1_000, count - start))
                ],
                actor="bench",
            )


def _start_milliseconds(tenant: Tenant, role: str) -> list[float]:
    """Submit activities one after the other. Returns the milliseconds from each submission to its start."""
    milliseconds = []
    for _ in range(PROBES):
        with tenant_scope(tenant.pk):
            (item,) = submit(
                [NewActivity(name="probe", agent_role=role, params={"at_once": True})], actor="bench"
            )

        def is_done(probe: UUID = item.id) -> bool:
            with tenant_scope(tenant.pk):
                return Activity.objects.filter(pk=probe, status="done").exists()

        wait_until(is_done, 30, pause=0.005)
        with tenant_scope(tenant.pk):
            created, started = Activity.objects.values_list("created_at", "started_at").get(pk=item.id)
        milliseconds.append((started - created).total_seconds() * 1000)
    return milliseconds


def _beat(runs: Sequence[Callback], until: float) -> int:
    """Send heartbeats for the runs repeatedly. Returns their number."""
    count = 0
    while (began := time.monotonic()) < until:
        for answer in call_back(runs, "heartbeat/", {"progress": "still at it"}, 1):
            _expect(answer.status == 200 and not answer.body["stop"], f"a heartbeat was refused: {answer}")
            count += 1
        time.sleep(max(0.0, min(began + BEAT_SECONDS, until) - time.monotonic()))
    return count


def _count_open(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        return int(ActivityRun.objects.filter(status="running", accepted_at__isnull=False).count())


def _count_live_workers() -> int:
    with system_scope():
        return int(WorkerProcess.objects.filter(ended_at=None, beat_at__lte=datetime.now(UTC)).count())


def _count_seats() -> int:
    name = client().get(keys.pointer())
    used = client().hgetall(keys.generation(name.decode()) + "used") if name else {}
    return sum(int(count) for scope, count in used.items() if scope.startswith(b"seat:"))


def _expect_invariants() -> None:
    violations = examine().violations
    _expect(not violations, f"invariants are broken: {violations}")


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise RuntimeError(problem)


SCENARIOS = {"runs_2000": held(2_000), "runs_10000": held(10_000)}
