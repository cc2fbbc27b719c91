"""An ended run is done again from one of its steps: what went well before it stands, the rest is done again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities.decision_rules import Voter
from activities.human_tasks import approvals
from pipelines import cancellation, versions
from pipelines import replay as pipeline_replay
from pipelines.exceptions import NotFound, NotReplayable, ReplayUnderWay, RunUnderWay
from pipelines.models import PipelineRun
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine, at_once
from tests.flows import BROKEN, Flow, step

RUNS = "/api/v1/pipeline-runs/"


@pytest.fixture(autouse=True)
def served(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)


def again(flow: Flow, from_step: str, given: dict[str, Any] | None = None) -> Flow:
    """The replay, seen as a flow of its own."""
    run = pipeline_replay.replay(flow.tenant.pk, flow.id, from_step=from_step, new_input=given, actor="test")
    flow.engine.agent.calls.clear()
    other = object.__new__(Flow)
    other.engine, other.tenant, other.id = flow.engine, flow.tenant, run.pk
    return other


def chain(engine: Engine, tenant: Tenant, **new: Any) -> Flow:
    return Flow(engine, tenant, step("a"), step("b", "a"), step("c", "b"), **new)


def test_steps_before_keep_their_outputs_and_the_rest_runs_anew(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant, params={"topic": "x"}).drain(a={"n": 1}, b={"n": 2}, c={"n": 3})

    replay = again(flow, "b").drain(b={"n": 20}, c={"n": 30})

    assert [call.pipeline_step for call in engine.agent.calls] == ["b", "c"]
    assert replay.outcome == ("completed", 0)
    assert replay.row("a").output_ref == flow.row("a").output_ref
    assert replay.row("a").activity_id == flow.row("a").activity_id
    assert replay.row("b").output_ref != flow.row("b").output_ref
    assert replay.run.params == {"topic": "x"}
    assert (replay.run.replay_of, replay.run.replay_from) == (flow.id, "b")
    assert flow.outcome == ("completed", 0)


def test_the_step_works_on_the_input_that_is_given_instead(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant, input={"content": "first"}).drain()

    middle = again(flow, "b", {"content": "edited", "data": {"n": 1}}).drain()
    told = engine.agent.calls[0].input
    first = again(flow, "a", {"content": "begin here"}).drain()

    assert told is not None
    assert told == {"ref": None, "content": "edited", "data": {"n": 1}}
    assert engine.agent.calls[0].input is not None
    assert engine.agent.calls[0].input["content"] == "begin here"
    assert (middle.outcome, first.outcome) == (("completed", 0), ("completed", 0))


def test_the_version_is_that_of_the_old_run(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant).drain()
    versions.save(tenant.pk, {"key": "flow", "name": "Flow", "steps": [step("z")]}, actor="test")

    replay = again(flow, "c").drain()

    assert replay.run.version_id == flow.run.version_id
    assert replay.states == {"a": "done", "b": "done", "c": "done"}


def test_what_failed_beside_the_step_is_tried_again_too(engine: Engine, tenant: Tenant) -> None:
    flow = Flow(engine, tenant, step("a"), step("b", "a"), step("other"), step("end", "b", "other"))
    flow.drain(other=BROKEN)
    assert flow.outcome == ("failed", 0)

    replay = again(flow, "b").drain(a={})

    assert sorted(call.pipeline_step or "" for call in engine.agent.calls) == ["b", "end", "other"]
    assert replay.outcome == ("completed", 0)


def test_a_failed_step_is_replayed_after_its_cause_is_gone(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant).drain(b=BROKEN)

    replay = again(flow, "b").drain(b={"n": 1})

    assert flow.states == {"a": "done", "b": "failed", "c": "skipped"}
    assert replay.states == {"a": "done", "b": "done", "c": "done"}


@pytest.mark.parametrize("place", ["nowhere", "c"])
def test_a_step_that_would_not_start_is_refused_by_path(engine: Engine, tenant: Tenant, place: str) -> None:
    flow = chain(engine, tenant).drain(b=BROKEN)

    with pytest.raises(NotReplayable) as refused:
        again(flow, place)

    ((path, message),) = refused.value.errors
    assert path == "from_step"
    assert ("is not a step" if place == "nowhere" else "comes after b, which failed") in message


def test_a_cancelled_run_is_replayed_from_where_it_had_come(
    engine: Engine, tenant: Tenant, one_at_a_time: None
) -> None:
    flow = chain(engine, tenant).deliver(1, a={"n": 1})
    cancellation.cancel_run(tenant.pk, flow.id, actor="test")
    engine.drain()

    replay = again(flow, "b").drain()

    assert flow.run.status == "cancelled"
    assert replay.outcome == ("completed", 0)
    assert replay.row("a").output_ref == flow.row("a").output_ref


def test_a_fan_out_is_made_anew_and_one_before_the_step_is_kept(engine: Engine, tenant: Tenant) -> None:
    flow = Flow(
        engine, tenant, step("a"), step("each", "a", for_each="steps.a.data.items"), step("end", "each")
    ).drain(a={"items": [1, 2, 3]}, each={"n": 1})

    kept = again(flow, "end").drain()
    only_the_end = [call.pipeline_step for call in engine.agent.calls]
    anew = again(flow, "a").drain(a={"items": [7]})

    assert only_the_end == ["end"]
    assert kept.branches("each") == ["done"] * 3
    assert [row.output_ref for row in kept.rows(step="each")] == [
        row.output_ref for row in flow.rows(step="each")
    ]
    assert anew.branches("each") == ["done"]
    assert [call.params.get("item") for call in anew.told("each")] == [7]
    assert {run.outcome for run in (kept, anew)} == {("completed", 0)}


def test_a_condition_is_asked_again(engine: Engine, tenant: Tenant) -> None:
    flow = Flow(
        engine, tenant, step("a"), step("maybe", "a", when="steps.a.data.good"), step("end", "maybe", "a")
    ).drain(a={"good": False})
    assert flow.states == {"a": "done", "maybe": "skipped", "end": "done"}

    replay = again(flow, "a").drain(a={"good": True})

    assert replay.states == {"a": "done", "maybe": "done", "end": "done"}


def gate_of(run: Flow) -> UUID:
    found = run.row("gate").activity_id
    assert found is not None
    return found


def test_a_gate_asks_again_and_may_send_back_work_of_the_run_before(engine: Engine, tenant: Tenant) -> None:
    gate = {"human_role": "editor", "is_approval_gate": True}
    flow = Flow(engine, tenant, step("a"), step("gate", "a", **gate), step("end", "gate")).drain(a={"n": 1})
    boss = Voter("boss", identity="user:1", human_roles=(), decides_all=True)
    approvals.decide(tenant.pk, gate_of(flow), "approve", by=boss)
    flow.drain()

    replay = again(flow, "gate")
    assert gate_of(replay) != gate_of(flow)
    approvals.decide(tenant.pk, gate_of(replay), "reject", by=boss, notes="Better.")
    replay.drain(a={"n": 2})
    approvals.decide(tenant.pk, gate_of(replay), "approve", by=boss)
    replay.drain()

    assert replay.outcome == ("completed", 0)
    assert replay.row("a").round == 2
    assert replay.row("a").output_ref != flow.row("a").output_ref
    assert flow.outcome == ("completed", 0)
    assert flow.row("a").round == 1


def test_a_run_under_way_and_one_of_another_tenant_are_not_replayed(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    flow = chain(engine, tenant)

    with pytest.raises(RunUnderWay):
        again(flow, "a")
    with pytest.raises(NotFound):
        pipeline_replay.replay(other_tenant.pk, flow.id, from_step="a", actor="test")


def test_of_two_replays_at_once_one_is_made(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant).drain()

    outcomes = at_once(
        *[lambda: pipeline_replay.replay(tenant.pk, flow.id, from_step="b", actor="test") for _ in range(3)]
    )

    made = [found for found in outcomes if isinstance(found, PipelineRun)]
    refused = [found for found in outcomes if isinstance(found, ReplayUnderWay)]
    assert (len(made), len(refused)) == (1, 2)
    assert {error.problem_members["replay"] for error in refused} == {str(made[0].pk)}
    with tenant_scope(tenant.pk):
        assert PipelineRun.objects.filter(replay_of=flow.id).count() == 1


def test_over_http(api: Any, engine: Engine, tenant: Tenant, other_tenant: Tenant) -> None:
    flow = chain(engine, tenant).drain()
    place, body, client = f"{RUNS}{flow.id}/replay/", {"from_step": "b"}, api("operator")
    etag = client.get(f"{RUNS}{flow.id}/")["ETag"]

    problem(api("viewer").post(place, body), 403, "forbidden")
    problem(api("admin", other_tenant).post(place, body), 404, "not_found")
    problem(client.post(place, body, headers={"If-Match": '"x"'}), 412, "precondition_failed")
    faults = problem(client.post(place, {"from_step": "q", "input": {"text": 1}}), 400, "validation_failed")
    key = {"Idempotency-Key": "k", "If-Match": etag}
    first = client.post(place, body, headers=key)
    second = client.post(place, body, headers=key)

    assert [fault["path"] for fault in faults["errors"]] == ["input.text"]
    assert first.status_code == 201
    assert first.json()["replay_of"] == str(flow.id)
    assert first.json()["replay_from"] == "b"
    assert first["Location"] == f"{RUNS}{first.json()['id']}/"
    assert second["Idempotency-Replayed"] == "true"
    assert second.json()["id"] == first.json()["id"]
    assert problem(client.post(place, body), 409, "replay_under_way")["replay"] == first.json()["id"]
    found = client.get(f"{RUNS}?replay_of={flow.id}").json()["results"]
    assert [run["id"] for run in found] == [first.json()["id"]]
