"""The log of events: what is written when, in which order it is read, and that nothing is ever missed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction
from django.utils import timezone

from activities import cancellation, dead_letters
from activities.alerts import raise_alert
from activities.human_tasks import approvals
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
from tests.engine import Engine, at_once, elsewhere, eventually
from tests.flows import BROKEN, Flow, answering, step
from tests.network import proxy_to
from tests.plans import asked_of, rows_read
from tests.scheduling import HOUR, NOON, fire, make_schedule


def kinds(tenant: Tenant, after: int | None = None, **wanted: Any) -> list[str]:
    return [event.kind for event in log.page(tenant.pk, after, 1_000, EventFilter(**wanted)).events]


def happens(tenant: Tenant, count: int = 1) -> None:
    """So many events, each an alert."""
    with tenant_scope(tenant.pk):
        for _ in range(count):
            raise_alert(tenant.pk, AlertKind.TEST, "Something", platform=False)


def test_an_activity_leaves_an_event_for_each_of_its_steps(engine: Engine, tenant: Tenant) -> None:
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


def test_what_is_rolled_back_leaves_no_event(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        raise_alert(tenant.pk, AlertKind.TEST, "Never", platform=False)
        transaction.set_rollback(True, using=APP)

    assert kinds(tenant) == []


def test_a_gate_asks_and_is_decided(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    [activity] = engine.submit(tenant, requires_approval=True)
    engine.drain()

    approvals.approve(tenant.pk, activity, actor="user:eva")

    told = kinds(tenant)
    assert told.count("approval.requested") == 1
    assert told.count("approval.decided") == 1
    assert "activity.waiting" in told
    assert "activity.approved" in told


def test_cancelled_and_failed_work_says_so(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    cancellation.cancel(tenant.pk, activity, actor="user:eva")

    assert kinds(tenant, activity=activity) == ["activity.created", "activity.cancelled"]


@pytest.mark.parametrize(
    ("code", "told"),
    [("no_budget_left", "no_budget_left"), ("Dear editor, I failed", None)],
    ids=["a name", "a text"],
)
def test_a_failure_tells_the_code_of_its_error_and_the_attempts(
    engine: Engine, tenant: Tenant, code: str, told: str | None
) -> None:
    def fails(request: Any) -> Any:
        error = RetryableAgentError if request.attempt < 2 else PermanentAgentError
        raise error("no", code=code)

    engine.agent.behaviour = fails
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    engine.drain()
    engine.make_due(tenant)
    engine.drain()

    page = log.page(tenant.pk, None, 100, EventFilter(activity=activity)).events
    (failed,) = [event.data for event in page if event.kind == "activity.failed"]
    assert (failed["attempts"], failed.get("error_code")) == (2, told)
    assert not any("attempts" in event.data for event in page if event.kind != "activity.failed")


def test_no_text_of_agents_or_people_is_in_an_event(engine: Engine, tenant: Tenant) -> None:
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


def test_an_event_that_commits_late_is_read_after_those_that_were_faster(tenant: Tenant) -> None:
    """The slow transaction has the lower id: a reader that went by ids would have passed it for ever."""
    written, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        try:
            with tenant_scope(tenant.pk):
                raise_alert(tenant.pk, AlertKind.OVERDUE, "Slow", platform=False)
                written.set()
                assert go_on.wait(10)
        finally:
            connections.close_all()

    slow = threading.Thread(target=slowly)
    slow.start()
    assert written.wait(10)
    elsewhere(lambda: happens(tenant))
    first = log.page(tenant.pk, None, 100)
    go_on.set()
    slow.join()

    second = log.page(tenant.pk, first.cursor, 100)

    assert [event.data["alert_kind"] for event in first.events] == ["test"]
    assert [event.data["alert_kind"] for event in second.events] == ["overdue"]
    assert (first.events[0].number, second.events[0].number) == (1, 2)


def test_eight_writers_and_four_readers_leave_no_gap_and_miss_nothing(tenant: Tenant) -> None:
    seen: list[list[int]] = [[] for _ in range(4)]
    done = threading.Event()
    left = [8]
    lock = threading.Lock()

    def write() -> None:
        for _ in range(10):
            happens(tenant, 2)
        with lock:
            left[0] -= 1
            if not left[0]:
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

    outcomes = at_once(*[write] * 8, *[lambda mine=mine: read(mine) for mine in seen])

    assert outcomes == [None] * 12
    assert seen == [list(range(1, 161))] * 4


def test_numbers_are_given_once_when_many_read_at_once(tenant: Tenant) -> None:
    happens(tenant, 30)

    numbered = at_once(*[lambda: log.number(tenant.pk, limit=10)] * 6)

    assert sum(numbered) == 30
    with tenant_scope(tenant.pk):
        assert list(Event.objects.order_by("number").values_list("number", flat=True)) == list(range(1, 31))
        assert not FreshEvent.objects.exists()


def test_each_tenant_has_numbers_and_a_log_of_its_own(tenant: Tenant, other_tenant: Tenant) -> None:
    happens(tenant, 3)
    happens(other_tenant)

    assert [event.number for event in log.page(tenant.pk, None, 100).events] == [1, 2, 3]
    assert [event.number for event in log.page(other_tenant.pk, None, 100).events] == [1]


def test_row_security_alone_keeps_tenants_apart(tenant: Tenant, other_tenant: Tenant) -> None:
    happens(other_tenant)
    log.number(other_tenant.pk)
    happens(other_tenant)

    with tenant_scope(tenant.pk):
        assert not Event.objects.filter().exists()
        assert not FreshEvent.objects.filter().exists()


def test_the_leader_numbers_for_webhooks_and_leaves_what_nobody_reads(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.create(tenant=tenant, url="https://example.com/")
    with tenant_scope(other_tenant.pk):
        WebhookEndpoint.objects.create(tenant=other_tenant, url="https://example.com/", enabled=False)
    happens(tenant, 2)
    happens(other_tenant)

    assert log.number_all() == 2
    assert log.number_all() == 0
    assert [event.number for event in log.page(other_tenant.pk, None, 100).events] == [1]


def test_a_failure_read_after_it_was_mended_is_told_as_it_was(engine: Engine, tenant: Tenant) -> None:
    def fails(request: AgentRequest) -> AgentResult:
        error = RetryableAgentError if request.attempt < 2 else PermanentAgentError
        raise error("no", code="no_such_client")

    engine.agent.behaviour = fails
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    engine.drain()
    engine.make_due(tenant)
    engine.drain()
    engine.agent.behaviour = answering({})
    with tenant_scope(tenant.pk):
        dead_letters.replay(tenant.pk, DeadLetter.objects.for_tenant(tenant.pk), actor="test")
    engine.drain()
    with tenant_scope(tenant.pk):
        assert Activity.objects.get(pk=activity).status == "done"

    events = log.page(tenant.pk, None, 100, EventFilter(frozenset({"activity.failed"}))).events

    assert [(event.data["error_code"], event.data["attempts"]) for event in events] == [("no_such_client", 2)]


def test_events_of_a_deleted_activity_leave_no_gap(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    engine.drain()
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("DELETE FROM activities_activityevent WHERE activity_id = %s", [activity])
    happens(tenant)

    assert [(event.number, event.kind) for event in log.page(tenant.pk, None, 100).events] == [
        (1, "alert.raised")
    ]


def test_a_page_of_a_long_unread_log_says_that_there_is_more(tenant: Tenant, monkeypatch: Any) -> None:
    monkeypatch.setattr(log, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(log, "BATCH", 2)
    happens(tenant, 5)

    pages, cursor, more = [], 0, True
    while more:
        page = log.page(tenant.pk, cursor, 100)
        pages.append([event.number for event in page.events])
        cursor, more = page.cursor, page.more

    assert pages == [[1, 2], [3, 4], [5]]


def test_what_nobody_has_read_in_time_is_dropped_and_who_stopped_before_it_is_told(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    happens(tenant)
    last = log.page(tenant.pk, None, 100).cursor
    engine.serve(tenant)
    engine.submit(tenant)
    happens(other_tenant)
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("UPDATE activities_activityevent SET at = at - interval '8 days'")

    assert log.purge_logs() == 1
    happens(tenant)

    with pytest.raises(EventsGone):
        log.page(tenant.pk, last, 100)
    assert [event.number for event in log.page(tenant.pk, None, 100).events] == [3]
    assert [event.number for event in log.page(other_tenant.pk, None, 100).events] == [1]


def test_a_long_unread_log_is_numbered_before_somebody_waits_for_it(tenant: Tenant, monkeypatch: Any) -> None:
    monkeypatch.setattr(log, "UNREAD", 3)
    happens(tenant, 3)
    log.purge_logs()
    with tenant_scope(tenant.pk):
        assert not Event.objects.exists()
    happens(tenant)

    log.purge_logs()

    with tenant_scope(tenant.pk):
        assert Event.objects.count() == 4


def test_old_events_go_and_whoever_comes_too_late_is_told(tenant: Tenant, settings: Any) -> None:
    happens(tenant, 3)
    log.number(tenant.pk)
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("UPDATE tenants_event SET at = at - interval '8 days' WHERE number <= 2")

    assert log.purge_logs() == 2

    with pytest.raises(EventsGone) as refusal:
        log.page(tenant.pk, 1, 100)
    assert refusal.value.problem_members == {"oldest": 3, "last": 3}
    assert [event.number for event in log.page(tenant.pk, 2, 100).events] == [3]
    assert [event.number for event in log.page(tenant.pk, None, 100).events] == [3]


def test_a_number_that_was_never_given_is_gone_as_well(tenant: Tenant) -> None:
    """As after a restore of the database: going on silently would skip what comes up to there."""
    with pytest.raises(EventsGone):
        log.page(tenant.pk, 5, 100)


def test_a_filter_that_fits_nothing_still_gets_on(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WINDOW", 4)
    happens(tenant, 6)

    page = log.page(tenant.pk, 0, 100, EventFilter(frozenset({"dead_letter"})))

    assert (list(page.events), page.cursor, page.more) == ([], 4, True)
    page = log.page(tenant.pk, page.cursor, 100, EventFilter(frozenset({"dead_letter"})))
    assert (page.cursor, page.more) == (6, False)


def test_a_burst_sends_one_notification_and_only_where_somebody_listens(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    """NOTIFY makes commits wait for each other, so work that nobody follows must not pay for it."""
    listener = Listener()
    assert listener.socket() is not None
    log.follow(tenant.pk)

    happens(tenant, 3)
    happens(tenant)
    happens(other_tenant)
    notifications = listener._connection.notifies  # type: ignore[union-attr]
    first = [*notifications(timeout=10, stop_after=1), *notifications(timeout=0.2)]
    log.number(tenant.pk)
    happens(tenant)

    assert [told.payload for told in first] == [str(tenant.pk)]
    eventually(lambda: listener.receive() == {tenant.pk})
    listener.close()


def test_a_listener_whose_connection_goes_silent_takes_a_new_one_and_is_notified_again(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, now = connections.settings[SYSTEM], [0.0]
    listener = Listener(clock=lambda: now[0])
    with proxy_to(settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432)) as between:
        with monkeypatch.context() as through:
            through.setitem(settings, "PORT", str(between.port))
            assert listener.socket() is not None
        log.follow(tenant.pk)
        between.fall_silent()
        happens(tenant)
        listener.prove()
        now[0] += SILENT_SECONDS + 0.1
        assert listener.receive() == set()

        listener.prove()

        assert not listener.is_connected
        assert listener.socket() is not None
        log.number(tenant.pk)
        happens(tenant)
        eventually(lambda: listener.receive() == {tenant.pk})
        listener.close()


def test_a_listener_to_whom_nothing_happens_notifies_itself_and_keeps_its_connection(database: None) -> None:
    now = [0.0]
    listener = Listener(clock=lambda: now[0])
    kept = listener.socket()
    for _ in range(4):
        listener.prove()
        heard = listener._heard
        now[0] += PROOF_SECONDS
        eventually(lambda before=heard: listener.receive() == set() and listener._heard > before)  # type: ignore[misc]

    assert listener.socket() == kept
    listener.close()


def test_a_listener_does_not_wait_for_a_silent_server(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = base.of(connections[SYSTEM].get_connection_params())
    with monkeypatch.context() as patched:
        patched.setattr(heard, "is_known", True)
        patched.setattr(heard, "suspect", lambda: None)
        listener = Listener()

        assert listener.socket() is None
        assert not listener.is_connected


def test_what_has_happened_cannot_be_changed(tenant: Tenant) -> None:
    happens(tenant)
    log.number(tenant.pk)

    with pytest.raises(Exception, match="permission denied"), tenant_scope(tenant.pk):
        Event.objects.update(kind="dead_letter")
    with (
        pytest.raises(Exception, match="permission denied"),
        system_scope(),
        transaction.atomic(using=SYSTEM),
    ):
        Event.objects.update(kind="dead_letter")


def test_a_page_of_the_api_has_what_was_just_done(
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
    ],
)
@pytest.mark.parametrize("accepted", ["application/json", "text/event-stream"])
def test_what_cannot_be_asked_for_is_a_400(
    api: Callable[..., Any], accepted: str, query: str, path: str
) -> None:
    answer = api("viewer").get(f"/api/v1/events/?{query}", headers={"Accept": accepted})

    assert answer.status_code == 400
    assert [fault["path"] for fault in answer.json()["errors"]] == [path]


def test_an_id_that_is_no_longer_kept_is_a_410(api: Callable[..., Any]) -> None:
    answer = api("viewer").get("/api/v1/events/?after=7", headers={"Accept": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (410, "events_gone")
    assert (answer.json()["oldest"], answer.json()["last"]) == (1, 0)


def test_a_run_of_a_pipeline_is_told_of_and_found_by_its_id(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    failed = Flow(engine, tenant, step("a"), step("b", "a")).drain(a={}, b=BROKEN)

    told = kinds(tenant, pipeline_run=failed.id)

    assert told[0] == "pipeline_run.started"
    assert {"activity.completed", "activity.failed", "pipeline_run.failed", "dead_letter"} <= set(told)


def test_a_schedule_that_fires_and_a_budget_that_is_used_up_are_told_of(
    engine: Engine, tenant: Tenant
) -> None:
    fire(make_schedule(tenant), NOON + HOUR)
    with tenant_scope(tenant.pk):
        budget = Budget.objects.create(tenant=tenant, name="Ads", cap=1, period_start=timezone.now().date())
        own = Budget.objects.filter(pk=budget.pk)
        own.update(spent=1)
        own.update(warned_at=timezone.now())
        own.update(waiting_since=timezone.now() - timedelta(minutes=1))
        own.update(waiting_since=timezone.now())

    told = kinds(tenant)

    assert told[0] == "schedule.fired"
    assert told[-2:] == ["budget.warning", "budget.exceeded"]


def test_numbering_reads_the_fresh_events_of_its_tenant_alone(tenant: Tenant, other_tenant: Tenant) -> None:
    def arrive(owner: Tenant, count: int) -> None:
        with tenant_scope(owner.pk):
            FreshEvent.objects.bulk_create(
                FreshEvent(tenant_id=owner.pk, kind="alert.raised", at=timezone.now(), data={})
                for _ in range(count)
            )

    arrive(other_tenant, 2_000)
    arrive(tenant, 5)
    with asked_of(APP) as asked:
        assert log.number(tenant.pk) == 5
    sql, params = next((sql, params) for _, sql, params in asked if "DELETE FROM tenants_freshevent" in sql)
    arrive(tenant, 5)

    with tenant_scope(tenant.pk):
        assert rows_read(APP, sql, {**params, "last": 5}) < 100
