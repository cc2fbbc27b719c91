"""Mailboxes of agents: which messages share a run, and that failures and kills lose none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.db.models.functions import Now
from rest_framework.test import APIClient

from activities import cancellation, outbox, reassignment, relay, tasks
from activities.exceptions import ActivityError, MailboxError, MailboxFull
from activities.execution import reports, results
from activities.human_tasks import human_work
from activities.mailboxes import producer
from activities.mailboxes.producer import NewItem
from activities.maintenance import recovery
from activities.models import Activity, MailboxItem, Wake
from activities.run_tokens import RunToken
from activities.submission import NewActivity, submit
from agents.contracts import Completed, Output
from agents.exceptions import PermanentAgentError, RetryableAgentError
from tenants import money
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, in_another_thread, simultaneously
from tests.spending import (
    accept,
    complete_at_cost,
    dollars,
    make_budget,
    release_waiting_work,
    run_token_of,
)

BOX = "session-1"


@pytest.fixture(autouse=True)
def long_window(settings: Any) -> None:
    """A window that ends only when the test ends it."""
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 3_600_000


def post_message(tenant: Tenant, text: str, **fields: Any) -> Any:
    with tenant_scope(tenant.pk):
        posted = producer.post(
            tenant.pk, BOX, NewItem(text=text, agent_role="qa", **fields), actor="user:test"
        )
    relay.flush()
    return posted.item


def texts_of(request: Any) -> list[str]:
    return [wake["text"] for wake in request.wakes if wake["reason"] == "message"]


def activities_of(tenant: Tenant) -> list[Activity]:
    with tenant_scope(tenant.pk):
        return list(Activity.objects.filter(mailbox__isnull=False).order_by("pk"))


def states(tenant: Tenant) -> dict[str, str]:
    with tenant_scope(tenant.pk):
        return dict(MailboxItem.objects.order_by("pk").values_list("text", "state"))


def test_messages_within_the_window_share_one_run_in_order(engine: Engine, acme: Tenant) -> None:
    for text in ("one", "two", "three"):
        post_message(acme, text)
    assert engine.messages() == 0

    engine.make_due(acme)
    engine.drain()

    (call,) = engine.agent.calls
    assert texts_of(call) == ["one", "two", "three"]
    assert call.prompt.index("one") < call.prompt.index("two") < call.prompt.index("three")
    assert states(acme) == {"one": "done", "two": "done", "three": "done"}


def test_the_first_item_decides_who_consumes_a_mailbox_that_was_only_named_before(
    engine: Engine, acme: Tenant
) -> None:
    with tenant_scope(acme.pk):
        named = producer.open_mailbox(acme.pk, BOX)
        submit([NewActivity(name="Begin", agent_role="qa", mailbox_id=named.pk)], actor="user:test")

    post_message(acme, "one")
    engine.make_due(acme)
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [[], ["one"]]
    with tenant_scope(acme.pk), pytest.raises(MailboxError, match="consumed by the agent qa"):
        producer.post(acme.pk, BOX, NewItem(text="two", agent_role="dev"), actor="user:test")


def test_two_first_items_at_once_have_one_consumer(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One item names no agent and has read the mailbox before the other one lets its agent consume it."""
    with tenant_scope(acme.pk):
        producer.open_mailbox(acme.pk, BOX)
    find_duplicate = producer._find_duplicate

    def post_another(mailbox: Any, new: NewItem) -> Any:
        if new.text == "for anybody":
            in_another_thread(lambda: post_message(acme, "for the agent"))
        return find_duplicate(mailbox, new)

    monkeypatch.setattr(producer, "_find_duplicate", post_another)

    with tenant_scope(acme.pk):
        producer.post(acme.pk, BOX, NewItem(text="for anybody"), actor="user:test")
    relay.flush()
    engine.make_due(acme)
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["for the agent", "for anybody"]]


def test_items_of_different_scopes_have_different_runs(engine: Engine, acme: Tenant) -> None:
    for text, scope in (("a1", "a" * 200), ("b1", "b"), ("a2", "a" * 200), ("none", ""), ("b2", "b")):
        post_message(acme, text, scope_key=scope)

    engine.make_due(acme)
    engine.drain()

    assert sorted(texts_of(call) for call in engine.agent.calls) == [["a1", "a2"], ["b1", "b2"], ["none"]]
    assert set(states(acme).values()) == {"done"}


