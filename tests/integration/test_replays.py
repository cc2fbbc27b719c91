"""Replaying an ended run from one of its steps: earlier steps keep their outputs, the others run again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from activities import bulk_jobs, dead_letters
from activities import cancellation as cancellation_of_work
from activities.decision_rules import Voter
from activities.exceptions import DecisionForbidden, TransitionRefused
from activities.human_tasks import decisions
from activities.models.bulk import BulkAction, BulkItem, BulkJob, ItemState
from pipelines import cancellation, relatives, versions
from pipelines import replay as pipeline_replay
from pipelines.exceptions import NotFound, NotReplayable, PipelineError, ReplayUnderWay
from pipelines.models import PipelineRun
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine, eventually, in_another_thread, simultaneously, somebody_waits_for_a_lock
from tests.flows import BROKEN, Flow, answer_by_step, step

RUNS = "/api/v1/pipeline-runs/"


@pytest.fixture(autouse=True)
def served(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)


def replay_from(flow: Flow, from_step: str, new_input: dict[str, Any] | None = None, **options: str) -> Flow:
    """Replay the flow from the step; return the replay as a flow."""
    run = pipeline_replay.replay(
        flow.tenant.pk, flow.id, from_step=from_step, new_input=new_input, actor="test", **options
    )
    flow.engine.agent.calls.clear()
    other = object.__new__(Flow)
    other.engine, other.tenant, other.id = flow.engine, flow.tenant, run.pk
    return other


def chain(engine: Engine, tenant: Tenant, **new: Any) -> Flow:
    return Flow(engine, tenant, step("a"), step("b", "a"), step("c", "b"), **new)


def test_earlier_steps_keep_their_outputs_and_the_others_run_again(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant, params={"topic": "x"}).drain(a={"n": 1}, b={"n": 2}, c={"n": 3})

    replay = replay_from(flow, "b").drain(b={"n": 20}, c={"n": 30})

    assert [call.pipeline_step for call in engine.agent.calls] == ["b", "c"]
    assert replay.outcome == ("completed", 0)
    assert replay.row("a").output_ref == flow.row("a").output_ref
    assert replay.row("a").activity_id == flow.row("a").activity_id
    assert replay.row("b").output_ref != flow.row("b").output_ref
    assert replay.run.params == {"topic": "x"}
    assert (replay.run.replay_of, replay.run.replay_from) == (flow.id, "b")
    assert flow.outcome == ("completed", 0)


def test_the_step_gets_the_new_input_of_the_replay(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant, input={"content": "first"}).drain()

    middle = replay_from(flow, "b", {"content": "edited", "data": {"n": 1}}).drain()
    input_of_middle = engine.agent.calls[0].input
    first = replay_from(flow, "a", {"content": "begin here"}).drain()

    assert input_of_middle is not None
    assert input_of_middle == {"ref": None, "content": "edited", "data": {"n": 1}}
    assert engine.agent.calls[0].input is not None
    assert engine.agent.calls[0].input["content"] == "begin here"
    assert (middle.outcome, first.outcome) == (("completed", 0), ("completed", 0))


def test_a_replay_uses_the_version_of_the_original_run(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant).drain()
    versions.save(tenant.pk, {"key": "flow", "name": "Flow", "steps": [step("z")]}, actor="test")

    replay = replay_from(flow, "c").drain()

    assert replay.run.version_id == flow.run.version_id
    assert replay.states == {"a": "done", "b": "done", "c": "done"}


def test_failed_steps_that_are_parallel_to_the_step_run_again_too(engine: Engine, tenant: Tenant) -> None:
    flow = Flow(engine, tenant, step("a"), step("b", "a"), step("other"), step("end", "b", "other"))
    flow.drain(other=BROKEN)
    assert flow.outcome == ("failed", 0)

    replay = replay_from(flow, "b").drain(a={})

    assert sorted(call.pipeline_step or "" for call in engine.agent.calls) == ["b", "end", "other"]
    assert replay.outcome == ("completed", 0)


def test_a_failed_step_can_be_replayed(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant).drain(b=BROKEN)

    replay = replay_from(flow, "b").drain(b={"n": 1})

    assert flow.states == {"a": "done", "b": "failed", "c": "skipped"}
    assert replay.states == {"a": "done", "b": "done", "c": "done"}


@pytest.mark.parametrize("place", ["nowhere", "c"])
def test_a_replay_from_a_step_that_could_not_start_is_refused(
    engine: Engine, tenant: Tenant, place: str
) -> None:
    flow = chain(engine, tenant).drain(b=BROKEN)

    with pytest.raises(NotReplayable) as refused:
        replay_from(flow, place)

    ((path, message),) = refused.value.errors
    assert path == "from_step"
    assert ("is not a step" if place == "nowhere" else "comes after b, which failed") in message


def test_a_cancelled_run_can_be_replayed_from_where_it_stopped(
    engine: Engine, tenant: Tenant, one_at_a_time: None
) -> None:
    flow = chain(engine, tenant).deliver(1, a={"n": 1})
    cancellation.cancel_run(tenant.pk, flow.id, actor="test")
    engine.drain()

    replay = replay_from(flow, "b").drain()

    assert flow.run.status == "cancelled"
    assert replay.outcome == ("completed", 0)
    assert replay.row("a").output_ref == flow.row("a").output_ref


def test_a_fan_out_is_expanded_again_unless_it_precedes_the_step(engine: Engine, tenant: Tenant) -> None:
    flow = Flow(
        engine, tenant, step("a"), step("each", "a", for_each="steps.a.data.items"), step("end", "each")
    ).drain(a={"items": [1, 2, 3]}, each={"n": 1})

    kept = replay_from(flow, "end").drain()
    only_the_end = [call.pipeline_step for call in engine.agent.calls]
    expanded_again = replay_from(flow, "a").drain(a={"items": [7]})

    assert only_the_end == ["end"]
    assert kept.branches("each") == ["done"] * 3
    assert [row.output_ref for row in kept.rows(step="each")] == [
        row.output_ref for row in flow.rows(step="each")
    ]
    assert expanded_again.branches("each") == ["done"]
    assert [call.params.get("item") for call in expanded_again.calls_of_step("each")] == [7]
    assert {run.outcome for run in (kept, expanded_again)} == {("completed", 0)}


def test_a_condition_is_evaluated_again(engine: Engine, tenant: Tenant) -> None:
    flow = Flow(
        engine, tenant, step("a"), step("maybe", "a", when="steps.a.data.good"), step("end", "maybe", "a")
    ).drain(a={"good": False})
    assert flow.states == {"a": "done", "maybe": "skipped", "end": "done"}

    replay = replay_from(flow, "a").drain(a={"good": True})

    assert replay.states == {"a": "done", "maybe": "done", "end": "done"}


def gate_of(run: Flow) -> UUID:
    activity_id = run.row("gate").activity_id
    assert activity_id is not None
    return activity_id


def test_a_replayed_gate_needs_a_new_decision_and_its_rejection_revises_work_of_the_original(
    engine: Engine, tenant: Tenant
) -> None:
    gate = {"human_role": "editor", "is_approval_gate": True}
    steps = step("a"), step("gate", "a", **gate), step("end", "gate")
    flow = Flow(engine, tenant, *steps, schedule_id=uuid7()).drain(a={"n": 1})
    boss = Voter("boss", identity="user:1", human_roles=(), decides_all=True)
    decisions.decide(tenant.pk, gate_of(flow), "approve", by=boss)
    flow.drain()

    replay = replay_from(flow, "gate")
    assert gate_of(replay) != gate_of(flow)
    decisions.decide(tenant.pk, gate_of(replay), "reject", by=boss, notes="Better.")
    replay.drain(a={"n": 2})
    decisions.decide(tenant.pk, gate_of(replay), "approve", by=boss)
    replay.drain()

    assert replay.outcome == ("completed", 0)
    assert replay.row("a").round == 2
    assert replay.row("a").output_ref != flow.row("a").output_ref
    assert replay.activity(step="a").schedule_id is None, "a pause of the old run's schedule does not hold it"
    assert flow.outcome == ("completed", 0)
    assert flow.row("a").round == 1


def test_whoever_requests_a_replay_cannot_approve_revisions_in_it(engine: Engine, tenant: Tenant) -> None:
    gate = {"human_role": "editor", "is_approval_gate": True}
    steps = step("a", requires_approval=True, self_approval=False), step("gate", "a", **gate)
    flow = Flow(engine, tenant, *steps, requested_identity="user:1").drain()
    ann, bob, cid = (
        Voter(name, identity=f"user:{number}") for number, name in enumerate(("ann", "bob", "cid"), 1)
    )
    decisions.decide(tenant.pk, flow.activity(step="a", agent_role="qa").pk, "approve", by=bob)
    decisions.decide(tenant.pk, gate_of(flow), "approve", by=cid)
    replay = replay_from(flow, "gate", requested_identity=bob.identity)
    decisions.decide(tenant.pk, gate_of(replay), "reject", by=cid, notes="Better.")
    revision = replay.drain().activity(step="a", agent_role="qa").pk

    with pytest.raises(DecisionForbidden):
        decisions.decide(tenant.pk, revision, "approve", by=bob)

    assert decisions.decide(tenant.pk, revision, "approve", by=ann).status == "approved"


def test_an_active_run_and_one_of_another_tenant_cannot_be_replayed(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    flow = chain(engine, tenant)

    with pytest.raises(PipelineError, match="has not ended"):
        replay_from(flow, "a")
    with pytest.raises(NotFound):
        pipeline_replay.replay(other_tenant.pk, flow.id, from_step="a", actor="test")


def test_of_several_replays_at_once_one_is_created(engine: Engine, tenant: Tenant) -> None:
    flow = chain(engine, tenant).drain()

    outcomes = simultaneously(
        *[lambda: pipeline_replay.replay(tenant.pk, flow.id, from_step="b", actor="test") for _ in range(3)]
    )

    created = [outcome for outcome in outcomes if isinstance(outcome, PipelineRun)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, ReplayUnderWay)]
    assert (len(created), len(refused)) == (1, 2)
    assert {error.problem_members["replay"] for error in refused} == {str(created[0].pk)}
    with tenant_scope(tenant.pk):
        assert PipelineRun.objects.filter(replay_of=flow.id).count() == 1


def failed_activity_of(flow: Flow, name: str) -> UUID:
    activity_id = flow.row(name).activity_id
    assert activity_id is not None
    return activity_id


def test_failed_work_is_neither_retried_nor_reassigned_while_a_replay_of_its_run_works(
    api: Any, engine: Engine, tenant: Tenant
) -> None:
    flow = chain(engine, tenant).drain(b=BROKEN)
    failed, client = failed_activity_of(flow, "b"), api("operator")
    place = f"/api/v1/activities/{failed}/"
    allowed_before = client.get(place).json()["allowed_actions"]
    replay = replay_from(flow, "b")

    retried = problem(client.post(f"{place}retry/"), 409, "transition_refused")
    successor = {"assignee_type": "human", "human_role": "editor", "reason": "A person must do it."}
    reassigned = problem(client.post(f"{place}reassign/", successor), 409, "transition_refused")
    allowed = client.get(place).json()["allowed_actions"]
    outcome = flow.outcome
    replay.drain(b={"n": 1})

    assert (
        retried["detail"]
        == reassigned["detail"]
        == f"Pipeline run {replay.id} does the same work and has not ended."
    )
    assert outcome == ("failed", 0)
    assert [call.pipeline_step for call in engine.agent.calls] == ["b", "c"]
    assert {"retry", "reassign"} <= set(allowed_before)
    assert {"retry", "reassign"}.isdisjoint(allowed)
    assert client.post(f"{place}retry/").status_code == 200


def test_of_a_run_and_the_replays_of_its_replays_one_works_at_a_time(
    api: Any, engine: Engine, tenant: Tenant
) -> None:
    first = chain(engine, tenant).drain(b=BROKEN)
    second = replay_from(first, "b").drain(b=BROKEN)
    third = replay_from(second, "b")
    client, failed = api("operator"), failed_activity_of(first, "b")

    retried = problem(client.post(f"/api/v1/activities/{failed}/retry/"), 409, "transition_refused")
    allowed_meanwhile = client.get(f"/api/v1/activities/{failed}/").json()["allowed_actions"]
    cousin = problem(client.post(f"{RUNS}{first.id}/replay/", {"from_step": "b"}), 409, "replay_under_way")
    third.drain(b=BROKEN)
    client.post(f"/api/v1/activities/{failed}/retry/")
    replayed = problem(client.post(f"{RUNS}{third.id}/replay/", {"from_step": "b"}), 409, "replay_under_way")

    assert retried["detail"] == f"Pipeline run {third.id} does the same work and has not ended."
    assert "retry" not in allowed_meanwhile
    assert (cousin["replay"], replayed["replay"]) == (str(third.id), str(first.id))
    assert (first.outcome[0], third.outcome[0]) == ("running", "failed")


def test_a_retry_and_a_replay_of_a_replay_at_once_do_the_work_once(engine: Engine, tenant: Tenant) -> None:
    first = chain(engine, tenant).drain(b=BROKEN)
    second = replay_from(first, "b").drain(b=BROKEN)
    failed = failed_activity_of(first, "b")

    outcomes = simultaneously(
        lambda: pipeline_replay.replay(tenant.pk, second.id, from_step="b", actor="test"),
        lambda: cancellation_of_work.retry(tenant.pk, failed, actor="test"),
    )

    refused = [each for each in outcomes if isinstance(each, (ReplayUnderWay, TransitionRefused))]
    assert len(refused) == 1
    with tenant_scope(tenant.pk):
        assert PipelineRun.objects.filter(status="running").count() == 1


def test_the_work_of_relatives_is_begun_again_one_after_the_other(engine: Engine, tenant: Tenant) -> None:
    first = chain(engine, tenant).drain(b=BROKEN)
    second = replay_from(first, "b").drain(b=BROKEN)
    third = replay_from(first, "b").drain(b=BROKEN)
    failed = failed_activity_of(third, "b")

    with ThreadPoolExecutor(1) as pool, tenant_scope(tenant.pk):
        relatives.lock(tenant.pk, second.id)
        retry = partial(cancellation_of_work.retry, tenant.pk, failed, actor="test")
        retried = pool.submit(in_another_thread, retry)
        eventually(lambda: retried.done() or somebody_waits_for_a_lock())
        assert not retried.done()
    assert retried.result().status == "created"


def test_a_replay_of_dead_letters_skips_work_of_runs_that_are_being_replayed(
    api: Any, engine: Engine, tenant: Tenant
) -> None:
    flow = chain(engine, tenant).drain(b=BROKEN)
    engine.submit(tenant, "qa")
    engine.agent.behaviour = answer_by_step({"": BROKEN})
    engine.drain()
    failed, client = failed_activity_of(flow, "b"), api("operator")
    letters = client.get("/api/v1/dead-letters/").json()["results"]
    (letter_id,) = (letter["id"] for letter in letters if letter["activity"] == str(failed))
    replay_from(flow, "b")
    body = {"ids": [letter["id"] for letter in letters]}

    planned = client.post("/api/v1/dead-letters/replay/", {**body, "dry_run": True}).json()
    done = client.post("/api/v1/dead-letters/replay/", body).json()
    alone = problem(client.post(f"/api/v1/dead-letters/{letter_id}/replay/"), 409, "transition_refused")

    assert (planned["count"], planned["skipped"]) == (done["count"], done["skipped"]) == (1, 1)
    assert "is being replayed" in alone["detail"]
    assert flow.outcome == ("failed", 0)


def test_a_replay_of_dead_letters_continues_the_newest_of_a_failed_run_and_its_failed_replays(
    api: Any, engine: Engine, tenant: Tenant
) -> None:
    """They do the same work, so a retry of both was refused, and with it the replay of all other letters."""
    flow = chain(engine, tenant).drain(b=BROKEN)
    again = replay_from(flow, "b", {"content": "edited"}).drain(b=BROKEN)
    engine.submit(tenant, "qa")
    engine.agent.behaviour = answer_by_step({"": BROKEN})
    engine.drain()
    body = {"filter": {"state": "open"}}

    planned = api("operator").post("/api/v1/dead-letters/replay/", {**body, "dry_run": True}).json()
    done = api("operator").post("/api/v1/dead-letters/replay/", body).json()
    again.drain()

    assert (planned["count"], planned["skipped"]) == (done["count"], done["skipped"]) == (2, 1)
    assert (flow.outcome[0], again.outcome[0]) == ("failed", "completed")


def test_a_bulk_retry_skips_work_whose_run_begins_to_be_replayed_meanwhile(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, tenant: Tenant
) -> None:
    flow = chain(engine, tenant).drain(b=BROKEN)
    engine.agent.behaviour = answer_by_step({"": BROKEN})
    (other,) = engine.submit(tenant, "qa")
    engine.drain()
    failed = failed_activity_of(flow, "b")
    replay_from(flow, "b")
    # As if the replay had begun after this.
    monkeypatch.setattr(dead_letters, "find_retryable", lambda tenant_id, ids: list(ids))
    job = BulkJob(tenant_id=tenant.pk, action=BulkAction.RETRY, created_by="test")

    with tenant_scope(tenant.pk):
        together = bulk_jobs.apply_to_all(job, [failed, other])
        alone = [bulk_jobs.apply_to_one(job, BulkItem(activity_id=each)) for each in (failed, other)]

    assert set(together.values()) == {bulk_jobs.ALONE}
    assert [outcome.state for outcome in alone] == [ItemState.SKIPPED, ItemState.DONE]
    assert flow.outcome == ("failed", 0)


def test_a_run_is_replayed_over_http_with_the_usual_checks(
    api: Any, engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
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
    replays = client.get(f"{RUNS}?replay_of={flow.id}").json()["results"]
    assert [run["id"] for run in replays] == [first.json()["id"]]
