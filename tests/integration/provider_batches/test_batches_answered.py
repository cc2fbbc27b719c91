"""Each answer in a batch becomes the result of its run, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from django.db import OperationalError

from activities import cancellation, provider_batches
from activities.models import ActivityEvent, BatchItem, DeadLetter
from agents.batches import Answer
from benchmarks.fake_provider import FakeProvider, Turn, Use, anthropic_protocol
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine, simultaneously
from tests.integration.provider_batches.parked_work import content, statuses
from tests.spending import ledger_total


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

    simultaneously(
        *[lambda: provider_batches.poll(batch, provider_batches.client_for(batch, batching.ROLE))] * 3
    )

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


def _message(**changes: Any) -> dict[str, Any]:
    body = anthropic_protocol.message(Turn("Fine.", input_tokens=4, output_tokens=2), {"model": "m-1"})
    return {"type": "succeeded", "message": body | changes}


def _tool_call(argument: str) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "call_1", "name": "create_subtask", "input": {"name": argument}}
    return _message(content=[call], stop_reason="tool_use")


#: Results that cannot be read or stored, with the status and the error of the activity.
UNUSABLE: dict[str, tuple[dict[str, Any], str, str]] = {
    "no usage": (_message(usage=None), "created", "provider_answer_invalid"),
    "tokens as text": (
        _message(usage={"input_tokens": 4, "output_tokens": "2"}),
        "created",
        "provider_answer_invalid",
    ),
    "half a token": (
        _message(usage={"input_tokens": 4.5, "output_tokens": 2}),
        "created",
        "provider_answer_invalid",
    ),
    "model as list": (_message(model=["m-1"]), "created", "provider_answer_invalid"),
    "surrogate": (
        _message(content=[{"type": "text", "text": "\ud800"}]),
        "created",
        "provider_answer_invalid",
    ),
    "NUL in text": (_message(content=[{"type": "text", "text": "\x00"}]), "failed", "invalid_agent_answer"),
    "NUL in a call": (_tool_call("\x00"), "failed", "invalid_agent_answer"),
    "no message": ({"type": "succeeded", "message": 5}, "created", "provider_answer_invalid"),
    "unknown type": ({"type": "unknown"}, "created", "provider_answer_invalid"),
    "unknown error": ({"type": "errored", "error": "broken"}, "created", "provider_answer_invalid"),
}


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_answers_that_cannot_be_read_or_stored_delay_no_other(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    settings: Any,
    is_cancelled: bool,
) -> None:
    """One batch has them all, each followed by an answer that is valid."""
    settings.ORCHESTRATOR_BATCH_SIZE = count = 2 * len(UNUSABLE)
    submit_batched(count)
    batching.run_background_tasks(tenant)
    (sent,) = provider.batches.batches.values()
    for place, (result, _, _) in enumerate(UNUSABLE.values()):
        sent.results[2 * place]["result"] = result
    ids = [item.activity_id for item in batching.items(tenant)]
    broken, others = dict(zip(UNUSABLE, ids[::2], strict=True)), ids[1::2]
    if is_cancelled:
        for activity_id in broken.values():
            cancellation.cancel(tenant.pk, activity_id, actor="test")

    batching.run_background_tasks(tenant)

    assert statuses(engine, tenant, others) == ["done"] * len(others)
    assert [batch.state for batch in batching.batches(tenant)] == ["ended"]
    for name, (_, status, code) in UNUSABLE.items():
        activity = engine.get(tenant, broken[name])
        assert activity.status == ("cancelled" if is_cancelled else status), name
        assert is_cancelled or (activity.error or {})["code"] == code, name


def test_the_dead_letter_of_an_unusable_answer_includes_the_cost_of_that_answer(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    settings: Any,
) -> None:
    settings.ORCHESTRATOR_BATCH_SIZE, settings.ORCHESTRATOR_MODEL_PRICES = 1, {"m-1": [1_000_000, 2_000_000]}
    submit_batched()
    batching.run_background_tasks(tenant)
    (sent,) = provider.batches.batches.values()
    sent.results[0]["result"] = UNUSABLE["NUL in text"][0]

    batching.run_background_tasks(tenant)

    with tenant_scope(tenant.pk):
        assert DeadLetter.objects.get().cost_usd == ledger_total(tenant) == (4 * 1 + 2 * 2) / 2


def test_an_answer_that_cannot_be_recorded_delays_no_other(
    engine: Engine,
    tenant: Tenant,
    submit_batched: Callable[..., list[UUID]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit_batched(3)
    batching.run_background_tasks(tenant)
    broken, *others = batching.items(tenant)
    settle = provider_batches.settle_item

    def fail_for_one(item: BatchItem, answer: Answer) -> None:
        if item.pk == broken.pk:
            raise ValueError("a mistake")
        settle(item, answer)

    monkeypatch.setattr(provider_batches, "settle_item", fail_for_one)
    batching.run_background_tasks(tenant)

    assert statuses(engine, tenant, [item.activity_id for item in others]) == ["done", "done"]
    assert (engine.get(tenant, broken.activity_id).error or {})["code"] == "internal_error"


def test_an_outage_while_answers_are_recorded_fails_no_work(
    engine: Engine,
    tenant: Tenant,
    submit_batched: Callable[..., list[UUID]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = submit_batched(3)
    batching.run_background_tasks(tenant)

    with monkeypatch.context() as outage:
        outage.setattr(
            "activities.execution.results.persistently", Mock(side_effect=OperationalError("gone"))
        )
        with suppress(OperationalError):
            batching.run_background_tasks(tenant)
    assert statuses(engine, tenant, ids) == ["in_progress"] * 3

    batching.run_background_tasks(tenant)
    assert statuses(engine, tenant, ids) == ["done"] * 3


def test_answers_beyond_the_largest_size_of_results_are_requested_again(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    settings: Any,
) -> None:
    submit_batched(3)
    batching.run_background_tasks(tenant)
    (sent,) = provider.batches.batches.values()
    sent.results[2]["result"] = _message(content=[{"type": "text", "text": "long " * 100_000}])
    settings.ORCHESTRATOR_BATCH_RESULT_MAX_BYTES = 5_000

    batching.run_background_tasks(tenant)

    assert [item.state for item in batching.items(tenant)] == ["answered", "answered", "failed"]
    assert [batch.state for batch in batching.batches(tenant)] == ["ended"]


def test_results_without_a_single_id_are_read_again_later(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = submit_batched(3)
    batching.run_background_tasks(tenant)
    with monkeypatch.context() as during:
        during.setattr(provider.batches, "results", lambda batch_id: (200, b"<html>\nGateway\n</html>\n"))
        batching.run_background_tasks(tenant)
    assert statuses(engine, tenant, ids) == ["in_progress"] * 3

    batching.run_background_tasks(tenant)

    assert statuses(engine, tenant, ids) == ["done"] * 3


def test_results_for_unknown_requests_are_not_paid_for_again_and_again(
    engine: Engine, tenant: Tenant, provider: FakeProvider, submit_batched: Callable[..., list[UUID]]
) -> None:
    submit_batched(3)
    batching.run_background_tasks(tenant)
    (sent,) = provider.batches.batches.values()
    for number, result in enumerate(sent.results):
        result["custom_id"] = f"unknown-{number}"

    batching.run_background_tasks(tenant, turns=3)

    assert len(provider.batches.batches) == 1
    assert [item.state for item in batching.items(tenant)] == ["failed"] * 3


def test_answers_that_the_provider_had_before_all_work_was_cancelled_are_paid_for(
    engine: Engine,
    tenant: Tenant,
    provider: FakeProvider,
    submit_batched: Callable[..., list[UUID]],
    settings: Any,
) -> None:
    settings.ORCHESTRATOR_MODEL_PRICES = {"m-1": [10, 20]}
    provider.batches.answering = lambda body: Turn("x", input_tokens=1_000, output_tokens=500)
    ids = submit_batched(3)
    batching.run_background_tasks(tenant)
    (sent,) = provider.batches.batches.values()
    sent.polls = provider.batches.polls_until_done  # it has ended, but has not been polled yet
    for each in ids:
        cancellation.cancel(tenant.pk, each, actor="test")

    batching.run_background_tasks(tenant)

    assert ledger_total(tenant) == 3 * (Decimal(1_000) * 10 + Decimal(500) * 20) / 1_000_000 / 2
    assert [batch.state for batch in batching.batches(tenant)] == ["ended"]
