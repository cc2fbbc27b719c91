"""Steps that start only if their condition is true, with what the steps before them have left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from time import process_time
from typing import Any

import pytest
from django.db import connections

from activities import cancellation, invariants, outputs
from activities.exceptions import OutputUnavailable
from pipelines import undecided, versions
from pipelines.cancellation import cancel_run
from pipelines.definition import DefinitionError
from pipelines.models import StepRun
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.flows import BROKEN, Flow, answering, step

Start = Callable[..., Flow]


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    return tenant


@pytest.fixture
def start(engine: Engine, acme: Tenant) -> Iterator[Start]:
    """`start(step, step, ..., params=...)`: a run of a pipeline of these steps. Nothing may be broken when the test ends."""
    yield lambda *steps, **new: Flow(engine, acme, *steps, **new)
    assert invariants.check() == []


@pytest.mark.parametrize(("score", "states"), [(5, "done"), (4, "skipped")])
def test_a_step_starts_only_if_its_condition_is_true(start: Start, score: int, states: str) -> None:
    flow = start(
        step("rate"),
        step("publish", "rate", when="steps.rate.data.score >= params.least"),
        step("tell", "publish"),
        params={"least": 5},
    )

    flow.drain(rate={"score": score})

    assert flow.states == {"rate": "done", "publish": states, "tell": states}
    assert flow.outcome == ("completed", 0)
    assert len(flow.activities()) == (3 if score == 5 else 1)
    assert [row.reason for row in flow.rows()] == (
        ["", "", ""] if score == 5 else ["", "condition", "upstream"]
    )


def test_of_two_alternatives_the_chosen_one_leads_to_the_join(start: Start) -> None:
    flow = start(
        step("look"),
        step("short", "look", when="steps.look.data.words < 100"),
        step("long", "look", when="steps.look.data.words >= 100"),
        step("join", "short", "long"),
    )

    flow.drain(look={"words": 7})

    assert flow.states == {"look": "done", "short": "done", "long": "skipped", "join": "done"}
    assert flow.outcome == ("completed", 0)
    (given,) = [call.input for call in flow.told("join")]
    assert given["content"] == "short: done"


def test_a_condition_sees_the_status_of_what_failed(start: Start) -> None:
    flow = start(
        step("try"),
        step("mend", "try", when="steps.try.status == 'failed'", on_upstream_failure="continue"),
    )

    flow.drain(**{"try": BROKEN})

    assert flow.states == {"try": "failed", "mend": "done"}
    assert flow.outcome == ("completed", 0)


def test_an_expression_without_a_value_fails_its_step_and_says_why(start: Start) -> None:
    flow = start(
        step("rate"),
        step("publish", "rate", when="steps.rate.data.score > 3"),
        step("tell", "publish"),
        step("beside", "rate"),
    )

    flow.drain(rate={"score": "high"})

    assert flow.states == {"rate": "done", "publish": "failed", "tell": "skipped", "beside": "done"}
    assert flow.outcome == ("failed", 0)
    error = flow.row("publish").error
    assert error["code"] == "expression_error"
    assert error["message"].startswith("when: steps.rate.data.score > 3: character 23: ")


def test_a_run_may_go_on_past_an_expression_without_a_value(start: Start) -> None:
    flow = start(
        step("rate"),
        step("publish", "rate", when="steps.rate.data.score > 3"),
        step("tell", "publish", on_upstream_failure="continue"),
    )

    flow.drain(rate=None)

    assert flow.states == {"rate": "done", "publish": "failed", "tell": "done"}
    assert flow.outcome == ("completed", 0)


def test_the_first_step_may_depend_on_the_parameters(start: Start) -> None:
    wanted = step("a", when="params.wanted"), step("b", "a")

    assert start(*wanted, params={"wanted": False}).outcome == ("completed", 0)
    assert start(*wanted, params={"wanted": True}).drain().states == {"a": "done", "b": "done"}


def test_a_failure_that_is_mended_lets_an_undecidable_step_be_decided_again(
    start: Start, acme: Tenant
) -> None:
    flow = start(
        step("rate"),
        step("publish", "rate", when="steps.rate.data.score > 3", on_upstream_failure="continue"),
    ).drain(rate=BROKEN)
    before = flow.states

    cancellation.retry(acme.pk, flow.only(step="rate").pk, actor="ann")
    flow.drain(rate={"score": 4})

    assert before == {"rate": "failed", "publish": "failed"}
    assert flow.states == {"rate": "done", "publish": "done"}
    assert (flow.row("publish").error, flow.outcome) == (None, ("completed", 0))


def test_a_run_keeps_the_condition_that_it_began_with(start: Start, acme: Tenant) -> None:
    flow = start(step("a"), step("b", "a", when="true"))

    versions.save(
        acme.pk,
        {"key": "flow", "name": "Flow", "steps": [step("a"), step("b", "a", when="false")]},
        actor="test",
    )
    flow.drain()

    assert flow.states == {"a": "done", "b": "done"}


# Outputs that have moved to MongoDB


@pytest.fixture
def moved(start: Start, monkeypatch: pytest.MonkeyPatch) -> Flow:
    """A run whose second step waits to be decided, since what it reads has left PostgreSQL."""
    flow = start(
        step("rate"),
        step("beside"),
        step("publish", "rate", "beside", when="steps.rate.data.score > 3"),
        step("tell", "publish"),
    )
    flow.engine.agent.behaviour = answering({"rate": {"score": 4}})
    while flow.row("rate").status != "done":
        flow.engine.deliver()
    outputs.copy_waiting()
    flow.drain()
    return flow


def test_what_is_not_in_postgresql_any_more_is_read_outside_of_the_transaction(
    moved: Flow, engine: Engine, api: Any
) -> None:
    before = moved.states, moved.row("publish").reason
    shown = api("viewer").get(f"/api/v1/pipeline-runs/{moved.id}/").json()["steps"][2]

    assert undecided.decide_waiting() == 1
    engine.drain()

    assert before == (
        {"rate": "done", "beside": "done", "publish": "pending", "tell": "pending"},
        "evaluating",
    )
    assert (shown["status"], shown["reason"]) == ("pending", "evaluating")
    assert shown["reason_detail"] == "its condition is being evaluated"
    assert moved.outcome == ("completed", 0)
    assert undecided.decide_waiting() == 0


def test_two_who_decide_at_once_start_the_step_once(moved: Flow) -> None:
    assert at_once(undecided.decide_waiting, undecided.decide_waiting) in ([1, 1], [1, 0], [0, 1])

    assert len(moved.activities(step="publish")) == 1
    moved.drain()
    assert moved.outcome == ("completed", 0)


def test_whoever_dies_between_reading_and_deciding_leaves_the_mark(
    moved: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.starting.submit", lambda *args, **more: 1 / 0)
        assert undecided.decide_waiting() == 0
    between = moved.row("publish")

    undecided.decide_waiting()

    assert (between.status, between.reason, between.activity_id) == ("pending", "evaluating", None)
    assert moved.row("publish").status == "active"


def test_while_mongodb_is_away_the_step_waits(moved: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any) -> Any:
        raise OutputUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(outputs, "_in_mongodb", away)
        assert undecided.decide_waiting() == 0

    assert moved.row("publish").reason == "evaluating"
    assert undecided.decide_waiting() == 1


def test_a_cancelled_run_decides_nothing(moved: Flow, acme: Tenant) -> None:
    cancel_run(acme.pk, moved.id, actor="ann")

    assert undecided.decide_waiting() == 0
    assert (moved.states["publish"], moved.row("publish").reason) == ("pending", "")


def test_a_decision_looks_at_the_run_as_it_is_then(moved: Flow, acme: Tenant) -> None:
    """What the step depends on is under way again: it waits for that."""
    with tenant_scope(acme.pk):
        StepRun.objects.filter(run_id=moved.id, step="beside").update(status="active")

    undecided.decide_waiting()

    assert (moved.row("publish").status, moved.row("publish").reason) == ("pending", "")
    with tenant_scope(acme.pk):
        StepRun.objects.filter(run_id=moved.id, step="beside").update(status="done")
        StepRun.objects.filter(run_id=moved.id, step="publish").update(reason="evaluating")


def test_the_keeper_hints_at_steps_that_wait_to_be_decided(moved: Flow) -> None:
    with connections["system"].cursor() as cursor:
        sql, values = undecided.waiting().query.sql_with_params()
        cursor.execute(sql, values)
        assert len(cursor.fetchall()) == 1


# Saving


@pytest.mark.parametrize(
    ("steps", "path", "message"),
    [
        ([step("a"), step("b", "a", when="steps.a.data.")], "steps[1].when", "ends too early"),
        ([step("a"), step("b", "a", when="steps.aa.data")], "steps[1].when", "unknown step"),
        ([step("a"), step("b", when="steps.a.data")], "steps[1].when", "does not come before"),
        ([step("a"), step("b", "a", when="1 + 1")], "steps[1].when", "must be true or false"),
        ([step("a"), step("b", "a", when="item > 1")], "steps[1].when", "no item here"),
        ([step("a"), step("b", "a", for_each="steps.a.status == 'x'")], "steps[1].for_each", "needs a list"),
        ([step("a"), step("b", "a", for_each="item")], "steps[1].for_each", "no item here"),
        ([step("a", for_each="[1]", params={"item": 1})], "steps[0].params.item", "its own item"),
        ([step("a", for_each="[1]", params={"item_index": 1})], "steps[0].params.item_index", "its own item_index"),
    ],
)  # fmt: skip
def test_a_bad_expression_is_refused_with_its_place(
    acme: Tenant, steps: list[dict[str, Any]], path: str, message: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        versions.save(acme.pk, {"key": "bad", "name": "Bad", "steps": steps}, actor="test")

    (fault,) = refused.value.faults
    assert fault.path == path
    assert message in fault.message


def test_every_fault_of_a_definition_is_told_together(acme: Tenant) -> None:
    steps = [
        step("a", when="steps.b.data"),
        step("b", "nobody", when="1"),
        step("c", "a", for_each="'text'"),
        step("d", "a", when="steps.a.content == 'x'"),
    ]

    with pytest.raises(DefinitionError) as refused:
        versions.save(
            acme.pk, {"key": "bad", "name": "Bad", "params": {"item": 1}, "steps": steps}, actor="test"
        )

    assert [fault.path for fault in refused.value.faults] == [
        "steps[1].depends_on[0]",
        "steps[0].when",
        "steps[1].when",
        "steps[2].for_each",
        "steps[2].for_each",
    ]


def test_a_step_may_read_all_that_comes_before_it_however_far(start: Start) -> None:
    flow = start(step("a"), step("b", "a"), step("c", "b", when="steps.a.data == 'x' and params.b == 2"),
                 defaults={"b": 1}, params={"b": 2})  # fmt: skip

    assert flow.drain(a="x").states["c"] == "done"


def test_thousands_of_conditions_are_checked_in_a_moment(acme: Tenant) -> None:
    steps = [step("s0")] + [
        step(f"s{n}", f"s{n - 1}", when=f"steps.s{n - 1}.status == 'done' or steps.s0.data == {n}")
        for n in range(1, 1_000)
    ]
    began = process_time()

    versions.save(acme.pk, {"key": "long", "name": "Long", "steps": steps}, actor="test")

    assert timedelta(seconds=process_time() - began) < timedelta(seconds=8)
