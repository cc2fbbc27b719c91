"""Work that goes to its provider in batches: who waits for one, when it goes out, what its answers mean, and who leaves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from activities import cancellation, invariants, outputs, recovery
from activities.admission import Exchange, rebuilding
from activities.batches import collecting, gathering, leaving, tending
from activities.models import ActivityEvent
from activities.waiting import briefly, why
from agents import outbound
from agents.governor import known
from benchmarks.fake_provider import FakeProvider, Fault, Turn, Use
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine, at_once

pytest.importorskip("anthropic", reason="pip install orchestrator[llm] for the adapter batch")

LOW, NORMAL = 20, 10


@pytest.fixture
def provider(settings: Any) -> Iterator[FakeProvider]:
    with FakeProvider() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
        settings.ORCHESTRATOR_BATCH_SIZE = 3
        known._noted.clear()
        yield running
    outbound.close_connections()


@pytest.fixture
def batched(engine: Engine, tenant: Tenant, provider: FakeProvider) -> Callable[..., list[UUID]]:
    """`batched(3)`: so much low work, started and waiting for a batch."""
    batching.serve(engine, tenant, provider)

    def made(count: int = 1, **fields: Any) -> list[UUID]:
        found = engine.submit(tenant, count=count, **{"priority": LOW, **fields})
        engine.drain()
        return found

    return made


def content(tenant: Tenant, engine: Engine, activity_id: UUID) -> str | None:
    reference = engine.get(tenant, activity_id).output_ref
    found = outputs.read(tenant.pk, reference) if reference else None
    return found.content if found else None


def paths(provider: FakeProvider) -> Counter[str]:
    return Counter(call.path for call in provider.recorder.calls)


def statuses(engine: Engine, tenant: Tenant, found: list[UUID]) -> list[str]:
    return [engine.status(tenant, each) for each in found]


# Who waits for a batch


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
        listed = briefly(tenant.pk, [engine.get(tenant, found)])[found]

    assert (collected.code, listed.code) == ("batch", "batch")
    assert "1 of 3" in collected.detail


# When a batch goes out


def test_a_batch_goes_out_when_it_is_full(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    batched(7)

    batching.look_after(tenant)

    assert [len(batch.requests) for batch in provider.batches.batches.values()] == [3, 3]
    assert len([item for item in batching.items(tenant) if item.state == "collected"]) == 1


def test_a_batch_that_is_not_full_goes_out_when_its_oldest_has_waited_enough(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]], settings: Any
) -> None:
    batched(2)
    batching.look_after(tenant)
    early = len(provider.batches.batches)
    batching.let_time_pass(tenant, created_at=timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS + 1))

    batching.look_after(tenant)

    assert (early, [len(batch.requests) for batch in provider.batches.batches.values()]) == (0, [2])


def test_a_batch_holds_no_more_bytes_than_it_may(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]], settings: Any
) -> None:
    batched(3)
    settings.ORCHESTRATOR_BATCH_MAX_BYTES = max(item.bytes for item in batching.items(tenant)) * 2

    gathering.gather()
    batching.look_after(tenant)

    assert [batch.size for batch in batching.batches(tenant)] == [2]


def test_models_and_tenants_do_not_share_batches(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    provider: FakeProvider,
    batched: Callable[..., list[UUID]],
) -> None:
    batched(3)
    batching.serve(engine, tenant, provider, "dev", model="m-2")
    batching.serve(engine, other_tenant, provider)
    engine.submit(tenant, "dev", count=3, priority=LOW)
    engine.submit(other_tenant, count=3, priority=LOW)
    engine.drain()

    gathering.gather()

    assert [(batch.model, batch.size) for batch in batching.batches(tenant)] == [("m-1", 3), ("m-2", 3)]
    assert [(batch.model, batch.size) for batch in batching.batches(other_tenant)] == [("m-1", 3)]


def test_two_who_gather_at_once_bind_every_item_once(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]]
) -> None:
    batched(12)

    at_once(*[gathering.gather] * 3)
    gathering.gather()

    assert [batch.size for batch in batching.batches(tenant)] == [3, 3, 3, 3]
    assert Counter(item.batch_id for item in batching.items(tenant)).most_common(1)[0][1] == 3


# What an answer means


def test_every_answer_is_the_result_of_its_own_run(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    found = batched(3)

    batching.look_after(tenant, turns=2)

    assert statuses(engine, tenant, found) == ["done"] * 3
    for item in batching.items(tenant):
        assert content(tenant, engine, item.activity_id) == f"Done: {item.pk.hex}"
        assert (item.state, item.body) == ("answered", None)
    assert [batch.state for batch in batching.batches(tenant)] == ["ended"]


def test_what_goes_through_a_batch_costs_half(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]], settings: Any
) -> None:
    settings.ORCHESTRATOR_MODEL_PRICES = {"m-1": [10, 20]}
    provider.batches.answering = lambda body: Turn("x", input_tokens=1_000, output_tokens=500)
    (found, *_) = batched(3)

    batching.look_after(tenant, turns=2)

    (run,) = engine.runs(tenant, found)
    assert run.usage is not None
    assert (run.usage["input_tokens"], run.usage["output_tokens"]) == (1_000, 500)
    assert Decimal(run.usage["cost_usd"]) == (Decimal(1_000) * 10 + Decimal(500) * 20) / 1_000_000 / 2


def test_only_what_failed_is_tried_again(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    found = batched(3)
    unlucky, expired, lucky = batching.items(tenant)
    fates = iter(["api_error", "expired", None])
    provider.batches.answering = lambda body: next(fates, None)

    batching.look_after(tenant, turns=2)
    engine.make_due(tenant)
    engine.drain()

    attempts = {each: len(engine.runs(tenant, each)) for each in found}
    assert attempts == {unlucky.activity_id: 2, expired.activity_id: 2, lucky.activity_id: 1}
    assert [item.state for item in batching.items(tenant)] == [
        "failed", "failed", "answered", "collected", "collected"
    ]  # fmt: skip


def test_a_request_that_the_provider_finds_invalid_fails_for_good(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    fates = iter(["invalid_request_error"])
    provider.batches.answering = lambda body: next(fates, None)
    found = batched(3)

    batching.look_after(tenant, turns=2)

    assert sorted(statuses(engine, tenant, found)) == ["done", "done", "failed"]


def test_an_answer_that_asks_for_a_tool_goes_on_at_once_from_there(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    beside = {"name": "Pictures", "description": "Find two.", "human_role": "editor", "blocking": False}
    fates = iter([Turn("I need help.", (Use("create_subtask", beside),), input_tokens=40, output_tokens=9)])
    provider.batches.answering = lambda body: next(fates, None)
    provider.script(Turn("All done.", input_tokens=50, output_tokens=4))
    batched(3)

    batching.look_after(tenant, turns=2)
    engine.make_due(tenant)
    engine.drain()

    asked = batching.items(tenant)[0]
    runs = engine.runs(tenant, asked.activity_id)
    assert (asked.state, engine.status(tenant, asked.activity_id)) == ("moved", "done")
    assert content(tenant, engine, asked.activity_id) == "All done."
    assert [(run.usage or {}).get("input_tokens") for run in runs] == [40, 50]
    (body,) = [call.body for call in provider.recorder.calls if call.path == "/v1/messages"]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert engine.get(tenant, asked.activity_id).attempts == 1


def test_an_answer_that_came_twice_counts_once(
    engine: Engine, tenant: Tenant, batched: Callable[..., list[UUID]], provider: FakeProvider
) -> None:
    found = batched(3)
    batching.look_after(tenant)
    (batch,) = batching.batches(tenant)
    batching.make_due(tenant)

    at_once(*[lambda: collecting.look(batch, tending.door_of(batch))] * 3)

    assert statuses(engine, tenant, found) == ["done"] * 3
    with tenant_scope(tenant.pk):
        completions = ActivityEvent.objects.filter(verb="complete").values_list("activity_id", flat=True)
        assert Counter(completions) == dict.fromkeys(found, 1)


def test_an_item_without_an_answer_is_tried_again(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    batched(3)
    batching.look_after(tenant)
    (sent,) = provider.batches.batches.values()
    sent.results.pop()

    batching.look_after(tenant)

    assert sorted(item.state for item in batching.items(tenant)) == ["answered", "answered", "failed"]


# Who leaves


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

    assert leaving.leave() == 1
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


# What the provider may do


def test_a_batch_whose_answer_was_lost_is_found_again_and_not_sent_twice(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.lost = 1
    found = batched(3)

    batching.look_after(tenant, turns=3)

    assert len(provider.batches.batches) == 1
    assert statuses(engine, tenant, found) == ["done"] * 3
    assert [batch.sendings for batch in batching.batches(tenant)] == [1]


def test_a_batch_that_the_provider_does_not_have_is_sent_again_and_that_is_counted(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=529))
    found = batched(3)

    batching.look_after(tenant, turns=4)

    assert len(provider.batches.batches) == 1
    assert [batch.sendings for batch in batching.batches(tenant)] == [2]
    assert statuses(engine, tenant, found) == ["done"] * 3


def test_somebody_elses_batch_is_not_taken_for_ours(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=529))
    found = batched(3)
    provider.batches.create({"requests": [{"custom_id": f"theirs-{number}"} for number in range(3)]})

    batching.look_after(tenant, turns=6)

    (batch,) = batching.batches(tenant)
    assert (batch.state, batch.not_ours) == ("ended", ["msgbatch_1"])
    assert statuses(engine, tenant, found) == ["done"] * 3


def test_a_provider_that_has_enough_gets_the_batch_later(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=429, retry_after="40"))
    batched(3)

    gathering.gather()
    tending.tend()

    (batch,) = batching.batches(tenant)
    assert (batch.state, batch.error["code"]) == ("bound", "rate_limited")
    assert timedelta(seconds=30) < batch.due_at - datetime.now(UTC) <= timedelta(seconds=40)


def test_a_batch_that_is_refused_fails_its_items_for_good(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    provider.batches.refusals.append(Fault(status=400))
    found = batched(3)

    batching.look_after(tenant)

    assert statuses(engine, tenant, found) == ["failed"] * 3
    assert [batch.state for batch in batching.batches(tenant)] == ["refused"]


def test_a_role_that_is_done_otherwise_by_now_takes_its_work_with_it(
    engine: Engine, tenant: Tenant, provider: FakeProvider, batched: Callable[..., list[UUID]]
) -> None:
    found = batched(3)
    batching.look_after(tenant)
    engine.serve(tenant, batching.ROLE)

    batching.look_after(tenant)
    engine.make_due(tenant)
    engine.drain()

    assert statuses(engine, tenant, found) == ["done"] * 3
    assert len(engine.agent.calls) == 3


# What people see


def test_operators_see_batches_and_items_of_their_tenant_only(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    batched: Callable[..., list[UUID]],
    api: Callable[..., Any],
) -> None:
    found = batched(4)
    batching.look_after(tenant)

    (batch,) = api("operator").get("/api/v1/batches/").json()["results"]
    one = api("operator").get(f"/api/v1/batches/{batch['id']}/").json()
    waiting = api("operator").get("/api/v1/batch-items/?state=collected").json()["results"]
    bound = api("operator").get(f"/api/v1/batch-items/?batch={batch['id']}").json()["results"]

    assert (one["state"], one["size"], one["items"]["bound"], one["external_id"]) == (
        "sent",
        3,
        3,
        "msgbatch_1",
    )
    assert one["provider"].startswith("anthropic at 127.0.0.1:")
    assert {item["activity"] for item in waiting + bound} == set(map(str, found))
    stranger = api("operator", other_tenant)
    assert stranger.get("/api/v1/batches/").json()["results"] == []
    assert stranger.get("/api/v1/batch-items/").json()["results"] == []
    assert stranger.get(f"/api/v1/batches/{batch['id']}/").status_code == 404
    assert api("viewer").get("/api/v1/batches/").status_code == 403
    assert api("admin").post("/api/v1/batches/", {}, format="json").status_code == 405
