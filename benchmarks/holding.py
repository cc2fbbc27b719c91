"""Thousands of runs that their agent has accepted, with two workers of two seats each.

Servers, workers and a web process are real. The agent answers 202 and calls back when told. While all runs are open, other work of the
same tenant and role, and work of another role, is timed; both workers must keep their seats, threads and leases. What does not hold ends
the measurement with an error instead of a figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from activities import relay
from activities.admission import keys, rebuilding
from activities.maintenance.invariants import examine
from activities.models import Activity, ActivityRun, WorkerProcess
from activities.submission import NewActivity, submit
from agents.contracts import Callback
from agents.models import AgentConfig
from benchmarks import setting
from benchmarks.holding_agent import HoldingAgent, callbacks
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client

ROLE, OTHER_ROLE = "qa", "seo"
SEATS = 4
PROBES = 40
HOLD_SECONDS = (
    35.0  # longer than the 30 s after which a process or an agent's lease without a sign of life is given up
)
CALLERS = 4
BEATING = 200  # runs whose agent sends heartbeats; the others have until their deadline
BEAT_SECONDS = 10.0

Figures = dict[str, float]


def held(count: int) -> Callable[[Path, float], Figures]:
    """A scenario with so many runs open at once."""

    def scenario(folder: Path, scale: float) -> Figures:
        return _measured(folder, int(count * scale), HOLD_SECONDS * scale)

    return scenario


def _measured(folder: Path, count: int, hold_seconds: float) -> Figures:
    port = setting.free_port()
    os.environ["PORT"] = str(port)  # where callbacks go
    with HoldingAgent() as agent, setting.web(folder / "web.log", port):
        tenant = _tenant(agent.url, count + PROBES)
        with setting.our_workers(folder / "ours.log", roles=f"agent__{ROLE},agent__{OTHER_ROLE}") as workers:
            setting.wait(lambda: _living() == 2 and rebuilding.is_open(), 60)
            idle_probe = _start_milliseconds(tenant, OTHER_ROLE)
            threads = workers.threads()
            began = time.perf_counter()
            _submit(tenant, ROLE, count)
            setting.wait(lambda: _open(tenant) == count, 60 + count / 20, pause=0.2)
            accepted_seconds = time.perf_counter() - began
            figures = {
                "open at once": float(_open(tenant)),
                "accepted per second": count / accepted_seconds,
                "seats of workers taken by them": float(_seats_taken()),
                "threads of workers more than before": float(workers.threads() - threads),
                "connections from workers to the agent": float(workers.connections_to(agent.port)),
            }
            rested = time.monotonic()
            with ThreadPoolExecutor(1) as pool:
                beating = pool.submit(_beat, agent.open[:BEATING], rested + hold_seconds)
                figures |= _percentiles("start of another role, none open", idle_probe)
                figures |= _percentiles("start of another role", _start_milliseconds(tenant, OTHER_ROLE))
                figures |= _percentiles("start of the same role", _start_milliseconds(tenant, ROLE))
                figures["heartbeats"] = float(beating.result())
            _expect(_open(tenant) == count, "not all runs are open any more")
            _expect(_living() == 2, "a worker was declared lost")
            _expect_invariants()
            began = time.perf_counter()
            for told in callbacks(agent.open, "complete/", {"output": {"data": {"held": True}}}, CALLERS):
                _expect(told.status == 200 and told.body["accepted"], f"a result was refused: {told}")
            figures["completed per second"] = count / (time.perf_counter() - began)
            setting.wait(lambda: _done(tenant) == count + PROBES * 3)
            relay.flush(30)
            setting.wait(lambda: not examine(quiesced=True).violations, 60, pause=1.0)
    figures["runs that began twice"] = float(_begun_again(tenant))
    return figures


def _tenant(endpoint: str, cap: int) -> Tenant:
    """An accepted run counts against every cap but the seats of workers, so the tenant's cap has to allow them all."""
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
    """From the submission of work that is answered at once to its start, one after the other."""
    found = []
    for _ in range(PROBES):
        with tenant_scope(tenant.pk):
            (item,) = submit(
                [NewActivity(name="probe", agent_role=role, params={"at_once": True})], actor="bench"
            )

        def ended(wanted: Any = item.id) -> bool:
            with tenant_scope(tenant.pk):
                return Activity.objects.filter(pk=wanted, status="done").exists()

        setting.wait(ended, 30, pause=0.005)
        with tenant_scope(tenant.pk):
            created, started = Activity.objects.values_list("created_at", "started_at").get(pk=item.id)
        found.append((started - created).total_seconds() * 1000)
    return sorted(found)


def _beat(runs: Sequence[Callback], until: float) -> int:
    """Send heartbeats for the runs, again and again; how many there were."""
    count = 0
    while (began := time.monotonic()) < until:
        for told in callbacks(runs, "heartbeat/", {"progress": "still at it"}, 1):
            _expect(told.status == 200 and not told.body["stop"], f"a heartbeat was refused: {told}")
            count += 1
        time.sleep(max(0.0, min(began + BEAT_SECONDS, until) - time.monotonic()))
    return count


def _percentiles(what: str, milliseconds: list[float]) -> Figures:
    last = len(milliseconds) - 1
    return {f"{what}, p{cut} ms": milliseconds[round(last * cut / 100)] for cut in (50, 95)}


def _open(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        return int(ActivityRun.objects.filter(status="running", accepted_at__isnull=False).count())


def _done(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        return int(Activity.objects.filter(tenant=tenant, status="done").count())


def _begun_again(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        runs, work = (kind.objects.filter(tenant=tenant).count() for kind in (ActivityRun, Activity))
    return int(runs - work)


def _living() -> int:
    with system_scope():
        return int(WorkerProcess.objects.filter(ended_at=None, beat_at__lte=datetime.now(UTC)).count())


def _seats_taken() -> int:
    name = client().get(keys.pointer())
    used = client().hgetall(keys.generation(name.decode()) + "used") if name else {}
    return sum(int(count) for scope, count in used.items() if scope.startswith(b"seat:"))


def _expect_invariants() -> None:
    found = examine().violations
    _expect(not found, f"invariants are broken: {found}")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


ALL = {"runs_2000": held(2_000), "runs_10000": held(10_000)}
