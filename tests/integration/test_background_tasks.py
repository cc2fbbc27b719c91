"""Background tasks: rows wait in PostgreSQL, and messages are only hints, which may be lost, repeated or late."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import current_app
from celery.app.control import Inspect
from django.db import connections
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from activities import background_tasks, outputs, publishing
from activities.alerts import raise_alert
from activities.background_tasks import BackgroundTask, Reminder
from activities.models import Activity, AlertDelivery, NotificationChannel
from activities.notifications import backends, delivery
from activities.submission import NewActivity, submit
from agents import configuration
from agents.contracts import AgentRequest, Completed, Output
from agents.models import Agent
from agents.routing import SYSTEM_QUEUES, notification_queue, queue_of, select_queues, serves_new_roles
from tenants.context import APP, POOL, SYSTEM, tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tests.engine import eventually
from tests.quick_python import Program
from tests.receivers import http_receiver
from tests.servers import celery_command
from tests.upkeep import new_leader

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

QUEUE = "digest"


def do_nothing() -> int:
    return 0


def exists(tenant_slug: str) -> Callable[[], Any]:
    """Return a query that has a result while a tenant of this name exists."""
    return lambda: Tenant.objects.filter(slug=tenant_slug, created_at__lte=Now())


@pytest.fixture(autouse=True)
def only_own_tasks(database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(background_tasks, "_tasks", {})
    background_tasks._waiting_query.cache_clear()
    yield
    background_tasks._waiting_query.cache_clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the time of the reminder by the first element of the returned list."""
    now = [1000.0]
    monkeypatch.setattr(background_tasks.time, "monotonic", lambda: now[0])
    return now


@contextmanager
def statements() -> Iterator[list[str]]:
    texts: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        texts.append(sql)
        return execute(sql, params, many, context)

    with connections[SYSTEM].execute_wrapper(note):
        yield texts


def register(name: str, slug: str = "acme", queue: str = QUEUE, **fields: Any) -> None:
    background_tasks.register(
        BackgroundTask(name, queue, f"tests.{name}", do_nothing, exists(slug), **fields)
    )


def messages(queue: str = QUEUE) -> list[dict[str, Any]]:
    """Return the messages of a queue, the oldest first."""
    return [json.loads(raw) for raw in reversed(client().lrange(queue, 0, -1))]


def names(queue: str = QUEUE) -> list[str]:
    return [message["headers"]["task"] for message in messages(queue)]


def test_waiting_rows_cause_a_hint_at_once(tenant: Tenant) -> None:
    register("digest", arguments={"kind": "daily"})

    assert Reminder().remind() == ["digest"]

    (message,) = messages()
    assert message["headers"]["task"] == "tests.digest"
    assert json.loads(base64.b64decode(message["body"]))[1] == {"kind": "daily"}
    assert message["properties"]["delivery_info"]["routing_key"] == QUEUE


def test_no_hint_is_sent_when_no_rows_wait(tenant: Tenant) -> None:
    register("digest", slug="somebody-else")

    assert (Reminder().remind(), messages()) == ([], [])


def test_a_hint_is_repeated_after_three_seconds_and_not_before(tenant: Tenant, clock: list[float]) -> None:
    register("digest")
    reminder = Reminder()
    hinted = []

    for second in (0.0, 1.0, 2.0, 3.0, 4.0, 6.0):
        clock[0] = 1000.0 + second
        if reminder.remind():
            hinted.append(second)
            client().delete(QUEUE)  # consumed, or lost

    assert hinted == [0.0, 3.0, 6.0]


def test_without_a_worker_the_queue_holds_one_hint(tenant: Tenant, clock: list[float]) -> None:
    register("digest")
    reminder = Reminder()

    for _ in range(20):
        reminder.remind()
        clock[0] += 5.0

    assert len(messages()) == 1


def test_a_lost_hint_loses_nothing(tenant: Tenant, clock: list[float]) -> None:
    register("digest")
    reminder = Reminder()
    reminder.remind()
    client().flushdb()
    clock[0] += 3.0

    assert reminder.remind() == ["digest"]
    assert len(messages()) == 1