def test_twenty_messages_at_once_share_one_run(engine: Engine, acme: Tenant) -> None:
    outcomes = simultaneously(*[partial(post_message, acme, f"m{number}") for number in range(20)])
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]

    engine.make_due(acme)
    engine.drain()

    (call,) = engine.agent.calls
    assert sorted(texts_of(call)) == sorted(f"m{number}" for number in range(20))
    assert [wake["item"] for wake in call.wakes] == sorted(wake["item"] for wake in call.wakes)


def test_messages_that_arrive_during_a_run_share_the_next_run(engine: Engine, acme: Tenant) -> None:
    post_message(acme, "first")

    def post_more(request: Any) -> Completed:
        if len(engine.agent.calls) == 1:
            for text in ("second", "third"):
                post_message(acme, text)
        return Completed(Output(content="ok"))

    engine.agent.behaviour = post_more
    engine.make_due(acme)
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["first"], ["second", "third"]]
    assert [activity.status for activity in activities_of(acme)] == ["done"]
    assert set(states(acme).values()) == {"done"}


def test_a_message_that_arrives_at_the_end_of_a_run_is_delivered_by_another(
    engine: Engine, acme: Tenant
) -> None:
    """Posting and the end of a run happen at once, and no message is lost between them."""
    for number in range(5):
        post_message(acme, f"a{number}")
        engine.make_due(acme)
        simultaneously(engine.drain, partial(post_message, acme, f"b{number}"))
        engine.make_due(acme)
        engine.drain()

    delivered = [text for call in engine.agent.calls for text in texts_of(call)]
    assert sorted(delivered) == sorted(f"{letter}{number}" for letter in "ab" for number in range(5))
    assert set(states(acme).values()) == {"done"}


def test_a_task_notification_has_a_run_of_its_own(engine: Engine, acme: Tenant) -> None:
    post_message(acme, "one")
    for text in ("task a", "task b"):
        post_message(acme, text, kind="task_notification")
    post_message(acme, "two")

    engine.make_due(acme)
    engine.drain()

    assert sorted(texts_of(call) for call in engine.agent.calls) == [["one", "two"], ["task a"], ["task b"]]
    assert "Work that you started has ended" in engine.agent.calls[-1].prompt + engine.agent.calls[0].prompt


@pytest.mark.parametrize("max_concurrency_per_group", [None, 3])
def test_runs_of_one_mailbox_never_overlap(
    engine: Engine, acme: Tenant, one_at_a_time: None, max_concurrency_per_group: int | None
) -> None:
    engine.serve(acme, max_concurrency_per_group=max_concurrency_per_group)
    for text in ("task a", "task b"):
        post_message(acme, text, kind="task_notification")

    assert engine.messages() == 1
    engine.drain()
    assert len(engine.agent.calls) == 2


def test_the_next_run_continues_the_session(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Completed(Output(content="ok"), session_id="conversation-7")
    for text in ("one", "two"):
        post_message(acme, text)
        engine.make_due(acme)
        engine.drain()

    assert [call.session_id for call in engine.agent.calls] == [None, "conversation-7"]


def test_a_retry_delivers_all_messages_again_with_later_ones(engine: Engine, acme: Tenant) -> None:
    post_message(acme, "one")

    def fail_once(request: Any) -> Completed:
        if len(engine.agent.calls) == 1:
            raise RetryableAgentError("not now")
        return Completed(Output(content="ok"))

    engine.agent.behaviour = fail_once
    engine.make_due(acme)
    engine.drain()
    post_message(acme, "two")
    assert states(acme) == {"one": "pending", "two": "pending"}
    engine.make_due(acme)
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["one"], ["one", "two"]]
    assert states(acme) == {"one": "done", "two": "done"}


def test_a_killed_run_loses_no_item(engine: Engine, acme: Tenant, api: Callable[..., APIClient]) -> None:
    post_message(acme, "one")
    viewer = api("viewer")

    def item() -> Any:
        return viewer.get(f"/api/v1/mailboxes/{BOX}/items/").json()["results"][0]

    def lose_the_worker(request: Any) -> Completed:
        claimed = item()
        assert (claimed["status"], claimed["run"]) == ("claimed", str(request.run_id))
        run = RunToken(request.tenant_id, request.activity_id, request.run_id, 1)
        engine.agent.behaviour = lambda request: Completed(Output(content="ok"))
        results.record_stalled(run)
        assert (item()["status"], item()["run"]) == ("pending", None)
        return Completed(Output(content="too late"))

    engine.agent.behaviour = lose_the_worker
    engine.make_due(acme)
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["one"], ["one"]]
    assert item()["status"] == "done"


