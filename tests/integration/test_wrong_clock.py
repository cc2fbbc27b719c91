"""A process whose wall clock is an hour wrong decides nothing wrongly, because it uses PostgreSQL's clock and the monotonic one."""

from __future__ import annotations

import subprocess
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
from agents import webhook_signing
from agents.contracts import Accepted
from agents.exceptions import AgentRateLimited, RetryableAgentError
from pipelines.models import Deliverable, Schedule
from pipelines.models.deliverable import Month
from pipelines.schedules import firing
from tenants import clock, tokens
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.tokens import TokenRefused
from tests.engine import Engine, eventually
from tests.receivers import http_receiver
from tests.scheduling import firings, make_schedule
from tests.servers import celery_command

pytestmark = pytest.mark.long

HOUR = timedelta(hours=1)


@pytest.fixture(params=[HOUR, -HOUR], ids=["an hour ahead", "an hour behind"])
def wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[timedelta]:
    """The wall clock of this process is wrong; those of PostgreSQL and the monotonic clock are right."""
    monkeypatch.setattr(clock, "_last", None)
    with time_machine.travel(datetime.now(UTC) + request.param, tick=True):
        yield request.param


def drift(moment: datetime | None) -> float:
    """Seconds between a stored time and PostgreSQL's now."""
    assert moment is not None
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM %s - clock_timestamp())::float8", [moment])
        return float(cursor.fetchone()[0])


def pending_wake(tenant: Tenant, activity_id: Any) -> Wake:
    with tenant_scope(tenant.pk):
        return Wake.objects.get(activity_id=activity_id, state="pending")


def test_the_clock_shows_the_time_of_postgresql(database: None, wrong_clock: timedelta) -> None:
    assert abs(drift(clock.now())) < 60


def test_a_run_that_was_just_accepted_is_not_overdue(
    engine: Engine, tenant: Tenant, wrong_clock: timedelta
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(tenant)
    engine.drain()

    assert recovery.end_overdue_runs() == 0

    assert engine.status(tenant, activity_id) == "in_progress"
    (run,) = engine.runs(tenant, activity_id)
    assert abs(drift(run.accepted_at)) < 300


@pytest.mark.parametrize("error", [RetryableAgentError("busy"), AgentRateLimited("wait", retry_after=1.0)])
def test_a_retry_is_due_after_its_delay(
    engine: Engine, tenant: Tenant, wrong_clock: timedelta, error: Exception
) -> None:
    engine.serve(tenant, retry={"base_seconds": 0.5, "max_attempts": 3, "jitter": 0})

    def fail(request: object) -> Any:
        raise error

    engine.agent.behaviour = fail
    (activity_id,) = engine.submit(tenant)
    engine.drain()

    assert -300 < drift(pending_wake(tenant, activity_id).due_at) < 300


def test_delayed_work_is_offered_at_its_time_and_not_before(
    engine: Engine, tenant: Tenant, wrong_clock: timedelta
) -> None:
    engine.serve(tenant)
    soon = clock.now() + timedelta(seconds=0.3)
    engine.submit(tenant, not_before=soon)
    engine.submit(tenant, not_before=soon + timedelta(minutes=30))

    eventually(lambda: outbox.promote() == 1)

    assert engine.messages() == 1


def test_a_gate_that_is_due_in_half_an_hour_is_not_decided_yet(
    engine: Engine, tenant: Tenant, wrong_clock: timedelta
) -> None:
    rules = {"due_seconds": 1800, "on_timeout": "approve"}
    gate = NewActivity(name="gate", human_role="editor", is_approval_gate=True, decision_rules=rules)
    with tenant_scope(tenant.pk):
        (activity,) = submit([gate], actor="test")

    assert deadlines.pass_due() == 0

    assert engine.status(tenant, activity.id) == "created"
    assert 1700 < drift(engine.get(tenant, activity.id).due_at) < 1801


def test_work_does_not_expire_before_its_time(engine: Engine, tenant: Tenant, wrong_clock: timedelta) -> None:
    (activity_id,) = engine.submit(tenant, expires_at=clock.now() + timedelta(minutes=30))

    recovery.expire_stale()

    assert engine.status(tenant, activity_id) == "created"


def test_a_token_expires_by_the_clock_of_postgresql(tenant: Tenant, wrong_clock: timedelta) -> None:
    good, secret = tokens.create(tenant, "admin", "good", expires_at=clock.now() + timedelta(minutes=30))
    expired, expired_secret = tokens.create(
        tenant, "admin", "expired", expires_at=clock.now() + timedelta(minutes=30)
    )
    with system_scope():
        type(expired).objects.filter(pk=expired.pk).update(expires_at=Now() - timedelta(minutes=30))

    assert tokens.principal_of(secret).tenant_id == good.tenant_id
    with pytest.raises(TokenRefused):
        tokens.principal_of(expired_secret)


def test_a_schedule_fires_due_times_and_no_future_ones(
    engine: Engine, tenant: Tenant, wrong_clock: timedelta
) -> None:
    schedule = make_schedule(tenant, looked_until=clock.now(), interval_ms=600_000)

    assert firing.fire(tenant.pk, schedule.pk) == []
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=schedule.pk).update(next_run_at=Now() - timedelta(seconds=1))
    firing.fire(tenant.pk, schedule.pk)

    assert all(drift(nominal) <= 0 for nominal, _ in firings(schedule))


