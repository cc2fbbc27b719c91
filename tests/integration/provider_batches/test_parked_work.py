"""Which work waits for a batch, what waiting means for it, and what leaves early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from activities import cancellation, provider_batches
from activities.admission import Exchange, rebuilding
from activities.exceptions import RunSuperseded
from activities.maintenance import invariants, recovery
from activities.wait_reasons import explain_many, why
from agents.contracts import Completed, Parked
from benchmarks.fake_provider import FakeProvider
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine
from tests.integration.provider_batches.parked_work import NORMAL, content, statuses
from tests.integration.recovery.losses import Died
from tests.spending import token_of


def paths(provider: FakeProvider) -> Counter[str]:
    return Counter(call.path for call in provider.recorder.calls)


def test_low_work_is_parked_and_holds_no_slot(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    found = batched(12)  # the role has five slots for this tenant

    assert statuses(engine, tenant, found) == ["in_progress"] * 12
    assert {run.worker_id for each in found for run in engine.runs(tenant, each)} == {None}
    assert provider.recorder.calls == []
    assert invariants.check(quiesced=True, since=datetime.now(UTC) - timedelta(hours=1)) == []


def test_admission_that_was_built_anew_gives_parked_work_no_slot(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]]
) -> None:
    batched(12)

    rebuilding.rebuild()
    (urgent,) = batched(1, priority=NORMAL)

    assert engine.status(tenant, urgent) == "done"
    assert rebuilding.SlotAudit().compare() == (Exchange(), [])


def test_more_urgent_work_is_done_at_once(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    (found,) = batched(1, priority=NORMAL)

    assert engine.status(tenant, found) == "done"
    assert list(paths(provider)) == ["/v1/messages"]


def test_a_role_may_say_from_which_priority_on_its_work_can_wait(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]]
) -> None:
    with batching.with_options(batch_priority=NORMAL):
        (found,) = batched(1, priority=NORMAL)

    assert [item.activity_id for item in batching.items(tenant)] == [found]


def test_an_option_that_is_no_priority_is_named(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]]
) -> None:
    with batching.with_options(batch_priority="low"):
        (found,) = batched(1)

    failed = engine.get(tenant, found)
    assert failed.error is not None
    assert (failed.error["code"], "batch_priority" in failed.error["message"]) == (
        "agent_misconfigured",
        True,
    )


@pytest.mark.parametrize("moment", ["expires_at", "timeout_seconds"])
def test_work_that_is_wanted_soon_does_not_wait(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]], moment: str
) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=20) if moment == "expires_at" else 600

    (found,) = batched(1, **{moment: soon})

    assert engine.status(tenant, found) == "done"


def test_a_run_that_waits_for_a_batch_may_take_a_day(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]]
) -> None:
    (found,) = batched(1)

    (run,) = engine.runs(tenant, found)
    assert (run.timeout_seconds, run.parked) == (86_400, True)
    assert recovery.end_overdue_runs() == 0
    assert engine.get(tenant, found).max_attempts == 5


def test_work_of_a_group_keeps_its_group_waiting(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]]
) -> None:
    found = batched(2, group_key="one-at-a-time")

    assert sorted(statuses(engine, tenant, found)) == ["created", "in_progress"]


def test_what_waits_for_a_batch_says_so(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]]
) -> None:
    (found,) = batched(1)

    collected = why(tenant.pk, found)
    with tenant_scope(tenant.pk):
        listed = explain_many(tenant.pk, [engine.get(tenant, found)])[found]

    assert (collected.code, listed.code) == ("batch", "batch")
    assert "1 of 3" in collected.detail


@pytest.mark.parametrize("sent", [False, True])
def test_work_that_is_wanted_soon_by_now_goes_on_at_once_and_its_late_answer_counts_for_nothing(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]], sent: bool
) -> None:
    (found, *_) = batched(3, expires_at=datetime.now(UTC) + timedelta(hours=5))
    if sent:
        batching.look_after(tenant)
    first = batching.items(tenant, found)[0]
    with tenant_scope(tenant.pk):
        type(first).objects.filter(pk=first.pk).update(leave_at=datetime.now(UTC))

    assert provider_batches.move_leaving() == 1
    engine.make_due(tenant)
    engine.drain()
    provider.batches.polls_until_done = 1
    batching.let_time_pass(tenant, created_at=timedelta(days=1))
    batching.look_after(tenant, turns=2)

    assert content(tenant, engine, found) == "All right."
    assert batching.items(tenant, found)[0].state == "moved"
    assert [len(engine.runs(tenant, found)), paths(provider)["/v1/messages"]] == [2, 1]
    assert sorted(item.state for item in batching.items(tenant)) == ["answered", "answered", "moved"]


def test_cancelled_work_is_not_sent(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    first, *_ = batched(4)
    cancellation.cancel(tenant.pk, first, actor="test")

    batching.look_after(tenant)

    assert [len(batch.requests) for batch in provider.batches.batches.values()] == [3]
    assert batching.items(tenant, first)[0].state == "dropped"


def test_work_that_is_cancelled_during_its_call_waits_for_no_batch(engine: Engine, tenant: Tenant) -> None:
    def is_being_done(request: object) -> Completed:
        raise Died

    engine.serve(tenant)
    engine.agent.behaviour = is_being_done
    (found,) = engine.submit(tenant)
    with pytest.raises(Died):
        engine.deliver()
    run = token_of(tenant, found)
    cancellation.cancel(tenant.pk, found, actor="Ann")

    parked = Parked(provider="p", model="m", body={}, leave_at=datetime.now(UTC) + timedelta(hours=5))
    with pytest.raises(RunSuperseded):
        provider_batches.park(run, parked, engine.get(tenant, found))

    assert batching.items(tenant) == []


def test_a_batch_that_nobody_wants_any_more_is_cancelled_at_its_provider(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.polls_until_done = 99
    found = batched(3)
    batching.look_after(tenant)
    for each in found:
        cancellation.cancel(tenant.pk, each, actor="test")

    batching.look_after(tenant)

    (there,) = provider.batches.batches.values()
    assert there.cancelled
    assert [batch.state for batch in batching.batches(tenant)] == ["ended"]
