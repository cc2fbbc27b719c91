"""A loaded host gets no new work, and goes on by itself; a loop of dear agents is slowed down; the registry of workers says all this."""

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
from tests.engine import Engine, at_once, elsewhere, eventually
from tests.superusers import seeing_all

pytestmark = pytest.mark.usefixtures("one_at_a_time")

CALM, HOT = Load(0.2, 0.3), Load(0.99, 0.3)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Host:
    """A host whose load the test sets, and a protection that looks at it when told to."""

    def __init__(self) -> None:
        self.clock, self.load = Clock(), CALM
        self.protection = Protection(read=lambda: self.load, clock=self.clock)


class Intake:
    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def take_only(self, roles: Any) -> None:
        self.told.append(list(roles))


@pytest.fixture
def intake() -> Iterator[Intake]:
    found = Intake()
    activity_intake.use(found)
    yield found
    activity_intake.use(None)


@pytest.fixture
def host(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Host:
    settings.ORCHESTRATOR_TARGET_CPU, settings.ORCHESTRATOR_TARGET_MEMORY = 0.8, 0.9
    settings.ORCHESTRATOR_RAMP_SECONDS = 0.0
    found = Host()
    monkeypatch.setattr("activities.dispatch.PROTECTION", found.protection)
    return found


def look(host: Host, load: Load, seconds: float = 10.0) -> None:
    host.load = load
    host.clock.now += seconds
    host.protection.look()


def test_a_loaded_host_is_granted_nothing_and_goes_on_when_it_is_calm(
    engine: Engine, acme: Tenant, host: Host, intake: Intake
) -> None:
    look(host, HOT)
    (activity_id,) = engine.submit(acme)

    assert engine.drain() == 0
    reason = wait_reasons.why(acme.pk, activity_id)
    assert reason.code == "no_worker"
    assert "processor at 99%, target 80%" in str(reason.holder)
    assert intake.told == [[]]

    look(host, CALM)
    assert engine.drain() == 1
    assert intake.told == [[], ["qa", "dev", "seo"]]
    assert engine.status(acme, activity_id) == "done"


def test_the_doors_do_not_swing(engine: Engine, acme: Tenant, host: Host, intake: Intake) -> None:
    for cpu in (0.81, 0.79, 0.81, 0.76):
        look(host, Load(cpu, 0.1))
    assert len(intake.told) == 1

    look(host, Load(0.74, 0.1))
    assert len(intake.told) == 2


def test_a_moment_of_full_processors_is_no_load_but_full_memory_is(
    engine: Engine, acme: Tenant, host: Host, intake: Intake
) -> None:
    look(host, CALM)
    look(host, Load(1.0, 0.3), seconds=1.0)
    assert intake.told == []

    look(host, Load(0.1, 0.95), seconds=0.1)
    assert intake.told == [[]]
    assert engine.lease.closed == {"*": "memory at 95%, target 90%"}


def test_without_targets_nothing_closes(
    engine: Engine, acme: Tenant, host: Host, settings: Any, intake: Intake
) -> None:
    settings.ORCHESTRATOR_TARGET_CPU = settings.ORCHESTRATOR_TARGET_MEMORY = 0.0

    look(host, Load(1.0, 1.0))

    assert intake.told == []
    assert engine.lease.load == {"cpu": 1.0, "memory": 1.0}  # shown all the same


def test_what_was_granted_before_waits_again_and_uses_up_no_attempt(
    engine: Engine, acme: Tenant, host: Host
) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    assert message is not None
    look(host, HOT)

    tasks.run(**message)

    assert (engine.agent.calls, engine.messages()) == ([], 0)
    look(host, CALM)
    assert engine.drain() == 1
    assert engine.get(acme, activity_id).attempts == 1


def test_work_goes_to_the_worker_whose_doors_are_open(engine: Engine, acme: Tenant, host: Host) -> None:
    other = WorkerProcess.objects.create(
        host="other", boot="b", pid=1, pid_started=1, roles=["qa"], concurrency=1
    )
    look(host, HOT)
    engine.submit(acme, count=3)

    assert engine.messages() == 1  # the other's seat
    other.ended_at = other.started_at
    other.save()


def test_a_grant_that_nobody_took_up_is_taken_back_when_the_last_door_closes(
    engine: Engine, acme: Tenant, host: Host
) -> None:

    (activity_id,) = engine.submit(acme)
    look(host, HOT)

    rebuilding.SlotAudit().compare()

    assert inspect(activity_id)["state"] == "waiting"


def test_a_worker_that_shuts_down_does_not_open_again(engine: Engine, acme: Tenant, host: Host) -> None:
    look(host, HOT)
    engine.lease.drain()
    look(host, CALM)

    assert engine.lease.closed == {"*": "shutting down"}


def test_runs_at_once_grow_one_by_one_and_those_in_place_of_others_wait_for_nothing(
    engine: Engine, acme: Tenant, host: Host, settings: Any
) -> None:
    settings.ORCHESTRATOR_RAMP_SECONDS = 10.0
    protection = host.protection
    began = [protection._take_turn() - host.clock.now for _ in range(3)]
    protection._running -= 1  # one ends

    assert began == [0.0, 10.0, 20.0]
    assert [protection._take_turn() - host.clock.now for _ in range(2)] == [0.0, 30.0]


def test_many_starts_at_once_are_spread(
    engine: Engine, acme: Tenant, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ORCHESTRATOR_TARGET_CPU, settings.ORCHESTRATOR_RAMP_SECONDS = 0.8, 0.15
    protection = Protection(read=lambda: CALM)
    monkeypatch.setattr("activities.dispatch.PROTECTION", protection)
    began: list[float] = []

    def slow(request: AgentRequest) -> AgentResult:
        began.append(time.monotonic())
        time.sleep(0.6)
        return Completed(Output("x"))

    engine.agent.behaviour = slow
    engine.submit(acme, count=3)

    start = time.monotonic()
    at_once(engine.deliver, engine.deliver, engine.deliver)

    assert [moment >= start + turn * 0.15 for turn, moment in enumerate(sorted(began))] == [True] * 3


def test_a_start_that_waits_for_its_turn_is_sent_back_when_the_door_closes(
    engine: Engine, acme: Tenant, host: Host, settings: Any
) -> None:
    settings.ORCHESTRATOR_RAMP_SECONDS = 3600.0
    host.protection._take_turn()  # the turn now is taken
    (activity_id,) = engine.submit(acme)

    def close() -> None:
        eventually(lambda: engine.lease.active == 1)
        look(host, HOT)

    at_once(engine.deliver, close)

    assert engine.status(acme, activity_id) == "created"
    assert engine.agent.calls == []


# --- Readings ---


def test_the_limits_of_a_container_count(tmp_path: Path) -> None:
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
    (group / "cpu.stat").write_text("usage_usec 5000000\n")  # 4 s in 10 s, of 5 that it may

    load = meter.read()

    assert load.memory == pytest.approx(0.95)
    assert load.cpu >= 0.8


def test_a_host_without_limits_of_containers_is_read_as_well(tmp_path: Path) -> None:
    meter = Meter(root=tmp_path / "nothing")

    assert meter.read().cpu == 0.0
    assert 0 <= meter.read().cpu <= 1
    assert 0 < meter.read().memory < 1


# --- The registry ---


def test_a_worker_tells_what_it_works_on_to_whose_work_it_is(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant, host: Host
) -> None:
    shown: list[dict[str, Any]] = []
    clients = api("viewer"), api("viewer", tenant=other_tenant)

    def watch(request: AgentRequest) -> AgentResult:
        elsewhere(engine.lease.beat)
        shown.extend(
            elsewhere(lambda client=client: client.get("/api/v1/workers/").json()["results"][0])
            for client in clients
        )
        return Completed(Output("x"))

    engine.agent.behaviour = watch
    (activity_id,) = engine.submit(acme)
    look(host, CALM)
    engine.drain()

    mine, others = shown
    (run,) = mine["runs"]
    assert (run["activity"], run["agent_role"]) == (str(activity_id), "qa")
    assert run.keys() == {"id", "activity", "agent_role", "session_id", "started_at"}
    assert (mine["active"], mine["utilisation"], mine["load"]) == (1, 0.1, {"cpu": 0.2, "memory": 0.3})
    assert (others["runs"], others["active"]) == ([], 1)


def test_a_worker_says_that_it_shuts_down(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.lease.drain()
    (worker,) = api("viewer").get("/api/v1/workers/").json()["results"]

    assert (worker["draining"], worker["closed"], worker["concurrency"]) == (True, {"*": "shutting down"}, 10)


def test_the_admin_shows_a_worker_with_its_load_its_doors_and_its_runs(
    engine: Engine, acme: Tenant, host: Host
) -> None:
    seeing_all()
    root, pages = Client(), []
    root.login(username="root", password="a long password")
    address = f"/admin/activities/workerprocess/{engine.lease.worker_id}/change/"

    def watch(request: AgentRequest) -> AgentResult:
        pages.append(elsewhere(lambda: root.get(address)).content.decode())
        return Completed(Output("x"))

    engine.agent.behaviour = watch
    engine.submit(acme)
    engine.drain()
    look(host, HOT)
    engine.lease.beat()

    assert "since" in pages[0]
    assert "/admin/activities/activityrun/" in pages[0]
    for page in (address, "/admin/activities/workerprocess/"):
        text = root.get(page).content.decode()
        assert "processor 99%, memory 30%" in text
        assert "of any role: processor at 99%, target 80%" in text
    assert root.post(address, {"concurrency": 99}).status_code == 403