def test_a_message_is_signed_with_the_time_of_postgresql(database: None, wrong_clock: timedelta) -> None:
    secret = webhook_signing.new_secret()
    clock.now()  # as every process does when it starts to work

    headers = webhook_signing.sign(message_id="1", body=b"{}", secrets=[secret])

    assert abs(drift(datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC))) < 60
    assert webhook_signing.verify(headers=headers, body=b"{}", secrets=[secret])


@pytest.mark.parametrize("days", [-100, 100])
def test_a_new_deliverable_is_due_from_the_next_month(
    database: None, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    following = Month.of(clock.today()).following
    monkeypatch.setattr(clock, "_last", None)

    with time_machine.travel(datetime.now(UTC) + timedelta(days=days), tick=True):
        assert Deliverable().next_on == following


def test_a_batch_of_a_mailbox_is_leased_for_the_requested_time(
    tenant: Tenant, wrong_clock: timedelta
) -> None:
    with tenant_scope(tenant.pk):
        producer.post(tenant.pk, "box", producer.NewItem(text="hello"), actor="test")

    lease = consumer.take(
        tenant.pk,
        "box",
        TakeOptions(consumer="me", lease=timedelta(minutes=5), window=timedelta(0), limit=10),
    )

    assert lease is not None
    assert 200 < drift(lease.batch.leased_until) < 301


def test_the_time_in_a_slow_answer_is_ignored(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.now()

    clock.learn(before + HOUR, requested_at=clock.time.monotonic() - 5.0)

    assert clock.now() - before < HOUR / 2


def last_success(name: str) -> datetime | None:
    """When the system job last succeeded, as the leader recorded it."""
    with system_scope():
        return SystemJob.objects.filter(name=name).values_list("succeeded_at", flat=True).first()


FAKETIME = [
    *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
    *([Path(environ["LIBFAKETIME"])] if "LIBFAKETIME" in environ else []),
]


@contextmanager
def worker_at(offset: str, environment: dict[str, str]) -> Iterator[None]:
    """A worker process that also leads, with a wrong wall clock and a right monotonic clock."""
    fake_clock = {
        "LD_PRELOAD": str(FAKETIME[0]), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
        "ORCHESTRATOR_TICK_SECONDS": "0.2",
    }  # fmt: skip
    program = celery_command("worker", "--pool=threads", "-c", "4", "-n", "wrong_clock@here")
    with subprocess.Popen(
        program, env=environment | fake_clock, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            yield
        finally:
            worker.kill()


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed: `apt install faketime`")
@pytest.mark.parametrize("offset", ["+1h", "-1h"])
@pytest.mark.timeout(180)
def test_a_worker_with_a_wrong_clock_retries_and_ends_runs_in_time(
    engine: Engine, tenant: Tenant, process_environment: dict[str, str], offset: str
) -> None:
    """A retry after half a second, and an accepted run: the first is not an hour late, the second is not overdue at once."""
    with http_receiver() as agent:
        done = orjson.dumps({"output": {"content": "done"}})
        answers = iter(
            [(503, {}, b"{}"), (200, {"Content-Type": "application/json"}, done), (202, {}, b"{}")]
        )
        agent.answer = lambda posted: next(answers)
        fields = {"adapter": "http", "endpoint": agent.url, "retry": {"base_seconds": 0.5, "max_attempts": 3}}
        engine.serve(tenant, "qa", **fields)
        (retried,) = engine.submit(tenant)
        with worker_at(offset, process_environment | {"AGENT_EGRESS_ALLOW": agent.place}):
            eventually(lambda: engine.status(tenant, retried) == "done", 90)
            (accepted,) = engine.submit(tenant)
            eventually(lambda: engine.status(tenant, accepted) == "in_progress", 30)
            eventually(lambda: engine.runs(tenant, accepted)[0].accepted_at is not None, 10)
            before = last_success("overdue runs")
            eventually(lambda: last_success("overdue runs") != before, 20)

            assert engine.status(tenant, accepted) == "in_progress"
