"""A worker process stops while threads of it are still at work: its lease stays ended, and nobody begins another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from activities import intake, leases, relay, tasks
from activities.load_shedding import Load, Protection
from activities.models import WorkerProcess
from agents.contracts import Completed, Output
from tenants.context import system_scope
from tenants.models import Tenant
from tests.engine import Engine


def living() -> list[WorkerProcess]:
    with system_scope():
        return list(WorkerProcess.objects.filter(ended_at=None))


@pytest.fixture(autouse=True)
def nothing_beats_afterwards(engine: Engine) -> Iterator[None]:
    yield
    leases.end()
    relay.flush()
    assert living() == []
    hearts = [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    for heart in hearts:
        heart.join(60)
    assert not any(heart.is_alive() for heart in hearts)


def test_a_run_that_outlasts_the_lease_is_recorded_and_nothing_follows(engine: Engine, acme: Tenant) -> None:
    first, second = engine.submit(acme, count=2)

    def stop(request: Any) -> Completed:
        leases.end()
        return Completed(Output(content="just in time"))

    engine.agent.behaviour = stop
    engine.deliver()

    assert living() == []
    assert (engine.status(acme, first), engine.status(acme, second)) == ("done", "created")


def test_a_message_that_arrives_after_the_end_leaves_its_work_to_others(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    assert message is not None

    leases.end()
    tasks.run(**message)

    assert living() == []
    assert engine.agent.calls == []
    engine.replace_worker()
    engine.drain()
    assert engine.status(acme, activity_id) == "done"


def test_what_looks_after_a_process_that_stops_begins_no_lease(engine: Engine) -> None:
    leases.end()

    Protection(read=lambda: Load(cpu=0.0, memory=0.0)).measure()
    intake.close("too much")
    intake.open_again()
    intake.serve(["dev", "qa"])

    assert living() == []
    assert leases.current().open_roles() == []


def test_a_beat_on_its_way_while_the_lease_ends_does_not_register_the_process_again(engine: Engine) -> None:
    leases.end()

    engine.lease.beat()

    assert living() == []


def test_a_process_that_begins_twice_beats_once(engine: Engine) -> None:
    second = leases.begin(roles=["qa"], concurrency=1, watched=False)

    assert [worker.pk for worker in living()] == [second.worker_id]
