"""From a message to a recorded result, with repeated, late and concurrent events."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from time import monotonic
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import transaction
from django.db.models import Sum
from django.db.models.functions import Now

from activities import cancellation, dispatch, outbox, outputs, relay, submission, tasks, wait_reasons
from activities.admission import Exchange, Grant, limits
from activities.exceptions import RunSuperseded, TransitionRefused
from activities.execution import results
from activities.models import Activity, ActivityEvent, ActivityRun, Wake
from activities.quick_work import HeldGrant
from activities.run_tokens import RunToken
from agents.contracts import Accepted, Completed, Output, Usage
from agents.exceptions import AgentRateLimited, PermanentAgentError, RetryableAgentError
from agents.response_parser import read_completed
from tenants.context import SYSTEM, tenant_scope
from tenants.models import Tenant, UsageEntry
from tests.engine import Engine, in_another_thread

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def events(tenant: Tenant, activity_id: UUID) -> list[str]:
    with tenant_scope(tenant.pk):
        history = ActivityEvent.objects.filter(activity_id=activity_id).order_by("seq")
        return [move.verb for event in history for move in event.moves]


def test_submitted_work_is_run_by_its_agent_and_its_output_can_be_read(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Completed(
        Output(content="text", data={"a": [1, None]}), usage=Usage(input_tokens=3, output_tokens=4)
    )
    (activity_id,) = engine.submit(acme, params={"topic": "bees"})

    assert engine.drain() == 1

    done = engine.get(acme, activity_id)
    assert (done.status, done.attempts, done.wake_reason) == ("done", 1, "new_task")
    assert events(acme, activity_id) == ["submit", "claim", "start", "complete"]
    stored = outputs.read(acme.pk, done.output_ref)
    assert (stored.content, stored.data) == ("text", {"a": [1, None]})
    (run,) = engine.runs(acme, activity_id)
    assert (run.status, run.usage["input_tokens"]) == ("completed", 3)
    assert "bees" in engine.agent.calls[0].prompt


def test_second_delivery_of_the_same_message_does_not_run_the_agent_twice(
    engine: Engine, acme: Tenant
) -> None:
    engine.submit(acme)
    message = engine.take()

    tasks.run(**message)
    tasks.run(**message)

    assert len(engine.agent.calls) == 1


def test_a_second_delivery_while_the_first_runs_leaves_the_first_its_slots(
    engine: Engine, acme: Tenant
) -> None:
    engine.serve(acme, "qa", max_concurrency=1)

    def deliver_again(request: object) -> Completed:
        in_another_thread(lambda: tasks.run(**message))
        return Completed(
            Output(content=f"{len(engine.agent.calls)} at once, {engine.messages()} more granted")
        )

    engine.agent.behaviour = deliver_again
    first, _ = engine.submit(acme, count=2)
    message = engine.take()

    tasks.run(**message)

    stored = outputs.read(acme.pk, engine.get(acme, first).output_ref)
    assert stored.content == "1 at once, 0 more granted"


def test_grants_of_a_role_that_is_not_quick_become_messages_except_the_first(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(acme)
    engine.submit(acme, count=2)
    first, second = (dispatch.read_message(**(engine.take() or {})) for _ in range(2))
    published: list[Grant] = []
    monkeypatch.setattr(relay, "publish", published.extend)

    dispatch._run_and_continue([HeldGrant(first, monotonic()), HeldGrant(second, monotonic())])

    assert published[0] == second


def test_grants_of_another_role_become_messages_or_go_to_the_threads_for_quick_work(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, slow, quick = (
        HeldGrant(Grant(uuid4(), acme.pk, role, f"grant-{role}", started=True), monotonic())
        for role in ("qa", "dev", "seo")
    )
    published, left = list[Grant](), list[HeldGrant]()
    monkeypatch.setattr(relay, "publish", published.extend)
    monkeypatch.setattr(dispatch.QUICK_WORK, "is_quick", lambda grant: grant.role == "seo")
    monkeypatch.setattr(dispatch.QUICK_WORK, "leave_to_others", left.extend)

    assert dispatch._keep_own([own, slow, quick]) == [own]
    assert (published, left) == ([slow.grant], [quick])


@pytest.mark.parametrize(
    ("ends", "due_in", "is_offered"),
    [(False, None, True), (False, timedelta(hours=1), False), (True, None, False)],
)
def test_after_a_superseded_run_only_work_that_may_start_now_is_offered(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, ends: bool, due_in: timedelta | None, is_offered: bool
) -> None:  # fmt: skip
    (activity_id,) = engine.submit(acme)
    if ends:
        cancellation.cancel(acme.pk, activity_id, actor="test")
    with tenant_scope(acme.pk):
        due_at = Now() + due_in if due_in else None
        Wake.objects.filter(activity_id=activity_id).update(state="pending", due_at=due_at)
    offered: list[UUID] = []
    monkeypatch.setattr(
        relay, "hand_over", lambda changes: offered.extend(offer.activity_id for offer in changes.offers)
    )

    dispatch._offer_if_woken(Grant(activity_id, acme.pk, "qa", "grant", started=True))

    assert offered == ([activity_id] if is_offered else [])


@pytest.mark.parametrize("is_draining", [False, True])
def test_a_draining_worker_takes_no_more_work_than_its_message_names(
    is_draining: bool, settings: Any
) -> None:
    settings.ORCHESTRATOR_CONTINUE_SECONDS = 60.0
    draining = threading.Event()
    if is_draining:
        draining.set()
    lease: Any = SimpleNamespace(draining=draining)

    assert dispatch._may_go_on(lease, monotonic()) is not is_draining


def test_a_retryable_failure_is_retried_after_its_delay_until_no_attempts_are_left(
    engine: Engine, acme: Tenant
) -> None:
    def raise_retryable_error(request: object) -> Completed:
        raise RetryableAgentError("down")

    engine.agent.behaviour = raise_retryable_error
    (activity_id,) = engine.submit(acme, retry={"max_attempts": 3, "base_seconds": 30})

    engine.drain()
    first = engine.get(acme, activity_id)
    with tenant_scope(acme.pk):
        delay = Wake.objects.get(activity_id=activity_id).due_at - ActivityRun.objects.get().ended_at
    for _ in range(3):
        engine.make_due(acme)
        engine.drain()

    last = engine.get(acme, activity_id)
    assert (first.status, first.attempts, first.error["code"]) == ("created", 1, "agent_unavailable")
    assert timedelta(seconds=26) < delay < timedelta(seconds=34)
    assert (last.status, last.attempts, len(engine.agent.calls)) == ("failed", 3, 3)


def test_a_permanent_failure_is_not_retried(engine: Engine, acme: Tenant) -> None:
    def refuse(request: object) -> Completed:
        raise PermanentAgentError("no such thing")

    engine.agent.behaviour = refuse
    (activity_id,) = engine.submit(acme)

    engine.drain()

    failed = engine.get(acme, activity_id)
    assert (failed.status, failed.error["message"]) == ("failed", "no such thing")
    assert engine.runs(acme, activity_id)[0].status == "failed"


def test_a_rate_limit_delays_work_without_using_an_attempt(engine: Engine, acme: Tenant) -> None:
    def raise_rate_limit(request: object) -> Completed:
        raise AgentRateLimited("slow down", retry_after=120)

    engine.agent.behaviour = raise_rate_limit
    (activity_id,) = engine.submit(acme)

    engine.drain()

    waiting = engine.get(acme, activity_id)
    with tenant_scope(acme.pk):
        delay = Wake.objects.get(activity_id=activity_id).due_at - datetime.now(UTC)
    assert (waiting.status, waiting.attempts) == ("created", 0)
    assert timedelta(seconds=60) < delay <= timedelta(seconds=120)


def test_an_activity_cancelled_before_its_message_arrives_never_starts(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()

    cancellation.cancel(acme.pk, activity_id, actor="test", reason="not wanted")
    tasks.run(**message)

    assert engine.agent.calls == []
    assert engine.status(acme, activity_id) == "cancelled"


def test_the_result_of_a_run_that_was_cancelled_meanwhile_is_refused(engine: Engine, acme: Tenant) -> None:
    def cancel_meanwhile(request: object) -> Completed:
        in_another_thread(lambda: cancellation.cancel(acme.pk, activity_id, actor="test"))
        return Completed(Output(content="too late"))

    engine.agent.behaviour = cancel_meanwhile
    (activity_id,) = engine.submit(acme)

    engine.drain()

    cancelled = engine.get(acme, activity_id)
    assert (cancelled.status, cancelled.output_ref) == ("cancelled", None)
    assert engine.runs(acme, activity_id)[0].status == "cancelled"


def test_what_a_run_has_used_counts_although_it_was_cancelled_during_the_call(
    engine: Engine, acme: Tenant
) -> None:
    def cancel_meanwhile(request: object) -> Completed:
        in_another_thread(lambda: cancellation.cancel(acme.pk, activity_id, actor="test"))
        return Completed(Output(content="too late"), usage=Usage(input_tokens=3, output_tokens=4))

    engine.agent.behaviour = cancel_meanwhile
    (activity_id,) = engine.submit(acme)

    engine.drain()

    with tenant_scope(acme.pk):
        used = UsageEntry.objects.filter(activity_id=activity_id).aggregate(
            Sum("input_tokens"), Sum("output_tokens")
        )
    assert used == {"input_tokens__sum": 3, "output_tokens__sum": 4}


def test_wakes_during_a_run_lead_to_exactly_one_more_run_with_all_of_them(
    engine: Engine, acme: Tenant
) -> None:
    def wake_meanwhile(request: object) -> Completed:
        if len(engine.agent.calls) == 1:
            in_another_thread(wake_thrice)
        return Completed(Output(content="ok"))

    def wake_thrice() -> None:
        with tenant_scope(acme.pk):
            activity = engine.get(acme, activity_id)
            outbox.record(activity, "unblocked", payload={"blocker_resolution": "a"})
            outbox.record(activity, "unblocked", payload={"blocker_resolution": "a"})
            outbox.record(activity, "review_feedback", payload={"reviewer_feedback": "b"})

    engine.agent.behaviour = wake_meanwhile
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert [[wake["reason"] for wake in call.wakes] for call in engine.agent.calls] == [
        ["new_task"],
        ["unblocked", "review_feedback"],
    ]
    assert engine.status(acme, activity_id) == "done"
    assert events(acme, activity_id) == ["submit", "claim", "start", "release", "claim", "start", "complete"]


def test_an_accepted_run_occupies_no_worker_and_ends_by_its_callback(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme)

    engine.drain()
    (run,) = engine.runs(acme, activity_id)
    token = RunToken(acme.pk, activity_id, run.pk, run.fence)
    results.record_completed(token, Completed(Output(content="later")), needs_approval=False, actor="run")

    assert run.accepted_at is not None
    assert run.worker_id is None
    assert engine.status(acme, activity_id) == "done"
    with pytest.raises(RunSuperseded):
        results.record_completed(token, Completed(Output(content="again")), needs_approval=False)


def test_accepted_runs_leave_their_seats_to_further_work(engine: Engine, acme: Tenant) -> None:
    seats = engine.lease.concurrency
    engine.serve(acme, "qa", max_concurrency=2 * seats)
    engine.agent.behaviour = lambda request: Accepted()
    engine.submit(acme, count=seats + 1)

    engine.drain()

    assert len(engine.agent.calls) == seats + 1


def test_an_equal_dedup_key_returns_the_live_activity_and_creates_nothing(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    first = engine.submit(acme, dedup_key="monthly")
    second = engine.submit(acme, dedup_key="monthly")
    of_other_tenant = engine.submit(other_tenant, dedup_key="monthly")
    engine.drain()
    afterwards = engine.submit(acme, dedup_key="monthly")

    assert first == second
    assert of_other_tenant != first
    assert afterwards != first


def test_delayed_work_is_not_offered_before_its_time(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + timedelta(hours=1))

    assert engine.drain() == 0
    engine.make_due(acme)
    assert engine.drain() == 1

    assert engine.status(acme, activity_id) == "done"


def test_two_promoters_at_once_offer_different_activities(engine: Engine, tenant: Tenant) -> None:
    engine.submit(tenant, count=3, not_before=datetime.now(UTC) + timedelta(hours=1))
    with tenant_scope(tenant.pk):
        Wake.objects.update(due_at=Now())

    with transaction.atomic(using=SYSTEM):
        offered = [outbox.promote(2), in_another_thread(outbox.promote)]

    assert offered == [2, 1]


def test_one_pass_offers_at_most_a_hundred_due_activities(engine: Engine, tenant: Tenant) -> None:
    engine.submit(tenant, count=101, not_before=datetime.now(UTC) + timedelta(hours=1))
    with tenant_scope(tenant.pk):
        Wake.objects.update(due_at=Now())

    assert [outbox.promote(), outbox.promote(), outbox.promote()] == [100, 1, 0]


def test_an_internal_error_fails_the_activity_instead_of_leaving_it_open(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.execution.prompt.build", lambda **everything: 1 / 0)
    engine.agent.behaviour = lambda request: Completed(Output(content=request.prompt))
    (activity_id,) = engine.submit(acme)

    engine.drain()

    failed = engine.get(acme, activity_id)
    assert (failed.status, failed.error["code"]) == ("failed", "internal_error")


def _fail(*arguments: object, **more: object) -> None:
    raise ZeroDivisionError


def test_what_a_run_has_used_counts_although_its_result_cannot_be_recorded(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.execution.results.record_completed", _fail)
    monkeypatch.setattr("activities.execution.results.record_completed_together", _fail)
    engine.agent.behaviour = lambda request: Completed(Output(content="x"), usage=Usage(3, 4))
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert engine.status(acme, activity_id) == "failed"
    with tenant_scope(acme.pk):
        used = UsageEntry.objects.filter(activity_id=activity_id).aggregate(
            Sum("input_tokens"), Sum("output_tokens")
        )
    assert used == {"input_tokens__sum": 3, "output_tokens__sum": 4}


def test_what_a_run_has_used_counts_although_its_answer_is_invalid(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: read_completed({"output": 1, "usage": {"input_tokens": 3}})
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert engine.get(acme, activity_id).error["code"] == "invalid_agent_answer"
    with tenant_scope(acme.pk):
        assert UsageEntry.objects.get(activity_id=activity_id, input_tokens__gt=0).input_tokens == 3


def test_an_operator_can_retry_failed_work(engine: Engine, acme: Tenant) -> None:
    def refuse(request: object) -> Completed:
        raise PermanentAgentError("no")

    engine.agent.behaviour = refuse
    (activity_id,) = engine.submit(acme)
    engine.drain()
    engine.agent.behaviour = lambda request: Completed(Output(content="yes"))

    cancellation.retry(acme.pk, activity_id, actor="test")
    engine.drain()

    assert engine.status(acme, activity_id) == "done"


def test_an_error_of_the_relay_after_the_commit_does_not_fail_the_submission(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("activities.relay.hand_over", lambda what: 1 / 0)
        (activity_id,) = engine.submit(acme)

    assert engine.status(acme, activity_id) == "created"


def test_a_role_with_a_rate_starts_at_that_rate_and_explains_the_wait(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", rate={"capacity": 2, "per_second": 0.01})
    engine.submit(acme, count=3)

    engine.drain()

    with tenant_scope(acme.pk):
        (late,) = Activity.objects.filter(status="created")
    why = wait_reasons.why(acme.pk, late.pk)
    assert len(engine.agent.calls) == 2
    assert (why.code, why.holder, why.position) == ("provider_limit", "qa", 1)
    assert why.estimate_seconds == pytest.approx(100, abs=20)


def test_a_draining_worker_starts_nothing_and_its_grants_wait_again(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_CONTINUE_SECONDS = 60
    engine.serve(acme, "qa", max_concurrency=1)
    engine.submit(acme, count=3)

    engine.lease.drain()
    limits.refresh()
    engine.deliver()

    assert (len(engine.agent.calls), engine.messages()) == (0, 0)
    engine.replace_worker()
    relay.release_and_acquire(Exchange())
    engine.drain()
    assert len(engine.agent.calls) == 3


def test_work_is_submitted_if_its_duplicate_ends_during_the_check(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = engine.submit(acme, dedup_key="once")
    find = submission._existing

    def find_then_cancel(*arguments: Any) -> Any:
        in_another_thread(lambda: cancellation.cancel(acme.pk, first, actor="test"))
        monkeypatch.setattr(submission, "_existing", find)
        return find(*arguments)

    # As if the first had been submitted after this look.
    monkeypatch.setattr(submission, "_find_repeated", lambda *arguments: {})
    monkeypatch.setattr(submission, "_existing", find_then_cancel)

    (second,) = engine.submit(acme, dedup_key="once")

    assert second != first
    assert engine.status(acme, second) == "created"


def test_a_gate_is_cancelled_only_with_its_activity(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, requires_approval=True)
    engine.drain()
    with tenant_scope(acme.pk):
        gate = Activity.objects.get(parent_id=activity_id)

    with pytest.raises(TransitionRefused, match="Decide this gate"):
        cancellation.cancel(acme.pk, gate.pk, actor="test")
    cancellation.cancel(acme.pk, activity_id, actor="test")

    assert engine.status(acme, gate.pk) == "cancelled"
