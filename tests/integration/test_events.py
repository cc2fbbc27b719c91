"""The event log: which events are written, in which order they are read, and that none is missed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction
from django.utils import timezone

from activities import cancellation, dead_letters
from activities.alerts import raise_alert
from activities.human_tasks import decisions
from activities.models import Activity, DeadLetter
from activities.models.alert import AlertKind
from agents.contracts import AgentRequest, AgentResult
from agents.exceptions import PermanentAgentError, RetryableAgentError
from tenants.context import APP, OWNER, SYSTEM, system_scope, tenant_scope
from tenants.events import log
from tenants.events.hub import PROOF_SECONDS, SILENT_SECONDS, Listener
from tenants.events.log import EventFilter, EventsGone
from tenants.models import Budget, Tenant
from tenants.models.events import Event, FreshEvent, WebhookEndpoint
from tenants.postgresql import base
from tests import servers
from tests.engine import Engine, eventually, in_another_thread, simultaneously
from tests.flows import BROKEN, Flow, answer_by_step, step
from tests.network import proxy_to
from tests.plans import recorded_statements, rows_read
from tests.scheduling import HOUR, NOON, fire, make_schedule


def kinds(tenant: Tenant, after: int | None = None, **wanted: Any) -> list[str]:
    return [event.kind for event in log.page(tenant.pk, after, 1_000, EventFilter(**wanted)).events]


def raise_events(tenant: Tenant, count: int = 1) -> None:
    """Cause this many events, by alerts."""
    with tenant_scope(tenant.pk):
        for _ in range(count):
            raise_alert(tenant.pk, AlertKind.TEST, "Something", platform=False)


def test_an_activity_has_an_event_for_each_of_its_steps(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    engine.drain()

    events = log.page(tenant.pk, None, 100).events

    assert [event.kind for event in events] == [
        "activity.created",
        "activity.assigned",
        "activity.started",
        "activity.completed",
    ]
    assert [event.number for event in events] == [1, 2, 3, 4]
    assert {event.activity_id for event in events} == {activity}
    assert events[-1].data["status"] == "done"
    assert events[-1].data["agent_role"] == "qa"


def test_a_rolled_back_transaction_leaves_no_event(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        raise_alert(tenant.pk, AlertKind.TEST, "Never", platform=False)
        transaction.set_rollback(True, using=APP)

    assert kinds(tenant) == []


def test_a_gate_has_events_for_request_and_decision(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    [activity] = engine.submit(tenant, requires_approval=True)
    engine.drain()

    decisions.approve(tenant.pk, activity, actor="user:eva")

    event_kinds = kinds(tenant)
    assert event_kinds.count("approval.requested") == 1
    assert event_kinds.count("approval.decided") == 1
    assert "activity.waiting" in event_kinds
    assert "activity.approved" in event_kinds


def test_cancelled_work_has_an_event(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    cancellation.cancel(tenant.pk, activity, actor="user:eva")

    assert kinds(tenant, activity=activity) == ["activity.created", "activity.cancelled"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [("no_budget_left", "no_budget_left"), ("Dear editor, I failed", None)],
    ids=["a name", "a text"],
)
def test_the_event_of_a_failure_has_its_error_code_and_attempts(
    engine: Engine, tenant: Tenant, code: str, expected: str | None
) -> None:
    def fail(request: Any) -> Any:
        error = RetryableAgentError if request.attempt < 2 else PermanentAgentError
        raise error("no", code=code)

    engine.agent.behaviour = fail
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    engine.drain()
    engine.make_due(tenant)
    engine.drain()

    page = log.page(tenant.pk, None, 100, EventFilter(activity=activity)).events
    (failed,) = [event.data for event in page if event.kind == "activity.failed"]
    assert (failed["attempts"], failed.get("error_code")) == (2, expected)
    assert not any("attempts" in event.data for event in page if event.kind != "activity.failed")


def test_events_contain_no_text_of_agents_or_people(engine: Engine, tenant: Tenant) -> None:
    def refuse(request: Any) -> Any:
        raise PermanentAgentError("canary of the agent")

    engine.agent.behaviour = refuse
    engine.serve(tenant)
    engine.submit(tenant, description="canary of a person", params={"topic": "canary"})
    engine.drain()
    with tenant_scope(tenant.pk):
        raise_alert(tenant.pk, AlertKind.TEST, "canary", body="canary", platform=False)

    events = log.page(tenant.pk, None, 100).events

    assert {"activity.failed", "dead_letter", "alert.raised"} <= {event.kind for event in events}
    assert "canary" not in str([vars(event) for event in events])


def test_an_event_that_commits_late_is_read_after_faster_ones(tenant: Tenant) -> None:
    """The slow transaction has the lower id, so a reader by ids would miss it for ever."""
    written, go_on = threading.Event(), threading.Event()

    def raise_slowly() -> None:
        try:
            with tenant_scope(tenant.pk):
                raise_alert(tenant.pk, AlertKind.OVERDUE, "Slow", platform=False)
                written.set()
                assert go_on.wait(60)
        finally:
            connections.close_all()

    slow = threading.Thread(target=raise_slowly)
    slow.start()
    assert written.wait(60)
    in_another_thread(lambda: raise_events(tenant))
    first = log.page(tenant.pk, None, 100)
    go_on.set()
    slow.join()

    second = log.page(tenant.pk, first.cursor, 100)

    assert [event.data["alert_kind"] for event in first.events] == ["test"]
    assert [event.data["alert_kind"] for event in second.events] == ["overdue"]
    assert (first.events[0].number, second.events[0].number) == (1, 2)


def test_concurrent_readers_see_all_events_of_concurrent_writers_without_gaps(tenant: Tenant) -> None:
    numbers_read: list[list[int]] = [[] for _ in range(4)]
    done = threading.Event()
    writers_left = [8]
    lock = threading.Lock()

    def write() -> None:
        for _ in range(10):
            raise_events(tenant, 2)
        with lock:
            writers_left[0] -= 1
            if not writers_left[0]:
                done.set()

    def read(mine: list[int]) -> None:
        cursor, last_round = 0, False
        while True:
            page = log.page(tenant.pk, cursor, 7)
            mine += [event.number for event in page.events]
            cursor = page.cursor
            if last_round and not page.more:
                return
            last_round = done.is_set()

    outcomes = simultaneously(*[write] * 8, *[lambda mine=mine: read(mine) for mine in numbers_read])

    assert outcomes == [None] * 12
    assert numbers_read == [list(range(1, 161))] * 4


def test_concurrent_numbering_gives_each_number_once(tenant: Tenant) -> None:
    raise_events(tenant, 30)

    numbered = simultaneously(*[lambda: log.number(tenant.pk, limit=10)] * 6)

    assert sum(numbered) == 30
    with tenant_scope(tenant.pk):
        assert list(Event.objects.order_by("number").values_list("number", flat=True)) == list(range(1, 31))
        assert not FreshEvent.objects.exists()


def test_each_tenant_has_its_own_log_and_numbers(tenant: Tenant, other_tenant: Tenant) -> None:
    raise_events(tenant, 3)
    raise_events(other_tenant)

    assert [event.number for event in log.page(tenant.pk, None, 100).events] == [1, 2, 3]
    assert [event.number for event in log.page(other_tenant.pk, None, 100).events] == [1]


def test_row_level_security_alone_separates_the_logs_of_tenants(tenant: Tenant, other_tenant: Tenant) -> None:
    raise_events(other_tenant)
    log.number(other_tenant.pk)
    raise_events(other_tenant)

    with tenant_scope(tenant.pk):
        assert not Event.objects.filter().exists()
        assert not FreshEvent.objects.filter().exists()


def test_the_leader_numbers_only_the_logs_of_tenants_with_webhooks(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.create(tenant=tenant, url="https://example.com/")
    with tenant_scope(other_tenant.pk):
        WebhookEndpoint.objects.create(tenant=other_tenant, url="https://example.com/", enabled=False)
    raise_events(tenant, 2)
    raise_events(other_tenant)

    assert log.number_all() == 2
    assert log.number_all() == 0
    assert [event.number for event in log.page(other_tenant.pk, None, 100).events] == [1]


def test_a_tenant_whose_log_cannot_be_numbered_keeps_no_other_from_its_webhooks(
    tenant: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = log.number

    def fail_for_one(tenant_id: UUID, limit: int = log.BATCH) -> int:
        if tenant_id == tenant.pk:
            raise ZeroDivisionError
        return number(tenant_id, limit)

    monkeypatch.setattr(log, "number", fail_for_one)
    monkeypatch.setattr(log, "NUMBERING_SECONDS", 60.0)
    monkeypatch.setattr(log, "_WITH_WEBHOOKS", log._WITH_WEBHOOKS.replace("random()", "w.tenant_id"))
    for each in (tenant, other_tenant):
        with tenant_scope(each.pk):
            WebhookEndpoint.objects.create(tenant=each, url="https://example.com/")
        raise_events(each)

    assert tenant.pk < other_tenant.pk
    assert log.number_all() == 1


def test_a_tenant_whose_unread_log_cannot_be_shortened_keeps_that_of_no_other(
    tenant: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    drop = log._drop_unread

    def fail_for_one(tenant_id: UUID, before: datetime, limit: int) -> int:
        if tenant_id == tenant.pk:
            raise ZeroDivisionError
        return drop(tenant_id, before, limit)

    monkeypatch.setattr(log, "_drop_unread", fail_for_one)
    settings.ORCHESTRATOR_EVENT_DAYS = 0
    raise_events(tenant)
    raise_events(other_tenant, 2)

    assert tenant.pk < other_tenant.pk
    assert log.purge_logs() == 2


def test_the_event_of_a_failure_is_unchanged_after_a_successful_replay(
    engine: Engine, tenant: Tenant
) -> None:
    def fail(request: AgentRequest) -> AgentResult:
        error = RetryableAgentError if request.attempt < 2 else PermanentAgentError
        raise error("no", code="no_such_client")

    engine.agent.behaviour = fail
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    engine.drain()
    engine.make_due(tenant)
    engine.drain()
    engine.agent.behaviour = answer_by_step({})
    with tenant_scope(tenant.pk):
        dead_letters.replay(tenant.pk, DeadLetter.objects.for_tenant(tenant.pk), actor="test")
    engine.drain()
    with tenant_scope(tenant.pk):
        assert Activity.objects.get(pk=activity).status == "done"

    events = log.page(tenant.pk, None, 100, EventFilter(frozenset({"activity.failed"}))).events

    assert [(event.data["error_code"], event.data["attempts"]) for event in events] == [("no_such_client", 2)]


def test_deleted_unnumbered_events_leave_no_gap(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    engine.drain()
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("DELETE FROM activities_activityevent WHERE activity_id = %s", [activity])
    raise_events(tenant)

    assert [(event.number, event.kind) for event in log.page(tenant.pk, None, 100).events] == [
        (1, "alert.raised")
    ]


def test_a_page_of_a_long_unnumbered_log_says_that_there_is_more(tenant: Tenant, monkeypatch: Any) -> None:
    monkeypatch.setattr(log, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(log, "BATCH", 2)
    raise_events(tenant, 5)

    pages, cursor, more = [], 0, True
    while more:
        page = log.page(tenant.pk, cursor, 100)
        pages.append([event.number for event in page.events])
        cursor, more = page.cursor, page.more

    assert pages == [[1, 2], [3, 4], [5]]


def test_old_unread_events_are_deleted_and_readers_before_them_get_an_error(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    raise_events(tenant)
    last = log.page(tenant.pk, None, 100).cursor
    engine.serve(tenant)
    engine.submit(tenant)
    raise_events(other_tenant)
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("UPDATE activities_activityevent SET at = at - interval '8 days'")

    assert log.purge_logs() == 1
    raise_events(tenant)

    with pytest.raises(EventsGone):
        log.page(tenant.pk, last, 100)
    assert [event.number for event in log.page(tenant.pk, None, 100).events] == [3]
    assert [event.number for event in log.page(other_tenant.pk, None, 100).events] == [1]


def test_a_long_unread_log_is_numbered_in_advance(tenant: Tenant, monkeypatch: Any) -> None:
    monkeypatch.setattr(log, "UNREAD", 3)
    raise_events(tenant, 3)
    log.purge_logs()
    with tenant_scope(tenant.pk):
        assert not Event.objects.exists()
    raise_events(tenant)

    log.purge_logs()

    with tenant_scope(tenant.pk):
        assert Event.objects.count() == 4


def test_old_events_are_deleted_and_late_readers_get_an_error(tenant: Tenant, settings: Any) -> None:
    raise_events(tenant, 3)
    log.number(tenant.pk)
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("UPDATE tenants_event SET at = at - interval '8 days' WHERE number <= 2")

    assert log.purge_logs() == 2

    with pytest.raises(EventsGone) as refusal:
        log.page(tenant.pk, 1, 100)
    assert refusal.value.problem_members == {"oldest": 3, "last": 3}
    assert [event.number for event in log.page(tenant.pk, 2, 100).events] == [3]
    assert [event.number for event in log.page(tenant.pk, None, 100).events] == [3]


def test_reading_after_a_number_that_does_not_exist_is_an_error(tenant: Tenant) -> None:
    """As after a restore of the database, where continuing would skip the events up to that number."""
    with pytest.raises(EventsGone):
        log.page(tenant.pk, 5, 100)


def test_a_page_without_matching_events_still_advances_the_cursor(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "WINDOW", 4)
    raise_events(tenant, 6)

    page = log.page(tenant.pk, 0, 100, EventFilter(frozenset({"dead_letter"})))

    assert (list(page.events), page.cursor, page.more) == ([], 4, True)
    page = log.page(tenant.pk, page.cursor, 100, EventFilter(frozenset({"dead_letter"})))
    assert (page.cursor, page.more) == (6, False)


def test_a_burst_sends_one_notification_and_only_for_followed_tenants(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    """NOTIFY serializes commits, so tenants whom nobody follows must not use it."""
    listener = Listener()
    assert listener.socket() is not None
    log.follow(tenant.pk)

    raise_events(tenant, 3)
    raise_events(tenant)
    raise_events(other_tenant)
    notifications = listener._connection.notifies  # type: ignore[union-attr]
    first = [*notifications(timeout=10, stop_after=1), *notifications(timeout=0.2)]
    log.number(tenant.pk)
    raise_events(tenant)

    assert [notification.payload for notification in first] == [str(tenant.pk)]
    eventually(lambda: listener.receive() == {tenant.pk})
    listener.close()


def test_a_listener_with_a_silent_connection_reconnects_and_is_notified_again(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, now = connections.settings[SYSTEM], [0.0]
    listener = Listener(clock=lambda: now[0])
    with proxy_to(*servers.postgres_address()) as proxy:
        with monkeypatch.context() as patched:
            patched.setitem(settings, "HOST", "127.0.0.1")
            patched.setitem(settings, "PORT", str(proxy.port))
            assert listener.socket() is not None
        log.follow(tenant.pk)
        proxy.stall()
        raise_events(tenant)
        listener.prove()
        now[0] += SILENT_SECONDS + 0.1
        assert listener.receive() == set()

        listener.prove()

        assert not listener.is_connected
        assert listener.socket() is not None
        log.number(tenant.pk)
        raise_events(tenant)
        eventually(lambda: listener.receive() == {tenant.pk})
        listener.close()


def test_an_idle_listener_notifies_itself_and_keeps_its_connection(database: None) -> None:
    now = [0.0]
    listener = Listener(clock=lambda: now[0])
    connection = listener.socket()
    for _ in range(4):
        listener.prove()
        last_heard = listener._heard
        now[0] += PROOF_SECONDS
        eventually(lambda before=last_heard: listener.receive() == set() and listener._heard > before)  # type: ignore[misc]

    assert listener.socket() == connection
    listener.close()


def test_a_listener_does_not_wait_for_a_silent_server(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_heard = base.of(connections[SYSTEM].get_connection_params())
    with monkeypatch.context() as patched:
        patched.setattr(last_heard, "is_known", True)
        patched.setattr(last_heard, "suspect", lambda: None)
        listener = Listener()

        assert listener.socket() is None
        assert not listener.is_connected


def test_events_cannot_be_changed(tenant: Tenant) -> None:
    raise_events(tenant)
    log.number(tenant.pk)

    with pytest.raises(Exception, match="permission denied"), tenant_scope(tenant.pk):
        Event.objects.update(kind="dead_letter")
    with (
        pytest.raises(Exception, match="permission denied"),
        system_scope(),
        transaction.atomic(using=SYSTEM),
    ):
        Event.objects.update(kind="dead_letter")


def test_the_api_returns_the_newest_events_at_once(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(tenant)
    ids = engine.submit(tenant, count=3)

    client = api("viewer")
    page = client.get("/api/v1/events/?limit=2", headers={"Accept": "application/json"}).json()

    assert [event["kind"] for event in page["results"]] == ["activity.created"] * 2
    rest = client.get(page["next"], headers={"Accept": "application/json"}).json()
    assert (rest["next"], rest["cursor"], len(rest["results"])) == (None, 3, 1)
    one = client.get(
        f"/api/v1/events/?activity={ids[1]}&kind=activity.created&kind=dead_letter",
        headers={"Accept": "application/json"},
    ).json()
    assert [UUID(event["activity"]) for event in one["results"]] == [ids[1]]
    theirs = api("admin", tenant=other_tenant).get("/api/v1/events/", headers={"Accept": "application/json"})
    assert theirs.json()["results"] == []


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("kinds=activity.created", "kinds"),
        ("kind=activity.creatd", "kind"),
        ("activity=17", "activity"),
        (f"activity={UUID(int=1)}&activity={UUID(int=2)}", "activity"),
        ("after=-1", "after"),
        ("after=99999999999999999999", "after"),
        ("limit=0", "limit"),
        ("cursor=7", "cursor"),
    ],
)
@pytest.mark.parametrize("accepted", ["application/json", "text/event-stream"])
def test_an_invalid_query_is_refused_with_400(
    api: Callable[..., Any], accepted: str, query: str, path: str
) -> None:
    answer = api("viewer").get(f"/api/v1/events/?{query}", headers={"Accept": accepted})

    assert answer.status_code == 400
    assert [fault["path"] for fault in answer.json()["errors"]] == [path]


def test_an_id_that_is_no_longer_stored_is_answered_with_410(api: Callable[..., Any]) -> None:
    answer = api("viewer").get("/api/v1/events/?after=7", headers={"Accept": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (410, "events_gone")
    assert (answer.json()["oldest"], answer.json()["last"]) == (1, 0)


def test_events_of_a_pipeline_run_can_be_filtered_by_its_id(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    failed = Flow(engine, tenant, step("a"), step("b", "a")).drain(a={}, b=BROKEN)

    event_kinds = kinds(tenant, pipeline_run=failed.id)

    assert event_kinds[0] == "pipeline_run.started"
    assert {"activity.completed", "activity.failed", "pipeline_run.failed", "dead_letter"} <= set(event_kinds)


def test_fired_schedules_and_exhausted_budgets_have_events(engine: Engine, tenant: Tenant) -> None:
    fire(make_schedule(tenant), NOON + HOUR)
    with tenant_scope(tenant.pk):
        budget = Budget.objects.create(tenant=tenant, name="Ads", cap=1, period_start=timezone.now().date())
        only_this_budget = Budget.objects.filter(pk=budget.pk)
        only_this_budget.update(spent=1)
        only_this_budget.update(warned_at=timezone.now())
        only_this_budget.update(waiting_since=timezone.now() - timedelta(minutes=1))
        only_this_budget.update(waiting_since=timezone.now())

    event_kinds = kinds(tenant)

    assert event_kinds[0] == "schedule.fired"
    assert event_kinds[-2:] == ["budget.warning", "budget.exceeded"]


def test_numbering_reads_only_the_new_events_of_its_tenant(tenant: Tenant, other_tenant: Tenant) -> None:
    def add_events(owner: Tenant, count: int) -> None:
        with tenant_scope(owner.pk):
            FreshEvent.objects.bulk_create(
                FreshEvent(tenant_id=owner.pk, kind="alert.raised", at=timezone.now(), data={})
                for _ in range(count)
            )

    add_events(other_tenant, 2_000)
    add_events(tenant, 5)
    with recorded_statements(APP) as statements:
        assert log.number(tenant.pk) == 5
    sql, params = next(
        (sql, params) for _, sql, params in statements if "DELETE FROM tenants_freshevent" in sql
    )
    add_events(tenant, 5)

    with tenant_scope(tenant.pk):
        assert rows_read(APP, sql, {**params, "last": 5}) < 100
