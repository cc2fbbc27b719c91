"""A process whose wall clock is an hour wrong changes nothing: PostgreSQL's clock decides, and monotonic time is carried on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from os import environ
from pathlib import Path
from typing import Any

import orjson
import pytest
import time_machine
from django.db import connections
from django.db.models.functions import Now

from activities import outbox
from activities.human_tasks import deadlines
from activities.mailboxes import consumer, producer
from activities.mailboxes.consumer import TakeOptions
from activities.maintenance import recovery
from activities.models import SystemJob, Wake
from activities.submission import NewActivity, submit
from agents.contracts import Accepted
from agents.exceptions import AgentRateLimited, RetryableAgentError
from pipelines.models import Schedule
from pipelines.schedules import firing
from tenants import clock, tokens
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.tokens import TokenRefused
from tests.engine import Engine, eventually
from tests.receivers import http_receiver
from tests.scheduling import firings, make_schedule

pytestmark = pytest.mark.long

HOUR = timedelta(hours=1)


@pytest.fixture(params=[HOUR, -HOUR], ids=["an hour ahead", "an hour behind"])
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[timedelta]:
    """This process believes that it is another time; PostgreSQL and the monotonic clock do not."""
    monkeypatch.setattr(clock, "_last", None)
    with time_machine.travel(datetime.now(UTC) + request.param, tick=True):
        yield request.param


def drift(moment: datetime | None) -> float:
    """Seconds between a stored time and PostgreSQL's now."""
    assert moment is not None
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM %s - clock_timestamp())::float8", [moment])
        return float(cursor.fetchone()[0])


def the_wake(tenant: Tenant, activity_id: Any) -> Wake:
    with tenant_scope(tenant.pk):
        return Wake.objects.get(activity_id=activity_id, state="pending")


def test_the_clock_says_what_postgresql_says(database: None, wrong: timedelta) -> None:
    assert abs(drift(clock.now())) < 5


def test_a_run_that_its_agent_accepts_is_not_over_its_time(
    engine: Engine, tenant: Tenant, wrong: timedelta
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(tenant)
    engine.drain()

    assert recovery.end_overdue_runs() == 0

    assert engine.status(tenant, activity_id) == "in_progress"
    (run,) = engine.runs(tenant, activity_id)
    assert abs(drift(run.accepted_at)) < 30


@pytest.mark.parametrize("error", [RetryableAgentError("busy"), AgentRateLimited("wait", retry_after=1.0)])
def test_a_retry_is_due_when_it_is_due(
    engine: Engine, tenant: Tenant, wrong: timedelta, error: Exception
) -> None:
    engine.serve(tenant, retry={"base_seconds": 0.5, "max_attempts": 3, "jitter": 0})

    def fails(request: object) -> Any:
        raise error

    engine.agent.behaviour = fails
    (activity_id,) = engine.submit(tenant)
    engine.drain()

    assert -30 < drift(the_wake(tenant, activity_id).due_at) < 30


def test_work_that_has_its_time_begins_then_and_not_before(
    engine: Engine, tenant: Tenant, wrong: timedelta
) -> None:
    engine.serve(tenant)
    soon = clock.now() + timedelta(seconds=0.3)
    engine.submit(tenant, not_before=soon)
    engine.submit(tenant, not_before=soon + timedelta(minutes=30))

    eventually(lambda: outbox.promote() == 1)

    assert engine.messages() == 1


def test_a_gate_that_is_due_in_half_an_hour_is_not_decided(
    engine: Engine, tenant: Tenant, wrong: timedelta
) -> None:
    rules = {"due_seconds": 1800, "on_timeout": "approve"}
    gate = NewActivity(name="gate", human_role="editor", is_approval_gate=True, decision_rules=rules)
    with tenant_scope(tenant.pk):
        (asked,) = submit([gate], actor="test")

    assert deadlines.pass_due() == 0

    assert engine.status(tenant, asked.id) == "created"
    assert 1700 < drift(engine.get(tenant, asked.id).due_at) < 1801


def test_work_expires_at_its_time(engine: Engine, tenant: Tenant, wrong: timedelta) -> None:
    (activity_id,) = engine.submit(tenant, expires_at=clock.now() + timedelta(minutes=30))

    recovery.expire_stale()

    assert engine.status(tenant, activity_id) == "created"


def test_a_token_is_good_until_postgresql_says_that_its_time_is_over(
    tenant: Tenant, wrong: timedelta
) -> None:
    good, secret = tokens.create(tenant, "admin", "good", expires_at=clock.now() + timedelta(minutes=30))
    over, other = tokens.create(tenant, "admin", "over", expires_at=clock.now() + timedelta(minutes=30))
    with system_scope():
        type(over).objects.filter(pk=over.pk).update(expires_at=Now() - timedelta(minutes=30))

    assert tokens.principal_of(secret).tenant_id == good.tenant_id
    with pytest.raises(TokenRefused):
        tokens.principal_of(other)


def test_a_schedule_fires_what_has_come_and_nothing_ahead(
    engine: Engine, tenant: Tenant, wrong: timedelta
) -> None:
    schedule = make_schedule(tenant, looked_until=clock.now(), interval_ms=600_000)

    assert firing.fire(tenant.pk, schedule.pk) == []
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=schedule.pk).update(next_run_at=Now() - timedelta(seconds=1))
    firing.fire(tenant.pk, schedule.pk)

    assert all(drift(nominal) <= 0 for nominal, _ in firings(schedule))


