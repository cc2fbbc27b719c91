"""A loaded host gets no new work until it is calm, starts are spread over time, and the list of workers shows load and runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from activities import intake as activity_intake
from activities import tasks, wait_reasons
from activities.admission import inspect, rebuilding
from activities.load_shedding import Load, Meter, Protection
from activities.models import WorkerProcess
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from tenants.models import Tenant
from tests.engine import Engine, eventually, in_another_thread, simultaneously
from tests.superusers import create_superuser

pytestmark = pytest.mark.usefixtures("one_at_a_time")

CALM, LOADED = Load(0.2, 0.3), Load(0.99, 0.3)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Host:
    """A host whose load the test sets, and whose protection checks it when the test says so."""

    def __init__(self) -> None:
        self.clock, self.load = Clock(), CALM
        self.protection = Protection(read=lambda: self.load, clock=self.clock)


class Intake:
    def __init__(self) -> None:
        self.roles: list[list[str]] = []

    def take_only(self, roles: Any) -> None:
        self.roles.append(list(roles))


@pytest.fixture
def intake() -> Iterator[Intake]:
    created = Intake()
    activity_intake.use(created.take_only)
    yield created
    activity_intake.use(None)


@pytest.fixture
def host(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Host:
    settings.ORCHESTRATOR_TARGET_CPU, settings.ORCHESTRATOR_TARGET_MEMORY = 0.8, 0.9
    settings.ORCHESTRATOR_RAMP_SECONDS = 0.0
    created = Host()
    monkeypatch.setattr("activities.dispatch.PROTECTION", created.protection)
    return created


def check_load(host: Host, load: Load, seconds: float = 10.0) -> None:
    host.load = load
    host.clock.now += seconds
    host.protection.measure()


def test_a_loaded_host_gets_no_grants_until_it_is_calm(
    engine: Engine, acme: Tenant, host: Host, intake: Intake
) -> None:
    check_load(host, LOADED)
    (activity_id,) = engine.submit(acme)

    assert engine.drain() == 0
    reason = wait_reasons.why(acme.pk, activity_id)
    assert reason.code == "no_worker"
    assert "processor at 99%, target 80%" in str(reason.holder)
    assert intake.roles == [[]]

    check_load(host, CALM)
    assert engine.drain() == 1
    assert intake.roles == [[], ["qa", "dev", "seo"]]
    assert engine.status(acme, activity_id) == "done"


def test_a_host_reopens_only_well_below_the_target(
    engine: Engine, acme: Tenant, host: Host, intake: Intake
) -> None:
    for cpu in (0.81, 0.79, 0.81, 0.76):
        check_load(host, Load(cpu, 0.1))
    assert len(intake.roles) == 1

    check_load(host, Load(0.74, 0.1))
    assert len(intake.roles) == 2


def test_a_short_peak_of_the_processor_is_ignored_and_full_memory_is_not(
    engine: Engine, acme: Tenant, host: Host, intake: Intake
) -> None:
    check_load(host, CALM)
    check_load(host, Load(1.0, 0.3), seconds=1.0)
    assert intake.roles == []

    check_load(host, Load(0.1, 0.95), seconds=0.1)
    assert intake.roles == [[]]
    assert engine.lease.closed == "memory at 95%, target 90%"


def test_without_targets_a_loaded_host_stays_open(
    engine: Engine, acme: Tenant, host: Host, settings: Any, intake: Intake
) -> None:
    settings.ORCHESTRATOR_TARGET_CPU = settings.ORCHESTRATOR_TARGET_MEMORY = 0.0

    check_load(host, Load(1.0, 1.0))

    assert intake.roles == []
    assert engine.lease.load == {"cpu": 1.0, "memory": 1.0}  # the load is still shown


def test_granted_work_waits_again_on_a_loaded_host_without_using_an_attempt(
    engine: Engine, acme: Tenant, host: Host
) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    assert message is not None
    check_load(host, LOADED)

    tasks.run(**message)

    assert (engine.agent.calls, engine.messages()) == ([], 0)
    check_load(host, CALM)
    assert engine.drain() == 1
    assert engine.get(acme, activity_id).attempts == 1


def test_work_goes_to_the_worker_that_is_not_loaded(engine: Engine, acme: Tenant, host: Host) -> None:
    other = WorkerProcess.objects.create(
        host="other", boot="b", pid=1, pid_started=1, roles=["qa"], concurrency=1
    )
    check_load(host, LOADED)
    engine.submit(acme, count=3)

    assert engine.messages() == 1  # the seat of the other worker
    other.ended_at = other.started_at
    other.save()


def test_an_unused_grant_is_withdrawn_when_the_last_host_is_loaded(
    engine: Engine, acme: Tenant, host: Host
) -> None:

    (activity_id,) = engine.submit(acme)
    check_load(host, LOADED)

    rebuilding.SlotAudit().compare()

    assert inspect(activity_id)["state"] == "waiting"


def test_a_worker_that_shuts_down_stays_closed(engine: Engine, acme: Tenant, host: Host) -> None:
    check_load(host, LOADED)
    engine.lease.drain()
    check_load(host, CALM)

    assert engine.lease.closed == "shutting down"


def test_concurrency_grows_step_by_step_and_replacements_start_at_once(
    engine: Engine, acme: Tenant, host: Host, settings: Any
) -> None:
    settings.ORCHESTRATOR_RAMP_SECONDS = 10.0
    protection = host.protection
    waits = [protection._take_turn() - host.clock.now for _ in range(3)]
    protection._running -= 1  # one ends

    assert waits == [0.0, 10.0, 20.0]
    assert [protection._take_turn() - host.clock.now for _ in range(2)] == [0.0, 30.0]


def test_many_starts_at_once_are_spread_over_time(
    engine: Engine, acme: Tenant, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ORCHESTRATOR_TARGET_CPU, settings.ORCHESTRATOR_RAMP_SECONDS = 0.8, 0.15
    protection = Protection(read=lambda: CALM)
    monkeypatch.setattr("activities.dispatch.PROTECTION", protection)
    waits: list[float] = []

    def slow(request: AgentRequest) -> AgentResult:
        waits.append(time.monotonic())
        time.sleep(0.6)
        return Completed(Output("x"))

    engine.agent.behaviour = slow
    engine.submit(acme, count=3)

    start = time.monotonic()
    simultaneously(engine.deliver, engine.deliver, engine.deliver)

    assert [moment >= start + turn * 0.15 for turn, moment in enumerate(sorted(waits))] == [True] * 3


def test_a_start_that_waits_for_its_turn_is_released_when_the_host_is_loaded(
    engine: Engine, acme: Tenant, host: Host, settings: Any
) -> None:
    settings.ORCHESTRATOR_RAMP_SECONDS = 3600.0
    host.protection._take_turn()  # uses the current turn
    (activity_id,) = engine.submit(acme)

    def close() -> None:
        eventually(lambda: engine.lease.active == 1)
        check_load(host, LOADED)

    simultaneously(engine.deliver, close)

    assert engine.status(acme, activity_id) == "created"
    assert engine.agent.calls == []


# --- Readings ---


def test_the_limits_of_a_container_are_used(tmp_path: Path) -> None:
    clock = Clock()
    group = tmp_path
    (group / "cpu.max").write_text("50000 100000\n")  # half a processor
    (group / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 1\n")
    (group / "memory.max").write_text("1000\n")
    (group / "memory.current").write_text("990\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 40\n")
    meter = Meter(root=tmp_path, clock=clock)
    meter.read()
    clock.now += 10
    (group / "cpu.stat").write_text("usage_usec 5000000\n")  # 4 s of the 5 s allowed in 10 s

    load = meter.read()

    assert load.memory == pytest.approx(0.95)
    assert load.cpu >= 0.8


def test_a_host_without_limits_of_a_container_is_measured(tmp_path: Path) -> None:
    meter = Meter(root=tmp_path / "nothing")

    assert meter.read().cpu == 0.0
    assert 0 <= meter.read().cpu <= 1
    assert 0 < meter.read().memory < 1


# --- The list of workers ---


def test_a_worker_shows_a_tenant_only_its_own_runs(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant, host: Host
) -> None:
    workers: list[dict[str, Any]] = []
    clients = api("viewer"), api("viewer", tenant=other_tenant)

    def watch(request: AgentRequest) -> AgentResult:
        in_another_thread(engine.lease.beat)
        workers.extend(
            in_another_thread(lambda client=client: client.get("/api/v1/workers/").json()["results"][0])
            for client in clients
        )
        return Completed(Output("x"))

    engine.agent.behaviour = watch
    (activity_id,) = engine.submit(acme)
    check_load(host, CALM)
    engine.drain()

    mine, theirs = workers
    (run,) = mine["runs"]
    assert (run["activity"], run["agent_role"]) == (str(activity_id), "qa")
    assert run.keys() == {"id", "activity", "agent_role", "session_id", "started_at"}
    assert (mine["active"], mine["utilisation"], mine["load"]) == (1, 0.1, {"cpu": 0.2, "memory": 0.3})
    assert (theirs["runs"], theirs["active"]) == ([], 1)


def test_a_worker_shows_that_it_shuts_down(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.lease.drain()
    (worker,) = api("viewer").get("/api/v1/workers/").json()["results"]

    assert (worker["draining"], worker["closed"], worker["concurrency"]) == (True, {"*": "shutting down"}, 10)


def test_the_admin_shows_load_closed_roles_and_runs_of_a_worker(
    engine: Engine, acme: Tenant, host: Host
) -> None:
    create_superuser()
    root, pages = Client(), []
    root.login(username="root", password="a long password")
    address = f"/admin/activities/workerprocess/{engine.lease.worker_id}/change/"

    def watch(request: AgentRequest) -> AgentResult:
        pages.append(in_another_thread(lambda: root.get(address)).content.decode())
        return Completed(Output("x"))

    engine.agent.behaviour = watch
    engine.submit(acme)
    engine.drain()
    check_load(host, LOADED)
    engine.lease.beat()

    assert "since" in pages[0]
    assert "/admin/activities/activityrun/" in pages[0]
    for page in (address, "/admin/activities/workerprocess/"):
        text = root.get(page).content.decode()
        assert "processor 99%, memory 30%" in text
        assert "processor at 99%, target 80%" in text
    assert root.post(address, {"concurrency": 99}).status_code == 403