def test_tasks_that_share_a_queue_take_turns(tenant: Tenant, clock: list[float]) -> None:
    register("first")
    register("second")
    reminder = Reminder()
    sent = []

    for _ in range(8):
        reminder.remind()
        sent += names()
        client().delete(QUEUE)
        clock[0] += 3.0

    assert sorted(sent[:2]) == ["tests.first", "tests.second"]
    assert (sent.count("tests.first"), sent.count("tests.second")) == (4, 4)


def test_one_statement_checks_all_tasks(tenant: Tenant) -> None:
    for number, queue in enumerate(SYSTEM_QUEUES):
        register(f"errand-{number}", queue=queue, slug="acme" if number % 2 else "nobody")

    with statements() as executed:
        hinted = Reminder().remind()

    assert len(executed) == 1
    assert sorted(hinted) == [f"errand-{number}" for number in range(1, len(SYSTEM_QUEUES), 2)]


def test_a_task_whose_check_takes_too_long_is_hinted_and_keeps_no_other_from_its_hint(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_long() -> Any:
        return Tenant.objects.filter(RawSQL("pg_sleep(60) IS NOT NULL", (), BooleanField()))

    background_tasks.register(BackgroundTask("slow", QUEUE, "tests.slow", do_nothing, wait_for_long))
    register("digest", queue="dead-letter")
    register("nothing", queue="batches", slug="nobody")
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SET statement_timeout = '100ms'")
        try:
            assert sorted(Reminder().remind()) == ["digest", "slow"]
        finally:
            cursor.execute("RESET statement_timeout")


def test_only_tasks_without_a_fresh_hint_are_checked(tenant: Tenant, clock: list[float]) -> None:
    register("digest")
    register("later", slug="nobody", queue="dead-letter")
    reminder = Reminder()
    reminder.remind()
    register("later", queue="dead-letter")
    clock[0] += 1.0

    assert reminder.remind() == ["later"]


def test_a_condition_may_contain_any_text(tenant: Tenant) -> None:
    odd = "100 %(of) 'odd' -- %s\\"
    with tenant_scope(tenant.pk):
        Tenant.objects.filter(pk=tenant.pk).update(name=odd)
    for name, queue, text in (("odd", QUEUE, odd), ("even", "dead-letter", odd.replace("%", "%%"))):
        background_tasks.register(
            BackgroundTask(
                name, queue, f"tests.{name}", do_nothing, lambda text=text: Tenant.objects.filter(name=text)
            )
        )

    assert Reminder().remind() == ["odd"]


def test_tasks_with_a_fresh_hint_are_not_checked(tenant: Tenant, clock: list[float]) -> None:
    register("digest")
    reminder = Reminder()
    reminder.remind()
    clock[0] += 1.0

    with statements() as executed:
        reminder.remind()

    assert executed == []


def test_a_condition_uses_the_time_of_the_check(tenant: Tenant) -> None:
    """The query is cached, so it must not contain the time of its creation."""
    with tenant_scope(tenant.pk):
        Tenant.objects.filter(pk=tenant.pk).update(created_at=Now() + timedelta(hours=1))
    register("digest")
    before = Reminder().remind()
    with tenant_scope(tenant.pk):
        Tenant.objects.filter(pk=tenant.pk).update(created_at=Now())

    assert (before, Reminder().remind()) == ([], ["digest"])


def test_registering_again_replaces(tenant: Tenant) -> None:
    register("digest", slug="nobody")
    Reminder().remind()
    register("digest", slug="acme")

    assert Reminder().remind() == ["digest"]
    assert len(messages()) == 1


def test_other_tasks_are_checked_with_another_query(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    register("digest", slug="nobody")
    Reminder().remind()
    other = BackgroundTask("other", QUEUE, "tests.other", do_nothing, exists("acme"))

    monkeypatch.setattr(background_tasks, "_tasks", {"other": other})

    assert Reminder().remind() == ["other"]


def test_a_queue_without_consumers_is_refused() -> None:
    with pytest.raises(ValueError, match="not among"):
        register("digest", queue="agent__seo")


def test_an_unreachable_broker_raises_an_error_for_the_leader_and_hints_follow_later(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    register("digest")
    reminder = Reminder()

    def fail(self: Any, name: Any) -> Any:
        raise redis.ConnectionError("away")

    with monkeypatch.context() as patched:
        patched.setattr(redis.Redis, "llen", fail)
        with pytest.raises(redis.ConnectionError):
            reminder.remind()

    clock[0] += 1.0
    assert reminder.remind() == ["digest"]


def test_the_leader_sends_hints_once_a_second(tenant: Tenant, clock: list[float]) -> None:
    register("digest")
    register("other", slug="nobody", queue="dead-letter")
    keeper = new_leader()

    with statements() as executed:
        keeper.tick()
        keeper.tick()

    assert names() == ["tests.digest"]
    assert len([sql for sql in executed if sql.startswith("SELECT 'digest' AS name")]) == 1


def test_a_hint_expires_later_than_clocks_may_differ(tenant: Tenant) -> None:
    register("digest")

    Reminder().remind()

    expires = datetime.fromisoformat(messages()[0]["headers"]["expires"])
    assert timedelta(hours=23) < expires - datetime.now(UTC) <= timedelta(days=1)


def test_hints_to_another_broker_go_through_celery(
    tenant: Tenant, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(publishing, "_redis_broker", lambda pid: None)
    monkeypatch.setattr(current_app, "send_task", lambda name, **options: sent.append((name, options)))
    register("digest")

    Reminder().remind()

    ((name, options),) = sent
    assert (name, options["queue"], options["kwargs"]) == ("tests.digest", QUEUE, {})
    assert options["expires"] > datetime.now(UTC)


def test_every_kind_of_channel_has_a_task_on_its_own_queue() -> None:
    counts = {}
    for kind in ("slack", "email", "webhook"):
        errand = BackgroundTask(
            f"alerts-{kind}",
            notification_queue(kind),
            "tests.alerts",
            do_nothing,
            lambda: delivery.waiting("x"),
        )
        background_tasks.register(errand)
        counts[kind] = errand.queue

    assert counts == {kind: f"notifications__{kind}" for kind in counts}
    assert set(counts.values()) <= set(SYSTEM_QUEUES)
    assert Reminder().remind() == []


@pytest.mark.parametrize(
    ("options", "queues"),
    [
        ([], [queue_of("qa"), queue_of("seo"), *SYSTEM_QUEUES]),
        (["agent__seo"], ["agent__seo"]),
        (["dead-letter"], ["dead-letter"]),
        (["agent__seo", "system"], ["agent__seo", "system", *SYSTEM_QUEUES]),
        (["system"], ["system", *SYSTEM_QUEUES]),
        (["agent__*"], [queue_of("qa"), queue_of("seo")]),
        (
            ["agent__s*", "agent__seo", "agent__new", "system"],
            ["agent__seo", "agent__new", "system", *SYSTEM_QUEUES],
        ),
    ],
)
def test_a_worker_consumes_the_queues_that_it_was_told_to(options: list[str], queues: list[str]) -> None:
    assert select_queues(options, {"seo", "qa"}) == queues


def test_the_queues_that_others_rely_on_exist() -> None:
    assert set(SYSTEM_QUEUES) >= {
        "dead-letter", "deliverable-period", "webhook-outbound", "digest",
        "notifications__slack", "notifications__email", "notifications__webhook",
    }  # fmt: skip
    assert current_app.conf.task_default_queue in SYSTEM_QUEUES


#: The longest wait for a process to start or end on a busy machine. A process that has died fails the test at once.
PATIENCE_SECONDS = 240.0


class RealWorker:
    """A worker in a separate process, which can be inspected."""

    def __init__(self, process: Program, inspect: Inspect) -> None:
        self.process, self.inspect = process, inspect

    def eventually(self, condition: Callable[[], Any]) -> None:
        def is_true() -> Any:
            assert self.process.poll() is None, "the worker has ended"
            return condition()

        eventually(is_true, seconds=PATIENCE_SECONDS)

    def answers(self, name: str) -> Any:
        """Return the worker's answer to an inspection, once it has started."""
        answers: dict[str, Any] = {}
        self.eventually(lambda: answers.update(getattr(self.inspect, name)() or {}) or answers)
        (answer,) = answers.values()
        return answer


@contextmanager
def real_worker(environment: dict[str, str], name: str, *arguments: str) -> Iterator[RealWorker]:
    worker = Program(
        celery_command("worker", "--pool=threads", "-n", name, *arguments),
        env={key: value for key, value in environment.items() if not key.startswith("WORKER_CONCURRENCY")},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        # With `limit=1` an inspection ends with the first answer instead of at the time-out.
        yield RealWorker(worker, current_app.control.inspect([name], timeout=2.0, limit=1))
    finally:
        worker.terminate()
        assert worker.wait(PATIENCE_SECONDS) == 0


def tell_of_connections(request: AgentRequest) -> Completed:
    """Return whether the agent's thread holds a connection to PostgreSQL while it works."""
    holds = hasattr(connections._connections, APP)  # type: ignore[attr-defined]
    return Completed(Output(content="", data={"shares": POOL.is_on, "holds": holds}))


def test_a_role_that_is_added_while_a_worker_runs_is_served_by_it(
    process_environment: dict[str, str], tenant: Tenant
) -> None:
    role, queues = "young-role", "agent__young-*,queue:chief_of_staff,queue:digest"
    with real_worker(process_environment, f"{role}@here", "-Q", queues) as worker:
        before = {queue["name"] for queue in worker.answers("active_queues")}
        threads = worker.answers("stats")["pool"]["max-concurrency"]
        agent = Agent(role=role, name="Young", adapter="inline", endpoint=f"{__name__}:tell_of_connections")
        agent.save(force_insert=True)
        try:
            configuration.forget()
            with tenant_scope(tenant.pk):
                (activity_id,) = submit([NewActivity(name="first work", agent_role=role)], actor="test")

            worker.eventually(lambda: status_of(tenant, activity_id.id) == "done")
            after = {queue["name"] for queue in worker.answers("active_queues")}
            assert output_of(tenant, activity_id.id) == {"shares": True, "holds": False}
        finally:
            Agent.objects.filter(role=role).update(enabled=False)
            configuration.forget()

    assert after - before == {queue_of(role)}
    assert before == {"agent__chief-of-staff", "digest"}
    assert threads == 16


def test_a_worker_that_names_its_roles_keeps_to_them() -> None:
    assert [serves_new_roles(options) for options in ([], ["agent__*"], ["system", "agent__a?"], ["agent__seo"], ["system"])] == [
        True, True, True, False, False,
    ]  # fmt: skip


def status_of(tenant: Tenant, activity_id: UUID) -> str:
    with tenant_scope(tenant.pk):
        return Activity.objects.get(pk=activity_id).status


def output_of(tenant: Tenant, activity_id: UUID) -> Any:
    with tenant_scope(tenant.pk):
        reference = Activity.objects.get(pk=activity_id).output_ref
    return outputs.read(tenant.pk, reference).data


def test_a_worker_for_the_system_alone_delivers_an_alert(
    process_environment: dict[str, str], tenant: Tenant, settings: Any
) -> None:
    """No other process sends a message: the worker's own reminder sees the waiting row and sends one to the worker's queue."""
    with http_receiver() as receiver:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (receiver.place,)
        channel = NotificationChannel(tenant=tenant, kind="webhook", name="hook")
        backends.put_target(channel, receiver.url)
        with tenant_scope(tenant.pk):
            channel.save(force_insert=True)
            raise_alert(tenant.pk, "dead_letter", "It failed")
        environment = {**process_environment, "AGENT_EGRESS_ALLOW": receiver.place}

        with real_worker(environment, "system@here", "-Q", "system") as worker:
            worker.eventually(lambda: receiver.posted)
            queues = {queue["name"] for queue in worker.answers("active_queues")}
            threads = worker.answers("stats")["pool"]["max-concurrency"]

    assert (queues, threads) == ({"system", *SYSTEM_QUEUES}, 4)
    assert [posted.json["data"]["title"] for posted in receiver.posted] == ["It failed"]
    with tenant_scope(tenant.pk):
        assert AlertDelivery.objects.get().state == "sent"