def test_a_batch_of_a_mailbox_is_lent_for_as_long_as_was_asked(tenant: Tenant, wrong: timedelta) -> None:
    with tenant_scope(tenant.pk):
        producer.post(tenant.pk, "box", producer.NewItem(text="hello"), actor="test")

    taken = consumer.take(
        tenant.pk,
        "box",
        TakeOptions(consumer="me", lease=timedelta(minutes=5), window=timedelta(0), limit=10),
    )

    assert taken is not None
    assert 290 < drift(taken.batch.leased_until) < 301


def test_what_an_answer_that_took_long_says_of_the_time_is_not_believed(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = clock.now()

    clock.tell(before + HOUR, asked_at=clock.time.monotonic() - 5.0)

    assert clock.now() - before < HOUR / 2


def job_runs(name: str) -> datetime | None:
    """When the job last ended well, as the leader has written it down."""
    with system_scope():
        return SystemJob.objects.filter(name=name).values_list("succeeded_at", flat=True).first()


FAKETIME = [
    *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
    *([Path(environ["LIBFAKETIME"])] if "LIBFAKETIME" in environ else []),
]


@contextmanager
def worker_at(offset: str, environment: dict[str, str]) -> Iterator[None]:
    """A worker of its own process, which does the upkeep as well, on a machine whose wall clock is wrong and whose monotonic is not."""
    faked = {
        "LD_PRELOAD": str(FAKETIME[0]), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
        "ORCHESTRATOR_TICK_SECONDS": "0.2",
    }  # fmt: skip
    program = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "orchestrator",
        "worker",
        "--pool=threads",
        "-c",
        "4",
        "-n",
        "wrong@here",
    ]
    with subprocess.Popen(
        program, env=environment | faked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            yield
        finally:
            worker.kill()


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed: `apt install faketime`")
@pytest.mark.parametrize("offset", ["+1h", "-1h"])
@pytest.mark.timeout(180)
def test_a_worker_on_a_machine_whose_clock_is_wrong_does_its_work_in_time(
    engine: Engine, tenant: Tenant, process_environment: dict[str, str], offset: str
) -> None:
    """A retry after half a second, and an agent that accepts: neither an hour late, nor over its time at once."""
    with http_receiver() as agent:
        done = orjson.dumps({"output": {"content": "done"}})
        said = iter([(503, {}, b"{}"), (200, {"Content-Type": "application/json"}, done), (202, {}, b"{}")])
        agent.answer = lambda posted: next(said)
        fields = {"adapter": "http", "endpoint": agent.url, "retry": {"base_seconds": 0.5, "max_attempts": 3}}
        engine.serve(tenant, "qa", **fields)
        (retried,) = engine.submit(tenant)
        with worker_at(offset, process_environment | {"AGENT_EGRESS_ALLOW": agent.place}):
            eventually(lambda: engine.status(tenant, retried) == "done", 90)
            (accepted,) = engine.submit(tenant)
            eventually(lambda: engine.status(tenant, accepted) == "in_progress", 30)
            eventually(lambda: engine.runs(tenant, accepted)[0].accepted_at is not None, 10)
            runs_looked_at = "overdue runs"
            before = job_runs(runs_looked_at)
            eventually(
                lambda: job_runs(runs_looked_at) != before, 20
            )  # upkeep has looked for overdue runs since

            assert engine.status(tenant, accepted) == "in_progress"
