"""Dead letters: recorded with the failure, announced once, and replayed or dismissed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, OperationalError, connections
from django.db.models.functions import Now
from psycopg.errors import LockNotAvailable

from activities import activity_tree, cancellation, dead_letter_records, dead_letters, reassignment
from activities.alerts import raise_alert
from activities.execution import results
from activities.human_tasks import decisions, human_work
from activities.maintenance import invariants, recovery
from activities.models import Activity, ActivityRun, DeadLetter, Wake
from activities.run_tokens import RunToken
from activities.signals import activity_reopened
from agents.contracts import Accepted
from agents.exceptions import RetryableAgentError
from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants import clock
from tenants.context import APP, OWNER, system_scope, tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient, accept_work, children
from tests.engine import Engine, eventually
from tests.failed_work import alerts_of, create_dead_letters, escalations_of, letters_of, submit_failing
from tests.integration.test_alerts import statements
from tests.open_questions import open_approval
from tests.upkeep import run_task

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def replay(tenant: Tenant, **options: Any) -> dead_letters.ReplayResult:
    with tenant_scope(tenant.pk):
        return dead_letters.replay(
            tenant.pk, DeadLetter.objects.for_tenant(tenant.pk), actor="Ann", **options
        )


def retry_one(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        (letter,) = DeadLetter.objects.for_tenant(tenant.pk)
    assert letter.activity_id is not None
    cancellation.retry(tenant.pk, letter.activity_id, actor="Ann")


def dismiss(tenant: Tenant, **options: Any) -> dead_letters.DismissResult:
    with tenant_scope(tenant.pk):
        letters = DeadLetter.objects.for_tenant(tenant.pk)
        return dead_letters.dismiss(tenant.pk, letters, actor="Ann", reason="not wanted", **options)


@pytest.mark.parametrize("again", [replay, retry_one])
def test_work_that_people_retry_after_its_expiry_runs(
    engine: Engine, acme: Tenant, again: Callable[[Tenant], object]
) -> None:
    (activity_id,) = submit_failing(engine, acme)
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=activity_id).update(expires_at=Now() - timedelta(seconds=1))

    again(acme)
    recovery.expire_stale()
    engine.drain()

    assert engine.status(acme, activity_id) == "done"


def test_work_that_is_retried_before_its_expiry_keeps_it(engine: Engine, acme: Tenant) -> None:
    later = clock.now() + timedelta(days=1)
    (activity_id,) = submit_failing(engine, acme, expires_at=later)

    replay(acme)

    assert engine.get(acme, activity_id).expires_at == later


# Creation


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "permanent"), (RetryableAgentError("It broke.", code="broken"), "exhausted")],
)
def test_the_last_failure_creates_a_dead_letter(
    engine: Engine, acme: Tenant, error: Any, reason: str
) -> None:
    (activity_id,) = submit_failing(engine, acme, error=error, max_attempts=1)

    (letter,) = letters_of(acme, activity_id)
    (run,) = engine.runs(acme, activity_id)
    assert engine.status(acme, activity_id) == "failed"
    assert (letter.reason, letter.state, letter.handled_at, letter.run_id) == (reason, "open", None, run.pk)
    assert (letter.agent_role, letter.attempts, letter.error["code"]) == ("qa", 1, "broken")


def test_the_third_stall_is_a_dead_letter(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme)
    for _ in range(3):
        engine.drain()
        run = engine.runs(acme, activity_id)[-1]
        results.record_stalled(RunToken(acme.pk, activity_id, run.pk, run.fence))

    dead_letters.handle_waiting()

    (letter,) = letters_of(acme, activity_id)
    assert (letter.reason, letter.stalls, engine.status(acme, activity_id)) == ("stalled", 2, "needs_review")
    assert [run.status for run in engine.runs(acme, activity_id)] == ["stalled"] * 3


def test_a_dead_letter_is_created_even_with_an_absurd_cost(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    activity_id, agent = accept_work(engine, acme)
    with tenant_scope(acme.pk):
        ActivityRun.objects.filter(activity_id=activity_id).update(usage={"cost_usd": "1e12"})

    agent.post("fail", {"error": {"message": "no", "retryable": False}})

    (letter,) = letters_of(acme, activity_id)
    assert letter.cost_usd == Decimal(99_999_999)


def test_usage_that_is_reported_after_the_failure_raises_the_cost(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    activity_id, agent = accept_work(engine, acme)
    agent.post("heartbeat", {"usage": {"cost_usd": "0.25"}})
    agent.post("fail", {"error": {"message": "no", "retryable": False}})

    agent.post("heartbeat", {"usage": {"cost_usd": "0.75"}})

    (letter,) = letters_of(acme, activity_id)
    assert letter.cost_usd == Decimal("0.75")


# Alerts and escalations


def test_a_failure_has_one_alert_and_one_escalation(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = submit_failing(engine, acme)

    handled = [dead_letters.handle_waiting() for _ in range(3)]

    assert handled == [1, 0, 0]
    assert engine.status(acme, activity_id) == "needs_review"
    (letter,) = letters_of(acme, activity_id)
    (escalation,) = escalations_of(acme, activity_id)
    (alert,) = alerts_of(acme, activity_id)
    assert (letter.handled_at is not None, letter.escalation_id) == (True, escalation.pk)
    assert (escalation.status, escalation.human_role, escalation.priority) == ("created", "operator", 1)
    assert (
        "qa failed permanently after 1 attempt: another attempt would fail in the same way. "
        in escalation.description
    )
    assert (alert.kind, alert.severity, alert.facts["fingerprint"]) == (
        "dead_letter",
        "critical",
        letter.fingerprint,
    )


def test_the_background_task_handles_dead_letters_once(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = submit_failing(engine, acme)
    with system_scope():
        assert dead_letters.list_unhandled().exists()

    run_task("deadletters.handle")
    run_task("deadletters.handle")

    assert len(escalations_of(acme, activity_id)) == 1
    with system_scope():
        assert not dead_letters.list_unhandled().exists()


def test_a_letter_that_another_process_has_handled_since_it_was_listed_is_left_alone(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = submit_failing(engine, acme)
    (letter,) = letters_of(acme, activity_id)
    listed = dead_letters._UnhandledLetter(letter.pk, acme.pk, activity_id)

    with tenant_scope(acme.pk):
        assert dead_letters._handle(listed)
    with tenant_scope(acme.pk):
        assert not dead_letters._handle(listed)

    assert len(escalations_of(acme, activity_id)) == 1


def test_a_crash_while_handling_a_letter_changes_nothing_and_does_not_affect_others(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = submit_failing(engine, acme, count=2)

    def die_at_first(*arguments: Any, activity_id: UUID, **more: Any) -> Any:
        if activity_id == first:
            raise RuntimeError("killed")
        return raise_alert(*arguments, activity_id=activity_id, **more)

    monkeypatch.setattr(dead_letters, "raise_alert", die_at_first)
    dead_letters.handle_waiting()

    assert (engine.status(acme, first), escalations_of(acme, first), alerts_of(acme, first)) == (
        "failed",
        [],
        [],
    )
    assert engine.status(acme, second) == "needs_review"
    monkeypatch.undo()
    assert dead_letters.handle_waiting() == 1
    assert engine.status(acme, first) == "needs_review"
    assert (len(escalations_of(acme, first)), len(alerts_of(acme, first))) == (1, 1)


def test_a_turn_ends_after_its_time(engine: Engine, acme: Tenant) -> None:
    submit_failing(engine, acme, count=3)

    assert [dead_letters.handle_waiting(within=-1) for _ in range(4)] == [1, 1, 1, 0]


def test_a_letter_whose_activity_is_locked_does_not_keep_the_others_waiting(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, free = submit_failing(engine, acme, count=2)
    lock = activity_tree.lock_with_parent

    def lock_in_time(tenant_id: UUID, activity_id: UUID) -> Any:
        if activity_id == locked:
            raise OperationalError("lock timeout") from LockNotAvailable("lock timeout")
        return lock(tenant_id, activity_id)

    monkeypatch.setattr(dead_letters.activity_tree, "lock_with_parent", lock_in_time)

    assert dead_letters.handle_waiting() == 1
    assert [len(escalations_of(acme, each)) for each in (locked, free)] == [0, 1]


def test_a_frozen_process_blocks_the_others_only_for_a_short_time(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = submit_failing(engine, acme, count=2)
    is_inside, may_continue = threading.Event(), threading.Event()
    sessions: list[int] = []

    def handle_until_ended() -> None:
        with connections[APP].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            sessions.append(cursor.fetchone()[0])
        with pytest.raises(DatabaseError):
            dead_letters.handle_waiting()

    def alert(*arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is frozen:
            is_inside.set()
            may_continue.wait(30)
        return raise_alert(*arguments, **more)

    monkeypatch.setattr(dead_letters, "raise_alert", alert)
    frozen = threading.Thread(target=lambda: closing(handle_until_ended))
    frozen.start()
    assert is_inside.wait(60)
    assert dead_letters.handle_waiting() == 0, "one at a time"

    with connections[
        OWNER
    ].cursor() as cursor:  # as PostgreSQL does when the transaction has been idle for long
        cursor.execute("SELECT pg_terminate_backend(%s)", sessions)
    eventually(lambda: dead_letters.handle_waiting() == 2)

    may_continue.set()
    frozen.join()
    assert [len(alerts_of(acme, one)) for one in (first, second)] == [1, 1]


def closing(action: Callable[[], Any]) -> None:
    try:
        action()
    finally:
        connections.close_all()


def test_work_that_was_retried_before_raises_no_alert(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = submit_failing(engine, acme)
    cancellation.retry(acme.pk, activity_id, actor="Ann")

    dead_letters.handle_waiting()

    (letter,) = letters_of(acme, activity_id)
    assert (letter.state, letter.closed_by, letter.handled_at is not None) == ("replayed", "Ann", True)
    assert (escalations_of(acme, activity_id), alerts_of(acme, activity_id)) == ([], [])


def test_the_failure_of_a_subtask_wakes_its_parent_once(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    parent, agent = accept_work(engine, acme)
    part = {"name": "part", "agent_role": "dev", "blocking": True}
    agent.create_with("create_subtask", **part)
    engine.drain()
    AgentClient(engine.agent.calls[-1]).post("fail", {"error": {"message": "no", "retryable": False}})
    engine.drain()
    AgentClient(engine.agent.calls[-1]).create_with("create_subtask", **part | {"name": "another"})

    dead_letters.handle_waiting()

    assert engine.status(acme, parent) == "awaiting_subtask"
    assert [child.status for child in children(acme, parent, "subtask")] == ["needs_review", "created"]


@pytest.mark.parametrize("end", ["retry", "cancel", "reassign", "replay", "dismiss"])
def test_the_escalation_becomes_obsolete_when_the_letter_is_handled(
    engine: Engine, acme: Tenant, end: str
) -> None:
    (activity_id,) = submit_failing(engine, acme)
    dead_letters.handle_waiting()

    if end == "retry":
        cancellation.retry(acme.pk, activity_id, actor="Ann")
    elif end == "cancel":
        cancellation.cancel(acme.pk, activity_id, actor="Ann")
    elif end == "reassign":
        reassignment.reassign(acme.pk, activity_id, actor="Ann", reason="better", human_role="editor")
    else:
        {"replay": replay, "dismiss": dismiss}[end](acme)

    (escalation,) = escalations_of(acme, activity_id)
    (letter,) = letters_of(acme, activity_id)
    assert (escalation.status, escalation.cancel_reason) == ("cancelled", "obsolete")
    assert (letter.state, letter.closed_by) == ("replayed" if end in ("retry", "replay") else "closed", "Ann")


def test_a_person_who_completes_the_escalation_closes_the_letter(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = submit_failing(engine, acme)
    dead_letters.handle_waiting()
    (escalation,) = escalations_of(acme, activity_id)

    human_work.complete(acme.pk, escalation.pk, actor="Ann", note="I did it by hand.")

    (letter,) = letters_of(acme, activity_id)
    assert (letter.state, letter.closed_by) == ("closed", "Ann")
    assert replay(acme).count == 0


def test_a_replay_that_fails_again_creates_another_letter_and_escalation(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = submit_failing(engine, acme)
    dead_letters.handle_waiting()
    replay(acme)
    engine.agent.behaviour = lambda request: Accepted()
    engine.drain()
    AgentClient(engine.agent.calls[-1]).post("fail", {"error": {"message": "no", "retryable": False}})

    dead_letters.handle_waiting()

    assert [letter.state for letter in letters_of(acme, activity_id)] == ["replayed", "open"]
    assert [one.status for one in escalations_of(acme, activity_id)] == ["cancelled", "created"]
    assert len(alerts_of(acme, activity_id)) == 2


# Replaying


def test_a_dry_run_counts_what_a_replay_starts_and_a_second_replay_starts_nothing(
    engine: Engine, acme: Tenant
) -> None:
    ids = create_dead_letters(acme, 1_000)
    reopened_at: list[datetime] = []

    def note_time(sender: Any, **kwargs: Any) -> None:
        reopened_at.append(clock.now())

    dry_run = replay(acme, per_second=10, dry_run=True)
    activity_reopened.connect(note_time)
    try:
        done = replay(acme, per_second=10)
    finally:
        activity_reopened.disconnect(note_time)
    again = replay(acme, per_second=10)

    assert dry_run == done == dead_letters.ReplayResult(1_000, 0, 99.9)
    assert again == dead_letters.ReplayResult(0, 1_000, 0.0)
    with tenant_scope(acme.pk):
        due = list(
            Wake.objects.filter(state="pending").order_by("activity_id").values_list("activity_id", "due_at")
        )
    assert [activity_id for activity_id, _ in due] == ids, "one wake each, the oldest failure first"
    start = due[0][1]
    assert reopened_at[-1] <= start <= clock.now(), (
        "the time that reopening takes adds nothing to the first second"
    )
    assert [at - start for _, at in due] == [timedelta(seconds=number / 10) for number in range(1_000)]
    assert engine.messages() <= 10, "nothing starts before its time"


def test_a_replay_without_a_rate_starts_everything_at_once(engine: Engine, acme: Tenant) -> None:
    ids = submit_failing(engine, acme, count=3)

    assert replay(acme) == dead_letters.ReplayResult(3, 0, 0.0)
    engine.drain()

    assert {engine.status(acme, activity_id) for activity_id in ids} == {"done"}
    assert [call.attempt for call in engine.agent.calls] == [1, 1, 1]


def test_a_dry_run_changes_nothing(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = submit_failing(engine, acme)

    assert (replay(acme, dry_run=True).count, dismiss(acme, dry_run=True).count) == (1, 1)

    assert engine.status(acme, activity_id) == "failed"
    assert [letter.state for letter in letters_of(acme, activity_id)] == ["open"]


def test_replaying_a_step_of_a_pipeline_reopens_its_run(engine: Engine, acme: Tenant) -> None:
    steps = [
        {"id": "a", "agent_role": "seo"},
        {"id": "b", "agent_role": "qa"},
        {"id": "c", "agent_role": "dev"},
    ]
    versions.save(acme.pk, {"key": "three", "name": "Three", "steps": steps}, actor="test")
    run = start_run(acme.pk, "three", NewRun(), actor="test")
    engine.agent.behaviour = lambda request: Accepted()
    engine.drain()
    AgentClient(engine.agent.calls[-1]).post("complete", {"output": {"content": "x"}})
    engine.drain()
    AgentClient(engine.agent.calls[-1]).post("fail", {"error": {"message": "no", "retryable": False}})
    dead_letters.handle_waiting()

    def state() -> tuple[str, int]:
        with tenant_scope(acme.pk):
            pipeline_run = PipelineRun.objects.get(pk=run.pk)
        return pipeline_run.status, pipeline_run.unsettled

    assert state() == ("failed", 0)
    replay(acme)
    assert state() == ("running", 2)
    for _ in "bc":
        engine.drain()
        AgentClient(engine.agent.calls[-1]).post("complete", {"output": {"content": "x"}})
    assert state() == ("completed", 0)


def test_work_with_equal_dedup_keys_is_replayed_once_and_not_while_other_work_is_live(
    engine: Engine, acme: Tenant
) -> None:
    (first,) = submit_failing(engine, acme, dedup_key="once")
    submit_failing(engine, acme, dedup_key="once")
    submit_failing(engine, acme, dedup_key="again")
    engine.submit(acme, "dev", dedup_key="again")

    assert replay(acme, dry_run=True) == replay(acme) == dead_letters.ReplayResult(1, 2, 0.0)

    assert engine.status(acme, first) == "created"


def test_failed_work_that_is_retried_and_then_rejected_breaks_no_invariant(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = submit_failing(engine, acme, requires_approval=True)
    dead_letters.handle_waiting()
    assert len(escalations_of(acme, activity_id)) == 1
    replay(acme)
    engine.drain()

    decisions.reject(acme.pk, activity_id, actor="ann", notes="shorter")

    assert engine.status(acme, activity_id) == "rejected"
    assert invariants.check() == []


# Dismissing


def test_dismissing_cancels_the_activity_with_its_subtasks_approvals_and_escalation(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    parent, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", name="part", agent_role="dev", blocking=False)
    agent.post("fail", {"error": {"message": "no", "retryable": False}})
    approval = open_approval(acme, [parent])
    dead_letters.handle_waiting()

    assert dismiss(acme) == dead_letters.DismissResult(1, 0)

    assert engine.get(acme, parent).cancel_reason == "not wanted"
    ended = [
        engine.status(acme, one) for one in (parent, subtask, approval, escalations_of(acme, parent)[0].pk)
    ]
    assert ended == ["cancelled"] * 4
    assert dismiss(acme) == dead_letters.DismissResult(0, 1)


@pytest.mark.parametrize("end", ["cancel", "dismiss"])
def test_an_approval_about_an_escalation_is_withdrawn_with_it(engine: Engine, acme: Tenant, end: str) -> None:
    (activity_id,) = submit_failing(engine, acme)
    dead_letters.handle_waiting()
    (escalation,) = escalations_of(acme, activity_id)
    approval = open_approval(acme, [escalation.pk])

    if end == "cancel":
        cancellation.cancel(acme.pk, activity_id, actor="Ann")
    else:
        dismiss(acme)

    assert engine.get(acme, approval).cancel_reason == "obsolete"


@pytest.mark.parametrize("action", [replay, dismiss])
def test_the_number_of_statements_does_not_grow_with_the_number_of_letters(
    engine: Engine, acme: Tenant, action: Any
) -> None:
    def count_statements(count: int) -> int:
        create_dead_letters(acme, count)
        dead_letters.handle_waiting()
        return statements(lambda: action(acme))

    assert count_statements(50) == count_statements(5)


# Fingerprints


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ("Call 17 took 3.5 s", "Call 4 took 12 s", True),
        ("No row 01a1fe76-7de1-71e1-b7db-c97c6c75aabc", "No row 01a1fe78-7ca3-763e-811a-d84fca142754", True),
        ("GET https://a.example/x?y=1 failed", "GET https://b.example/ failed", True),
        ("KeyError: 'title'", "KeyError: 'body'", False),
        ('HTTP 422: {"error": "no title"}', 'HTTP 422: {"error": "no body"}', False),
        ('HTTP 422: {"error": "row 7"}', 'HTTP 422: {"error": "row 12"}', True),
        ('See "https://a.example/7" for more', 'See "https://b.example/8" for more', True),
        ("Out of  memory", "out of memory", True),
        ("Cannot connect", "Cannot resolve", False),
        ("can't parse titles, won't retry", "can't parse bodies, won't retry", False),
        ("x" * 600 + " first", "x" * 600 + " second", True),
        ("id " + "9" * 450 + " " + "why " * 30, "id 9 " + "why " * 30, True),
    ],
)
def test_failures_that_differ_only_in_numbers_ids_and_addresses_have_equal_fingerprints(
    one: str, other: str, are_equal: bool
) -> None:
    fingerprints = {
        dead_letter_records.fingerprint_of("qa", {"code": "c", "message": message})
        for message in (one, other)
    }

    assert (len(fingerprints) == 1) is are_equal


def test_failures_of_other_roles_or_codes_have_other_fingerprints() -> None:
    fingerprints = {
        dead_letter_records.fingerprint_of(role, {"code": code, "message": "no"})
        for role in ("qa", "dev")
        for code in ("a", "b")
    }

    assert len(fingerprints) == 4