def test_a_permanent_failure_fails_the_delivered_messages_and_not_later_ones(
    engine: Engine, acme: Tenant
) -> None:
    post_message(acme, "poison")

    def fail_on_poison(request: Any) -> Completed:
        if "poison" in texts_of(request):
            post_message(acme, "later")
            raise PermanentAgentError("cannot")
        return Completed(Output(content="ok"))

    engine.agent.behaviour = fail_on_poison
    engine.make_due(acme)
    engine.drain()
    engine.make_due(acme)
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["poison"], ["later"]]
    assert states(acme) == {"poison": "failed", "later": "done"}


def test_a_retry_by_an_operator_delivers_the_failed_messages(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: (_ for _ in ()).throw(PermanentAgentError("cannot"))
    post_message(acme, "one")
    engine.make_due(acme)
    engine.drain()
    engine.agent.behaviour = lambda request: Completed(Output(content="ok"))

    cancellation.retry(acme.pk, activities_of(acme)[0].pk, actor="user:test")
    engine.make_due(acme)  # the end of the window
    engine.drain()

    assert texts_of(engine.agent.calls[-1]) == ["one"]
    assert states(acme) == {"one": "done"}


def test_cancelling_the_activity_cancels_its_messages(engine: Engine, acme: Tenant) -> None:
    post_message(acme, "one")

    cancellation.cancel(acme.pk, activities_of(acme)[0].pk, actor="user:test")

    engine.make_due(acme)
    assert engine.drain() == 0
    assert states(acme) == {"one": "cancelled"}


def test_answered_messages_of_a_session_that_is_always_busy_do_not_fill_its_mailbox(
    engine: Engine, acme: Tenant, settings: Any, one_at_a_time: None
) -> None:
    settings.ORCHESTRATOR_MAILBOX_ITEMS = 2

    def say_more(request: Any) -> Completed:
        post_message(acme, f"after {texts_of(request)[-1]}")
        return Completed(Output(content="ok"))

    engine.agent.behaviour = say_more
    post_message(acme, "one")
    for _ in range(3):
        engine.make_due(acme)
        engine.deliver()

    assert list(states(acme).values()) == ["done", "done", "pending", "pending"]
    post_message(acme, "two")
    with pytest.raises(MailboxFull):
        post_message(acme, "three")


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_message_that_was_answered_stays_so_when_a_later_run_fails_or_is_cancelled(
    engine: Engine, acme: Tenant, end: str
) -> None:
    def answer_one(request: Any) -> Completed:
        if "two" in texts_of(request):
            raise PermanentAgentError("cannot")
        post_message(acme, "two")
        return Completed(Output(content="ok"))

    engine.agent.behaviour = answer_one
    post_message(acme, "one")
    engine.make_due(acme)
    engine.deliver()

    if end == "cancelled":
        cancellation.cancel(acme.pk, activities_of(acme)[0].pk, actor="user:test")
    engine.make_due(acme)
    engine.drain()

    assert states(acme) == {"one": "done", "two": end}


def reassign(tenant: Tenant, **to: str) -> Activity:
    activity = activities_of(tenant)[0]
    return reassignment.reassign(tenant.pk, activity.pk, actor="user:test", reason="Yours.", **to)


@pytest.mark.parametrize("fails", [False, True], ids=["waiting", "failed"])
def test_reassigned_work_contains_its_messages_and_answers_them(
    engine: Engine, acme: Tenant, fails: bool
) -> None:
    post_message(acme, "one")
    post_message(acme, "two", content={"page": 7})
    if fails:
        engine.agent.behaviour = lambda request: (_ for _ in ()).throw(PermanentAgentError("cannot"))
        engine.make_due(acme)
        engine.drain()
        engine.agent.behaviour = lambda request: Completed(Output(content="ok"))
    before = len(engine.agent.calls)

    reassign(acme, agent_role="dev")
    assert states(acme) == {"one": "pending", "two": "pending"}
    engine.make_due(acme)
    engine.drain()

    (call,) = engine.agent.calls[before:]
    assert call.input["content"] == "one\n\ntwo"
    assert [item["content"] for item in call.input["data"]] == [None, {"page": 7}]
    assert states(acme) == {"one": "done", "two": "done"}


def test_messages_that_are_answered_or_for_later_do_not_belong_to_reassigned_work(
    engine: Engine, acme: Tenant
) -> None:
    post_message(acme, "answered")

    def post_more(request: Any) -> Completed:
        post_message(acme, "now")
        post_message(acme, "tomorrow", run_after=datetime.now(UTC) + timedelta(days=1))
        return Completed(Output(content="ok"))

    engine.agent.behaviour = post_more
    engine.make_due(acme)
    engine.deliver()

    successor = reassign(acme, human_role="editor")

    assert successor.input["content"] == "now"
    assert states(acme) == {"answered": "done", "now": "pending", "tomorrow": "pending"}
    human_work.complete(acme.pk, successor.pk, actor="user:test")
    assert states(acme) == {"answered": "done", "now": "done", "tomorrow": "pending"}


def test_a_message_after_its_work_was_reassigned_to_a_person_is_for_the_agent(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: (_ for _ in ()).throw(PermanentAgentError("cannot"))
    post_message(acme, "one")
    engine.make_due(acme)
    engine.drain()
    engine.agent.behaviour = lambda request: Completed(Output(content="ok"))
    successor = reassign(acme, human_role="editor")

    post_message(acme, "two")
    engine.make_due(acme)
    engine.drain()

    assert texts_of(engine.agent.calls[-1]) == ["two"]
    assert states(acme) == {"one": "pending", "two": "done"}
    human_work.complete(acme.pk, successor.pk, actor="user:test")
    assert states(acme) == {"one": "done", "two": "done"}


def test_a_message_does_not_join_other_work_that_was_submitted_with_the_key_of_its_mailbox(
    engine: Engine, acme: Tenant
) -> None:
    """The key is visible. An offer of a person's task has no role, and admission would refuse all offers together with it."""
    with tenant_scope(acme.pk):
        key = f"mailbox:{producer.open_mailbox(acme.pk, BOX, 'qa').pk}"
        (task,) = submit([NewActivity(name="Task", human_role="editor", dedup_key=key)], actor="user:test")

    with pytest.raises(ActivityError, match="began and ended repeatedly"):
        post_message(acme, "one")

    human_work.complete(acme.pk, task.id, actor="user:test")
    post_message(acme, "two")
    engine.make_due(acme)
    engine.drain()
    assert [texts_of(call) for call in engine.agent.calls] == [["two"]]


def test_the_priority_of_a_message_becomes_the_priority_of_its_run(engine: Engine, acme: Tenant) -> None:
    for priority in (0, 5, 9):
        post_message(acme, f"p{priority}", priority=priority, kind="task_notification")

    assert [activity.priority for activity in activities_of(acme)] == [1, 10, 20]


def test_a_message_is_not_cancelled_with_the_expired_background_work_that_it_joins(
    engine: Engine, acme: Tenant
) -> None:
    """The role lets background work wait for a minute. The next sweep would cancel what has waited for longer, with all messages."""
    expire_after = {"expire_after_seconds": 60}
    engine.serve(acme, "qa", backlog=expire_after)
    with tenant_scope(acme.pk):
        for box in ("urgent", "background", "later"):
            new = NewItem(text="old", agent_role="qa", priority=9)
            producer.post(acme.pk, box, new, actor="token:test")
    a_minute = timedelta(seconds=60)
    with tenant_scope(acme.pk):
        assert all(activity.expires_at for activity in Activity.objects.filter(mailbox__isnull=False))
        Activity.objects.filter(mailbox__isnull=False).update(expires_at=Now() - timedelta(seconds=1))
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        for box, fields in (
            ("urgent", {"priority": 5}),
            ("background", {"priority": 9}),
            ("later", {"priority": 9, "run_after": tomorrow}),
        ):
            producer.post(acme.pk, box, NewItem(text="new", agent_role="qa", **fields), actor="token:test")

    assert recovery.expire_stale() == 0

    with tenant_scope(acme.pk):
        rows = Activity.objects.filter(mailbox__isnull=False)
        expiry = {activity.mailbox.key: activity.expires_at for activity in rows.select_related("mailbox")}
    assert expiry["urgent"] is None
    assert expiry["later"] == tomorrow + a_minute
    assert set(states(acme).values()) == {"pending"}


def test_an_urgent_message_raises_the_priority_of_the_waiting_run_of_its_session(
    engine: Engine, acme: Tenant, api: Callable[..., APIClient], settings: Any, one_at_a_time: None
) -> None:
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 0
    engine.serve(acme, max_concurrency=1)
    (running,) = engine.submit(acme, "qa")
    message = engine.take()
    post_message(acme, "later", priority=9)
    engine.submit(acme, "qa", count=5)
    address = f"/api/v1/mailboxes/{BOX}/items/"

    urgent = {"kind": "message", "text": "now", "agent_role": "qa", "priority": 0}
    posted = api("operator").post(address, urgent)
    assert posted.status_code == 201, posted.content
    relay.flush()
    tasks.run(**message)
    engine.drain()

    order = [call.activity_id for call in engine.agent.calls]
    (session,) = activities_of(acme)
    assert (order[:2], len(order), session.priority) == ([running, session.pk], 7, 1)
    assert texts_of(engine.agent.calls[1]) == ["later", "now"]


def test_a_less_urgent_message_does_not_lower_the_priority(engine: Engine, acme: Tenant) -> None:
    post_message(acme, "now", priority=0)
    post_message(acme, "some time", priority=9)

    assert [activity.priority for activity in activities_of(acme)] == [1]


def test_a_delayed_message_waits_and_does_not_delay_others(engine: Engine, acme: Tenant) -> None:
    post_message(acme, "tomorrow", run_after=datetime.now(UTC) + timedelta(days=1))
    post_message(acme, "now")
    outbox.promote()
    relay.flush()
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["now"]]
    engine.make_due(acme)
    engine.drain()
    assert texts_of(engine.agent.calls[-1]) == ["tomorrow"]


def test_a_delayed_message_that_arrives_during_a_run_does_not_delay_a_retry(
    engine: Engine, acme: Tenant
) -> None:
    post_message(acme, "now")
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    def post_and_fail(request: Any) -> Completed:
        post_message(acme, "tomorrow", run_after=tomorrow)
        raise RetryableAgentError("not now")

    engine.agent.behaviour = post_and_fail
    engine.make_due(acme)
    engine.drain()
    engine.agent.behaviour = lambda request: Completed(Output(content="ok"))
    with tenant_scope(acme.pk):
        Wake.objects.filter(state="pending", due_at__lt=tomorrow).update(due_at=Now())
    outbox.promote()
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["now"], ["now"]]
    engine.make_due(acme)
    engine.drain()
    assert texts_of(engine.agent.calls[-1]) == ["tomorrow"]


