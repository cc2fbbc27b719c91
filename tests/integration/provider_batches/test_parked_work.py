"""Which work waits for a batch, how it waits, and which work leaves early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import OperationalError
from django.db.models.functions import Now
from psycopg.errors import LockNotAvailable

from activities import cancellation, provider_batches
from activities.admission import Exchange, rebuilding
from activities.exceptions import RunSuperseded
from activities.execution import results
from activities.maintenance import invariants, recovery
from activities.models import ActivityRun, BatchItem
from activities.run_tokens import RunToken
from activities.wait_reasons import explain_many, why
from agents.contracts import AdapterSettings, Completed, Parked
from benchmarks.fake_provider import FakeProvider, Turn, Use
from tenants import sweeps
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.accepted_work import child
from tests.engine import Engine
from tests.integration.provider_batches.parked_work import NORMAL, content, statuses
from tests.integration.recovery.losses import Died
from tests.spending import run_token_of
from tests.subjects import a_request


def paths(provider: FakeProvider) -> Counter[str]:
    return Counter(call.path for call in provider.recorder.calls)


def test_work_of_low_priority_is_parked_and_holds_no_slot(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    ids = submit_batched(12)  # because the role has five slots for this tenant

    assert statuses(engine, tenant, ids) == ["in_progress"] * 12
    assert {run.worker_id for each in ids for run in engine.runs(tenant, each)} == {None}
    assert provider.recorder.calls == []
    assert invariants.check(quiesced=True, since=datetime.now(UTC) - timedelta(hours=1)) == []


def test_rebuilt_admission_gives_parked_work_no_slot(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]]
) -> None:
    submit_batched(12)

    rebuilding.rebuild()
    (urgent,) = submit_batched(1, priority=NORMAL)

    assert engine.status(tenant, urgent) == "done"
    assert rebuilding.SlotAudit().compare() == (Exchange(), [])


def test_work_of_higher_priority_is_done_at_once(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    (activity_id,) = submit_batched(1, priority=NORMAL)

    assert engine.status(tenant, activity_id) == "done"
    assert list(paths(provider)) == ["/v1/messages"]


def test_a_role_may_set_the_priority_from_which_work_waits(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]]
) -> None:
    with batching.with_options(batch_priority=NORMAL):
        (activity_id,) = submit_batched(1, priority=NORMAL)

    assert [item.activity_id for item in batching.items(tenant)] == [activity_id]


def test_an_invalid_batch_priority_is_a_configuration_error(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]]
) -> None:
    with batching.with_options(batch_priority="low"):
        (activity_id,) = submit_batched(1)

    failed = engine.get(tenant, activity_id)
    assert failed.error is not None
    assert (failed.error["code"], "batch_priority" in failed.error["message"]) == (
        "agent_misconfigured",
        True,
    )


@pytest.mark.parametrize("moment", ["expires_at", "timeout_seconds"])
def test_work_with_little_time_does_not_wait(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]], moment: str
) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=20) if moment == "expires_at" else 600

    (activity_id,) = submit_batched(1, **{moment: soon})

    assert engine.status(tenant, activity_id) == "done"


def test_a_run_that_waits_for_a_batch_has_a_timeout_of_a_day(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]]
) -> None:
    (activity_id,) = submit_batched(1)

    (run,) = engine.runs(tenant, activity_id)
    assert (run.timeout_seconds, run.parked) == (86_400, True)
    assert recovery.end_overdue_runs() == 0
    assert engine.get(tenant, activity_id).max_attempts == 5


def test_parked_work_still_blocks_its_group(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]]
) -> None:
    ids = submit_batched(2, group_key="one-at-a-time")

    assert sorted(statuses(engine, tenant, ids)) == ["created", "in_progress"]


def test_the_waiting_reason_of_parked_work_is_the_batch(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]]
) -> None:
    (activity_id,) = submit_batched(1)

    collected = why(tenant.pk, activity_id)
    with tenant_scope(tenant.pk):
        listed = explain_many(tenant.pk, [engine.get(tenant, activity_id)])[activity_id]

    assert (collected.code, listed.code) == ("batch", "batch")
    assert "1 of 3" in collected.detail


@pytest.mark.parametrize("sent", [False, True])
def test_work_that_leaves_its_batch_runs_at_once_and_ignores_the_late_answer(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    sent: bool,
) -> None:
    (activity_id, *_) = submit_batched(3, expires_at=datetime.now(UTC) + timedelta(hours=5))
    if sent:
        batching.run_background_tasks(tenant)
    first = batching.items(tenant, activity_id)[0]
    with tenant_scope(tenant.pk):
        type(first).objects.filter(pk=first.pk).update(leave_at=datetime.now(UTC))

    assert provider_batches.move_leaving() == 1
    engine.make_due(tenant)
    engine.drain()
    provider.batches.polls_until_done = 1
    batching.let_time_pass(tenant, created_at=timedelta(days=1))
    batching.run_background_tasks(tenant, turns=2)

    assert content(tenant, engine, activity_id) == "All right."
    assert batching.items(tenant, activity_id)[0].state == "moved"
    assert [len(engine.runs(tenant, activity_id)), paths(provider)["/v1/messages"]] == [2, 1]
    assert sorted(item.state for item in batching.items(tenant)) == ["answered", "answered", "moved"]


@pytest.mark.parametrize("stopped", ["paused", "suspended"])
def test_work_that_could_not_start_again_stays_in_its_batch(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    stopped: str,
) -> None:
    (activity_id, other, _) = submit_batched(3, expires_at=datetime.now(UTC) + timedelta(hours=5))
    batching.run_background_tasks(tenant)
    with system_scope():
        changes = {"paused": True} if stopped == "paused" else {"is_active": False}
        Tenant.objects.filter(pk=tenant.pk).update(**changes)
    with tenant_scope(tenant.pk):
        BatchItem.objects.filter(activity_id=activity_id).update(leave_at=datetime.now(UTC))

    moved = provider_batches.move_leaving()
    batching.run_background_tasks(tenant)

    assert moved == 0
    assert statuses(engine, tenant, [activity_id, other]) == ["done", "done"]
    assert paths(provider)["/v1/messages"] == 0


def test_work_that_cannot_leave_its_batch_keeps_no_other_from_leaving(
    engine: Engine,
    tenant: Tenant,
    submit_batched: Callable[..., list[UUID]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    submit_batched(2)
    stuck, other = batching.items(tenant)
    batching.let_time_pass(tenant, leave_at=timedelta(days=2))
    record_failed = results.record_failed

    def record_others(run: RunToken, *arguments: Any, **named: Any) -> Any:
        if run.run_id == stuck.run_id:
            raise OperationalError("lock timeout") from LockNotAvailable("lock timeout")
        return record_failed(run, *arguments, **named)

    monkeypatch.setattr(results, "record_failed", record_others)

    provider_batches.move_leaving()

    states = {item.pk: item.state for item in batching.items(tenant)}
    assert states == {stuck.pk: "collected", other.pk: "moved"}


def test_cancelled_work_is_not_sent(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    first, *_ = submit_batched(4)
    cancellation.cancel(tenant.pk, first, actor="test")

    batching.run_background_tasks(tenant)

    assert [len(batch.requests) for batch in provider.batches.batches.values()] == [3]
    assert batching.items(tenant, first)[0].state == "dropped"


@pytest.mark.parametrize("bound", [False, True])
def test_the_item_of_cancelled_work_is_dropped_at_once(
    api: Any,
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    bound: bool,
) -> None:
    provider.batches.polls_until_done = 99
    ids = submit_batched(3)
    if bound:
        batching.run_background_tasks(tenant)

    cancellation.cancel(tenant.pk, ids[0], actor="test")

    items = {each["activity"]: each for each in api("operator").get("/api/v1/batch-items/").json()["results"]}
    states = [items[str(activity_id)]["state"] for activity_id in ids]
    assert states == ["dropped", *(["bound", "bound"] if bound else ["collected", "collected"])]
    assert items[str(ids[0])]["closed_at"] is not None


def test_an_overdue_run_leaves_its_batch_at_once_so_that_its_retry_names_its_own(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.polls_until_done = 99
    (activity_id, *_) = submit_batched(3)
    batching.run_background_tasks(tenant)
    with tenant_scope(tenant.pk):
        ActivityRun.objects.filter(activity_id=activity_id).update(accepted_at=Now() - timedelta(days=2))

    assert recovery.end_overdue_runs() == 1
    engine.make_due(tenant)
    engine.drain()

    assert [item.state for item in batching.items(tenant, activity_id)] == ["dropped", "collected"]
    assert "1 of 3" in why(tenant.pk, activity_id).detail


def test_items_of_an_overdue_run_are_locked_before_the_budgets_that_its_end_locks(
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider.batches.polls_until_done = 99
    (activity_id, *_) = submit_batched(3)
    batching.run_background_tasks(tenant)
    with tenant_scope(tenant.pk):
        ActivityRun.objects.filter(activity_id=activity_id).update(accepted_at=Now() - timedelta(days=2))
    states_at_the_end: list[list[str]] = []

    def record_failed(*arguments: Any, **options: Any) -> Any:
        states_at_the_end.append([item.state for item in batching.items(tenant, activity_id)])
        return original(*arguments, **options)

    original = results.record_failed
    monkeypatch.setattr(results, "record_failed", record_failed)

    recovery.end_overdue_runs()

    assert states_at_the_end == [["dropped"]]


def test_work_cancelled_during_its_call_is_not_parked(engine: Engine, tenant: Tenant) -> None:
    def die(request: object) -> Completed:
        raise Died

    engine.serve(tenant)
    engine.agent.behaviour = die
    (activity_id,) = engine.submit(tenant)
    with pytest.raises(Died):
        engine.deliver()
    run = run_token_of(tenant, activity_id)
    cancellation.cancel(tenant.pk, activity_id, actor="Ann")

    parked = Parked(provider="p", model="m", body={}, leave_at=datetime.now(UTC) + timedelta(hours=5))
    with pytest.raises(RunSuperseded):
        provider_batches.park(run, parked, engine.get(tenant, activity_id))

    assert batching.items(tenant) == []


def test_a_batch_of_cancelled_work_is_cancelled_at_the_provider(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.polls_until_done = 99
    ids = submit_batched(3)
    batching.run_background_tasks(tenant)
    for each in ids:
        cancellation.cancel(tenant.pk, each, actor="test")

    batching.run_background_tasks(tenant)

    (batch_at_provider,) = provider.batches.batches.values()
    assert batch_at_provider.cancelled
    assert [batch.state for batch in batching.batches(tenant)] == ["ended"]


def test_a_batch_that_some_work_still_waits_for_is_not_cancelled(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.polls_until_done = 99
    first, second, _ = submit_batched(3)
    batching.run_background_tasks(tenant)
    for each in (first, second):
        cancellation.cancel(tenant.pk, each, actor="test")

    batching.run_background_tasks(tenant)

    (batch_at_provider,) = provider.batches.batches.values()
    assert not batch_at_provider.cancelled


def test_a_batch_whose_work_has_ended_before_it_is_sent_ends_without_being_sent(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    submit_batched(3)
    provider_batches.bind_items()
    with tenant_scope(tenant.pk):
        ActivityRun.objects.update(status="failed")

    batching.run_background_tasks(tenant)

    assert list(provider.batches.batches.values()) == []
    assert [batch.state for batch in batching.batches(tenant)] == ["ended"]


@pytest.mark.parametrize("has_provider", [True, False])
def test_a_purge_cancels_batches_at_their_providers_and_names_the_others(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    has_provider: bool,
) -> None:
    provider.batches.polls_until_done = 99
    submit_batched(3)
    batching.run_background_tasks(tenant)
    if not has_provider:
        engine.serve(tenant, batching.ROLE, adapter="inline")
    notes = StringIO()

    call_command(
        "offboard_tenant", tenant.slug, "--purge", "--confirm", tenant.slug, stdout=StringIO(), stderr=notes
    )

    ((external_id, batch_at_provider),) = provider.batches.batches.items()
    assert batch_at_provider.cancelled == has_provider
    assert (f"{external_id} at anthropic" in notes.getvalue()) == (not has_provider)
    assert batching.batches(tenant) == []


def test_only_the_next_run_continues_the_answer_with_which_work_left_its_batch(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]]
) -> None:
    (activity_id,) = submit_batched(1)
    provider_batches.move_to_real_time(batching.items(tenant, activity_id)[0], "x", begun={"id": "m-1"})
    activity = engine.get(tenant, activity_id)
    request = a_request(AdapterSettings("batch"))

    histories = []
    for activity.fence in (2, 3):
        of_run = provider_batches.with_history(request, activity)
        histories.append((of_run.at_once, of_run.begun))

    assert histories == [(True, {"id": "m-1"}), (True, None)]


def test_work_that_left_a_batch_may_wait_for_one_again_after_it_was_suspended(
    api: Any,
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
) -> None:
    question = {"name": "Pictures", "description": "Find two.", "human_role": "editor", "blocking": True}
    provider.script(Turn("I need help.", (Use("create_subtask", question),)), Turn("All done."))
    (activity_id,) = submit_batched(1)

    def leave() -> None:
        with tenant_scope(tenant.pk):
            BatchItem.objects.filter(activity_id=activity_id, closed_at=None).update(
                leave_at=datetime.now(UTC)
            )
        assert provider_batches.move_leaving() == 1
        engine.make_due(tenant)
        engine.drain()

    leave()
    assert engine.status(tenant, activity_id) == "awaiting_subtask"
    subtask = child(tenant, activity_id)
    assert api("operator").post(f"/api/v1/activities/{subtask.pk}/complete/", {}).status_code == 200
    engine.drain()
    assert [item.state for item in batching.items(tenant, activity_id)] == ["moved", "collected"]

    (other,) = submit_batched(1)
    with tenant_scope(tenant.pk):
        ActivityRun.objects.filter(activity_id=other).update(status="completed", ended_at=Now(), fence=99)
    leave()
    assert [item.state for item in batching.items(tenant, activity_id)] == ["moved", "moved"]
    assert engine.status(tenant, activity_id) == "done"
