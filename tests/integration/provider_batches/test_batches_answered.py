"""Each answer in a batch becomes the result of its run, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

from activities import provider_batches
from activities.models import ActivityEvent
from benchmarks.fake_provider import FakeProvider, Turn, Use
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine, simultaneously
from tests.integration.provider_batches.parked_work import content, statuses


def test_every_answer_is_the_result_of_its_run(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    ids = submit_batched(3)

    batching.run_background_tasks(tenant, turns=2)

    assert statuses(engine, tenant, ids) == ["done"] * 3
    for item in batching.items(tenant):
        assert content(tenant, engine, item.activity_id) == f"Done: {item.pk.hex}"
        assert (item.state, item.body) == ("answered", None)
    assert [batch.state for batch in batching.batches(tenant)] == ["ended"]


def test_usage_in_a_batch_costs_half(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    settings: Any,
) -> None:
    settings.ORCHESTRATOR_MODEL_PRICES = {"m-1": [10, 20]}
    provider.batches.answering = lambda body: Turn("x", input_tokens=1_000, output_tokens=500)
    (activity_id, *_) = submit_batched(3)

    batching.run_background_tasks(tenant, turns=2)

    (run,) = engine.runs(tenant, activity_id)
    assert run.usage is not None
    assert (run.usage["input_tokens"], run.usage["output_tokens"]) == (1_000, 500)
    assert Decimal(run.usage["cost_usd"]) == (Decimal(1_000) * 10 + Decimal(500) * 20) / 1_000_000 / 2


def test_only_failed_items_are_retried(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    ids = submit_batched(3)
    failed, expired, answered = batching.items(tenant)
    outcomes = iter(["api_error", "expired", None])
    provider.batches.answering = lambda body: next(outcomes, None)

    batching.run_background_tasks(tenant, turns=2)
    engine.make_due(tenant)
    engine.drain()

    attempts = {each: len(engine.runs(tenant, each)) for each in ids}
    assert attempts == {failed.activity_id: 2, expired.activity_id: 2, answered.activity_id: 1}
    assert [item.state for item in batching.items(tenant)] == [
        "failed", "failed", "answered", "collected", "collected"
    ]  # fmt: skip


def test_an_invalid_request_fails_permanently(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    outcomes = iter(["invalid_request_error"])
    provider.batches.answering = lambda body: next(outcomes, None)
    ids = submit_batched(3)

    batching.run_background_tasks(tenant, turns=2)

    assert sorted(statuses(engine, tenant, ids)) == ["done", "done", "failed"]


def test_an_answer_with_a_tool_call_continues_by_direct_calls(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    subtask = {"name": "Pictures", "description": "Find two.", "human_role": "editor", "blocking": False}
    outcomes = iter(
        [Turn("I need help.", (Use("create_subtask", subtask),), input_tokens=40, output_tokens=9)]
    )
    provider.batches.answering = lambda body: next(outcomes, None)
    provider.script(Turn("All done.", input_tokens=50, output_tokens=4))
    submit_batched(3)

    batching.run_background_tasks(tenant, turns=2)
    engine.make_due(tenant)
    engine.drain()

    item = batching.items(tenant)[0]
    runs = engine.runs(tenant, item.activity_id)
    assert (item.state, engine.status(tenant, item.activity_id)) == ("moved", "done")
    assert content(tenant, engine, item.activity_id) == "All done."
    assert [(run.usage or {}).get("input_tokens") for run in runs] == [40, 50]
    (body,) = [call.body for call in provider.recorder.calls if call.path == "/v1/messages"]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert engine.get(tenant, item.activity_id).attempts == 1


def test_a_repeated_answer_counts_once(
    engine: Engine, tenant: Tenant, submit_batched: Callable[..., list[UUID]], provider: FakeProvider
) -> None:
    ids = submit_batched(3)
    batching.run_background_tasks(tenant)
    (batch,) = batching.batches(tenant)
    batching.make_due(tenant)

    simultaneously(*[lambda: provider_batches.poll(batch, provider_batches.client_for(batch))] * 3)

    assert statuses(engine, tenant, ids) == ["done"] * 3
    with tenant_scope(tenant.pk):
        completions = ActivityEvent.objects.filter(verb="complete").values_list("activity_id", flat=True)
        assert Counter(completions) == dict.fromkeys(ids, 1)


def test_an_item_without_an_answer_is_retried(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    submit_batched(3)
    batching.run_background_tasks(tenant)
    (sent,) = provider.batches.batches.values()
    sent.results.pop()

    batching.run_background_tasks(tenant)

    assert sorted(item.state for item in batching.items(tenant)) == ["answered", "answered", "failed"]