# Budgets


def due_times(tenant: Tenant) -> dict[str, datetime | None]:
    """The times of the pending messages."""
    with tenant_scope(tenant.pk):
        pending = Wake.objects.filter(state="pending")
        return {wake.payload["text"]: wake.due_at for wake in pending}


@pytest.fixture
def no_window(long_window: None, settings: Any) -> None:
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 0


@pytest.mark.usefixtures("no_window")
def test_a_message_for_later_keeps_its_time_when_a_budget_stops_the_run(engine: Engine, acme: Tenant) -> None:
    budget, tomorrow = make_budget(acme), datetime.now(UTC) + timedelta(days=1)
    engine.agent.behaviour = accept
    item = post_message(acme, "now")
    engine.drain()
    post_message(acme, "tomorrow", run_after=tomorrow)

    assert reports.count_usage(run_token_of(acme, item.activity_id), dollars("1.50")) is not None

    assert due_times(acme)["tomorrow"] == tomorrow
    engine.agent.behaviour = complete_at_cost("0.10")
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(9)})
    release_waiting_work(engine)
    engine.drain()
    assert states(acme)["now"] == "pending", (
        "the activity has not ended: it waits for the message of tomorrow"
    )
    assert [texts_of(call) for call in engine.agent.calls] == [["now"], ["now"]]
    engine.make_due(acme)
    engine.drain()
    assert texts_of(engine.agent.calls[-1]) == ["tomorrow"]
    assert states(acme) == {"now": "done", "tomorrow": "done"}


@pytest.mark.usefixtures("no_window")
def test_a_message_for_later_is_not_delivered_when_a_budget_releases_the_earlier_ones(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme, "0.00")
    post_message(acme, "now")
    engine.drain()
    post_message(acme, "tomorrow", run_after=datetime.now(UTC) + timedelta(days=1))
    post_message(acme, "also now")

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(9)})
    release_waiting_work(engine)
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["now", "also now"]]


@pytest.mark.usefixtures("no_window")
def test_an_urgent_message_raises_its_activity_among_those_that_wait_for_a_budget(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme, "0.10")
    engine.submit(acme, priority=5)
    post_message(acme, "some time")
    engine.drain()
    post_message(acme, "now", priority=0)
    engine.agent.behaviour = complete_at_cost("0.30")

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal("0.30")})
    release_waiting_work(engine)
    engine.drain()

    assert [texts_of(call) for call in engine.agent.calls] == [["some time", "now"]]
