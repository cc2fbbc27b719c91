"""Pipeline runs: what follows a finished step, a decision, and a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from activities import cancellation, wait_reasons
from activities.exceptions import AlreadyDecided, TransitionRefused
from activities.human_tasks import decisions
from activities.models import Activity
from pipelines import progression, starting, versions
from pipelines.cancellation import cancel_run
from pipelines.models import PipelineRun, StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.flows import BROKEN, Flow, answer_by_step, step

GATE = {"human_role": "editor", "is_approval_gate": True}


def test_starting_a_run_returns_it_as_stored(acme: Tenant) -> None:
    versions.save(
        acme.pk, {"key": "flow", "name": "Flow", "steps": [step("a"), step("b", "a")]}, actor="test"
    )
    new = NewRun(
        name="Ünïcode",
        params={"wide": 10**30 + 1, "quote": "it's", "none": None},
        input={"data": [1.5]},
        priority=3,
        retry={"max_attempts": 2},
        timeout_seconds=7,
        requested_identity="user:1",
    )

    started = start_run(acme.pk, "flow", new, actor="user:eva")

    with tenant_scope(acme.pk):
        stored = PipelineRun.objects.get(pk=started.pk)
        steps = list(
            StepRun.objects.filter(run_id=started.pk).values_list("step", "position", "status", "round")
        )
    fields = [field.attname for field in PipelineRun._meta.concrete_fields]
    assert {name: getattr(started, name) for name in fields} == {
        name: getattr(stored, name) for name in fields
    }
    assert stored.params == new.params
    assert steps == [("a", 0, "active", 1), ("b", 1, "pending", 1)]


def test_each_step_gets_the_output_of_the_step_before(engine: Engine, acme: Tenant) -> None:
    flow = Flow(
        engine,
        acme,
        step("a"),
        step("b", "a"),
        step("c", "b"),
        params={"city": "Oslo"},
        input={"content": "begin"},
    )

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert [call.pipeline_step for call in engine.agent.calls] == ["a", "b", "c"]
    assert [(call.input or {}).get("content") for call in engine.agent.calls] == [
        "begin",
        "a: done",
        "b: done",
    ]
    assert all(call.params == {"city": "Oslo"} for call in engine.agent.calls)


def test_a_join_starts_once_after_its_last_dependency_with_all_their_outputs(
    engine: Engine, acme: Tenant
) -> None:
    flow = Flow(engine, acme, step("a"), step("b"), step("c"), step("join", "a", "b", "c"))

    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert len(flow.activities(step="join")) == 1
    joined = engine.agent.calls[-1].input["steps"]
    assert {name: output["content"] for name, output in joined.items()} == {
        name: f"{name}: done" for name in "abc"
    }


def test_repeating_progression_starts_nothing_twice(engine: Engine, acme: Tenant) -> None:
    flow = Flow(engine, acme, step("a"), step("b", "a"))
    engine.drain()
    settled = flow.activity(step="a")

    with tenant_scope(acme.pk):
        progression.advance(settled)

    assert len(flow.activities()) == 2
    assert flow.outcome == ("completed", 0)


def test_a_failed_step_fails_the_run_and_skips_its_dependents_while_others_finish(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = answer_by_step({"bad": BROKEN})
    flow = Flow(engine, acme, step("bad"), step("after", "bad"), step("beside"))

    engine.drain()

    assert flow.states == {"bad": "failed", "after": "skipped", "beside": "done"}
    assert flow.outcome == ("failed", 0)


def test_an_attempt_gets_no_less_time_than_its_step_says(start: Callable[..., Flow]) -> None:
    flow = start(step("a", timeout_seconds=0.5), step("b", timeout_seconds=1.5))

    assert {row.step: row.timeout_seconds for row in flow.activities()} == {"a": 1, "b": 2}


def test_a_step_can_continue_after_a_failure_upstream(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = answer_by_step({"bad": BROKEN})
    flow = Flow(
        engine, acme, step("bad"), step("good"), step("join", "bad", "good", on_upstream_failure="continue")
    )

    engine.drain()

    assert flow.states == {"bad": "failed", "good": "done", "join": "done"}
    assert flow.outcome == ("completed", 0)


def test_a_step_that_continues_without_any_output_gets_the_input_of_the_run(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = answer_by_step({"bad": BROKEN})
    Flow(
        engine,
        acme,
        step("bad"),
        step("next", "bad", on_upstream_failure="continue"),
        input={"content": "begin"},
    )

    engine.drain()

    assert [(call.pipeline_step, call.input) for call in engine.agent.calls][-1] == (
        "next",
        {"ref": None, "content": "begin", "data": None},
    )


def test_retrying_a_failed_step_reopens_its_run(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = answer_by_step({"bad": BROKEN})
    flow = Flow(engine, acme, step("bad"), step("after", "bad"))
    engine.drain()
    engine.agent.behaviour = answer_by_step({})

    cancellation.retry(acme.pk, flow.activity(step="bad").pk, actor="test")
    engine.drain()

    assert flow.states == {"bad": "done", "after": "done"}
    assert flow.outcome == ("completed", 0)


def test_a_step_that_works_again_is_not_reopened_a_second_time(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = answer_by_step({"bad": BROKEN})
    flow = Flow(engine, acme, step("bad"), step("after", "bad"))
    engine.drain()
    cancellation.retry(acme.pk, flow.activity(step="bad").pk, actor="test")
    before = flow.outcome

    with tenant_scope(acme.pk):
        progression.reopen(flow.activity(step="bad"))

    assert flow.outcome == before == ("running", 2)


def test_a_retry_while_its_run_is_being_cancelled_does_not_reopen_the_run(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = answer_by_step({"bad": BROKEN})
    flow = Flow(engine, acme, step("bad"), step("after", "bad"))
    engine.drain()
    with tenant_scope(acme.pk):
        # The first of the two transactions of a cancellation.
        PipelineRun.objects.filter(pk=flow.id).update(status="cancelled")

    cancellation.retry(acme.pk, flow.activity(step="bad").pk, actor="test")

    assert (flow.outcome[0], flow.states) == ("cancelled", {"bad": "failed", "after": "skipped"})


def test_a_rejection_while_its_run_is_being_cancelled_leaves_no_revision(
    engine: Engine, acme: Tenant
) -> None:
    flow = Flow(engine, acme, step("brief", requires_approval=True))
    engine.drain()
    first = flow.activity(step="brief", assignee_type="agent")
    with tenant_scope(acme.pk):
        PipelineRun.objects.filter(pk=flow.id).update(status="cancelled")

    decisions.reject(acme.pk, first.pk, actor="ann", notes="Add the costs.")

    assert flow.activity(parent_id=first.pk, link_kind="revision_of").status == "cancelled"


def test_a_gate_that_rejects_while_its_run_is_being_cancelled_starts_no_revision(
    engine: Engine, acme: Tenant
) -> None:
    flow = Flow(engine, acme, step("brief"), step("sign-off", "brief", **GATE))
    engine.drain()
    with tenant_scope(acme.pk):
        PipelineRun.objects.filter(pk=flow.id).update(status="cancelled")

    decisions.reject(acme.pk, flow.activity(step="sign-off").pk, actor="ann", notes="Add the costs.")

    assert [activity.step for activity in flow.activities()] == ["brief", "sign-off"]


def test_a_retry_changes_nothing_after_a_step_that_continued_without_it(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = answer_by_step({"bad": BROKEN})
    flow = Flow(
        engine,
        acme,
        step("bad"),
        step("join", "bad", on_upstream_failure="continue"),
        step("extra", "join", when="false"),
        step("after", "bad", on_upstream_failure="skip"),
        step("last", "after", "extra"),
    )
    engine.drain()
    before = flow.states
    engine.agent.behaviour = answer_by_step({})

    cancellation.retry(acme.pk, flow.activity(step="bad").pk, actor="test")
    engine.drain()

    assert before == {
        "bad": "failed",
        "join": "done",
        "extra": "skipped",
        "after": "skipped",
        "last": "skipped",
    }
    assert flow.states == {"bad": "done", "join": "done", "extra": "skipped", "after": "done", "last": "done"}
    assert flow.outcome == ("completed", 0)


def test_the_next_step_starts_after_an_approval(engine: Engine, acme: Tenant) -> None:
    flow = Flow(engine, acme, step("brief", requires_approval=True), step("text", "brief"))
    engine.drain()
    waiting, gate = flow.activities()

    decisions.approve(acme.pk, gate.pk, actor="ann", notes="fine")
    engine.drain()

    brief = engine.get(acme, waiting.pk)
    assert (brief.status, brief.decided_by, brief.reviewer_notes) == ("approved", "ann", "fine")
    assert engine.get(acme, gate.pk).status == "approved"
    assert flow.outcome == ("completed", 0)


def test_a_rejection_starts_a_revision_with_the_output_and_the_notes_which_needs_approval_again(
    engine: Engine, acme: Tenant
) -> None:
    flow = Flow(
        engine,
        acme,
        step("brief", requires_approval=True),
        step("text", "brief"),
        input={"content": "source"},
    )
    engine.drain()
    first = flow.activity(step="brief", assignee_type="agent")

    decisions.reject(acme.pk, first.pk, actor="ann", notes="Add the costs.")
    engine.drain()

    revision = flow.activity(link_kind="revision_of")
    call = engine.agent.calls[-1]
    assert (revision.status, revision.round, revision.name) == ("awaiting_approval", 2, "brief (revision)")
    assert call.wake_reason == "rejection"
    assert call.wake_context["rejection_ref"] == str(first.output_ref)
    assert call.input["content"] == "source"
    assert "brief: done" in call.prompt
    assert "Add the costs." in call.prompt
    decisions.approve(acme.pk, revision.pk, actor="ann")
    engine.drain()
    assert flow.outcome == ("completed", 0)
    assert engine.agent.calls[-1].input["content"] == "brief (revision): done"


def test_a_rejection_in_the_last_round_fails_the_step_and_escalates(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 2
    flow = Flow(engine, acme, step("brief", requires_approval=True), step("text", "brief"))
    for _ in range(2):
        engine.drain()
        decisions.reject(acme.pk, flow.activity(status="awaiting_approval").pk, actor="ann", notes="no")

    assert flow.outcome == ("failed", 0)
    assert flow.states == {"brief": "failed", "text": "skipped"}
    with tenant_scope(acme.pk):
        escalation = Activity.objects.get(link_kind="escalation")
    assert (escalation.status, escalation.pipeline_run_id) == ("created", flow.run.pk)
    sentences = [wait_reasons.why(acme.pk, flow.activity(agent_role="qa", round=n).pk).detail for n in (1, 2)]
    assert sentences == ["It was rejected; a revision took its place.", "It was rejected."]


def test_a_gate_that_rejects_in_the_last_round_fails_its_step(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 2
    flow = Flow(engine, acme, step("brief"), step("sign-off", "brief", **GATE))
    for number in (1, 2):
        engine.drain()
        decisions.reject(
            acme.pk, flow.activity(step="sign-off", round=number).pk, actor="ann", notes="too long"
        )

    assert (flow.outcome, flow.states) == (("failed", 0), {"brief": "done", "sign-off": "failed"})


def test_a_rejected_gate_step_starts_a_revision_and_needs_a_new_decision(
    engine: Engine, acme: Tenant
) -> None:
    flow = Flow(
        engine,
        acme,
        step("brief"),
        step("sign-off", "brief", human_role="editor", is_approval_gate=True),
        step("text", "sign-off"),
    )
    engine.drain()
    decisions.reject(acme.pk, flow.activity(step="sign-off").pk, actor="ann", notes="too long")
    engine.drain()
    again = flow.activity(step="sign-off", round=2)

    decisions.approve(acme.pk, again.pk, actor="ann")
    engine.drain()

    assert flow.outcome == ("completed", 0)
    assert [call.name for call in engine.agent.calls] == ["brief", "brief (revision)", "text"]
    assert engine.agent.calls[-1].input["content"] == "brief (revision): done"


@pytest.mark.parametrize("first", ["open", "approved"])
def test_a_rejected_gate_lets_the_other_gates_about_the_same_work_ask_again(
    start: Callable[..., Flow], acme: Tenant, first: str
) -> None:
    flow = start(
        step("brief"),
        step("legal", "brief", **GATE),
        step("brand", "brief", **GATE),
        step("text", "legal", "brand"),
    ).drain()
    legal, brand = flow.activity(step="legal"), flow.activity(step="brand")
    if first == "approved":
        decisions.approve(acme.pk, legal.pk, actor="ann")

    decisions.reject(acme.pk, brand.pk, actor="bob", notes="too long")

    if first == "open":
        with pytest.raises(TransitionRefused, match="Changes were requested at brand"):
            decisions.reject(acme.pk, legal.pk, actor="ann", notes="no")
    flow.drain()
    assert flow.states == {"brief": "done", "legal": "active", "brand": "active", "text": "pending"}
    revised = flow.activity(step="brief", round=2).output_ref
    for again in flow.activities(round=2, human_role="editor"):
        assert again.input_ref == revised
        decisions.approve(acme.pk, again.pk, actor="ann")
    flow.drain()
    assert flow.outcome == ("completed", 0)
    (text,) = flow.calls_of_step("text")
    assert {part["ref"] for part in text.input["steps"].values()} == {str(revised)}


@pytest.mark.parametrize("first", ["open", "approved", "one rejected"])
def test_a_rejected_gate_lets_a_gate_with_a_for_each_ask_again_about_the_items_of_the_revision(
    start: Callable[..., Flow], acme: Tenant, first: str
) -> None:
    each = step("each", "brief", **GATE, for_each="steps.brief.data.claims")
    flow = start(step("brief"), each, step("brand", "brief", **GATE), step("text", "each", "brand"))
    flow.drain(brief={"claims": ["cheap", "best"]})
    old = flow.activities(step="each")
    if first == "approved":
        for question in old:
            decisions.approve(acme.pk, question.pk, actor="ann")
    elif first == "one rejected":
        decisions.reject(acme.pk, old[0].pk, actor="ann", notes="no")

    decisions.reject(acme.pk, flow.activity(step="brand").pk, actor="bob", notes="too long")
    if first != "approved":
        with pytest.raises(TransitionRefused, match="Changes were requested at brand"):
            decisions.approve(acme.pk, old[1].pk, actor="ann")
    flow.drain(brief={"claims": ["fast", "small", "new"]})

    assert flow.states == {"brief": "done", "each": "active", "brand": "active", "text": "pending"}
    again = flow.activities(step="each", round=2)
    assert [question.params["item"] for question in again] == ["fast", "small", "new"]
    for question in [*again, flow.activity(step="brand", round=2)]:
        decisions.approve(acme.pk, question.pk, actor="ann")
    flow.drain()
    assert flow.outcome == ("completed", 0)


@pytest.mark.parametrize("skips_the_next", [False, True])
def test_a_gate_that_was_not_needed_is_asked_if_its_condition_is_true_for_the_revision(
    start: Callable[..., Flow], acme: Tenant, skips_the_next: bool
) -> None:
    legal = step("legal", "brief", **GATE, when="steps.brief.data.risk > 5")
    needs = ["legal"] if skips_the_next else ["legal", "brand"]
    flow = start(step("brief"), legal, step("brand", "brief", **GATE), step("text", *needs))
    flow.drain(brief={"risk": 1})
    before = flow.states

    decisions.reject(acme.pk, flow.activity(step="brand").pk, actor="bob", notes="bolder")
    flow.drain(brief={"risk": 9})

    assert (before["legal"], before["text"]) == ("skipped", "skipped" if skips_the_next else "pending")
    assert flow.states == {"brief": "done", "legal": "active", "brand": "active", "text": "pending"}
    for question in flow.activities(human_role="editor", status="created"):
        decisions.approve(acme.pk, question.pk, actor="ann")
    flow.drain()
    assert flow.outcome == ("completed", 0)
    assert len(flow.activities(step="text")) == 1


def test_a_gate_that_was_not_needed_stays_so_when_a_step_after_it_has_started(
    start: Callable[..., Flow], acme: Tenant
) -> None:
    legal = step("legal", "brief", **GATE, when="steps.brief.data.risk > 5")
    flow = start(
        step("brief"), legal, step("brand", "brief", **GATE), step("text", "legal", on_upstream_failure="continue")
    ).drain(brief={"risk": 1})  # fmt: skip

    decisions.reject(acme.pk, flow.activity(step="brand").pk, actor="bob", notes="bolder")
    flow.drain(brief={"risk": 9})
    decisions.approve(acme.pk, flow.activity(step="brand", round=2).pk, actor="bob")

    assert flow.states["legal"] == "skipped"
    assert flow.outcome == ("completed", 0)


def test_an_approved_gate_does_not_ask_again_when_a_step_after_it_has_started(
    start: Callable[..., Flow], acme: Tenant
) -> None:
    flow = start(
        step("brief"),
        step("legal", "brief", **GATE),
        step("brand", "brief", **GATE),
        step("file", "legal"),
        step("text", "brand"),
    ).drain()
    decisions.approve(acme.pk, flow.activity(step="legal").pk, actor="ann")

    decisions.reject(acme.pk, flow.activity(step="brand").pk, actor="bob", notes="too long")
    flow.drain()
    decisions.approve(acme.pk, flow.activity(step="brand", round=2).pk, actor="bob")
    flow.drain()

    assert flow.outcome == ("completed", 0)
    assert len(flow.activities(step="legal")) == 1


def test_a_gate_that_rejects_while_its_work_is_retried_asks_about_the_result_of_the_retry(
    start: Callable[..., Flow], acme: Tenant
) -> None:
    flow = start(step("brief"), step("sign-off", "brief", **GATE, on_upstream_failure="continue"))
    flow.drain(brief=BROKEN)
    cancellation.retry(acme.pk, flow.activity(step="brief").pk, actor="ann")

    decisions.reject(acme.pk, flow.activity(step="sign-off").pk, actor="ann", notes="there is nothing")
    flow.drain(brief={"words": 300})
    decisions.approve(acme.pk, flow.activity(step="sign-off", round=2).pk, actor="ann")

    assert flow.outcome == ("completed", 0)


def test_the_refusal_of_a_second_decision_names_who_decided(engine: Engine, acme: Tenant) -> None:
    flow = Flow(engine, acme, step("brief", requires_approval=True))
    engine.drain()
    waiting = flow.activity(assignee_type="agent")
    decisions.approve(acme.pk, waiting.pk, actor="ann")

    with pytest.raises(AlreadyDecided, match="ann approved this at"):
        decisions.reject(acme.pk, waiting.pk, actor="bob", notes="no")

    assert len(flow.activities()) == 2


def test_an_activity_that_does_not_await_approval_cannot_be_approved(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)

    with pytest.raises(TransitionRefused):
        decisions.approve(acme.pk, activity_id, actor="ann")


def test_cancelling_a_run_cancels_its_activities_and_gates(engine: Engine, acme: Tenant) -> None:
    flow = Flow(
        engine, acme, step("brief", requires_approval=True), step("beside"), step("text", "brief", "beside")
    )
    engine.deliver()
    engine.deliver()

    cancel_run(acme.pk, flow.id, actor="ann")
    engine.drain()

    assert flow.outcome[0] == "cancelled"
    assert {activity.status for activity in flow.activities()} <= {"cancelled", "done"}
    assert not flow.activities(step="text")


@pytest.mark.parametrize(
    ("reason", "shown"), [("wrong client", "wrong client"), ("", "The pipeline run was cancelled.")]
)
def test_the_steps_of_a_cancelled_run_say_why_they_were_cancelled(
    api: Any, engine: Engine, acme: Tenant, reason: str, shown: str
) -> None:
    flow = Flow(
        engine, acme, step("done"), step("brief", "done", requires_approval=True), step("text", "brief"),
        step("each", "done", for_each="params.topics", human_role="editor"), params={"topics": [1, 2]},
    )  # fmt: skip
    engine.drain()

    api("operator").post(f"/api/v1/pipeline-runs/{flow.id}/cancel/", {"reason": reason})

    run = api("viewer").get(f"/api/v1/pipeline-runs/{flow.id}/").json()
    assert {each["step"]: (each["reason"], each["reason_detail"]) for each in run["steps"]} == {
        "done": (None, None),
        "brief": ("cancelled", shown),
        "text": ("cancelled", "the run was cancelled"),
        "each": ("cancelled", "the run was cancelled"),
    }
    brief = flow.activity(step="brief", assignee_type="agent")
    why = api("viewer").get(f"/api/v1/activities/{brief.pk}/why/").json()
    assert why["detail"] == f"It was cancelled by token:operator of acme: {shown}"


def test_work_that_an_open_gate_may_still_reject_is_found_in_few_statements(
    engine: Engine, acme: Tenant
) -> None:
    names = [f"part{number}" for number in range(5)]
    gate = step("gate", *names, human_role="editor", is_approval_gate=True)
    flow = Flow(
        engine, acme, *map(step, names), gate, step("other"), step("text", "other", human_role="editor")
    )
    engine.drain()
    done = {activity.step: activity.pk for activity in flow.activities(status="done")}

    with tenant_scope(acme.pk), CaptureQueriesContext(connection) as captured:
        revisable = progression.find_revisable(acme.pk, done.values())

    assert revisable == {done[name] for name in names}
    assert len([query for query in captured if "pipelines_" in query["sql"]]) <= 2
    decisions.approve(acme.pk, flow.activity(step="gate").pk, actor="ann")
    with tenant_scope(acme.pk):
        assert progression.find_revisable(acme.pk, done.values()) == set()


def test_a_run_keeps_the_version_that_it_started_with(engine: Engine, acme: Tenant) -> None:
    flow = Flow(engine, acme, step("a"), step("b", "a"))

    versions.save(
        acme.pk, {"key": "flow", "name": "Flow", "steps": [step("a"), step("z", "a")]}, actor="test"
    )
    engine.drain()

    assert flow.states == {"a": "done", "b": "done"}


def test_only_pending_steps_start_in_their_own_round_and_once(engine: Engine, acme: Tenant) -> None:
    flow = Flow(engine, acme, step("a"), step("skipped", "a"), step("again", "a"), step("first", "a"))
    with tenant_scope(acme.pk):
        StepRun.objects.filter(run_id=flow.id, step="skipped").update(status="skipped")
        StepRun.objects.filter(run_id=flow.id, step="again").update(round=3)
        run = PipelineRun.objects.get(pk=flow.id)
        plan = versions.compile_version(run.version_id)
        for _ in range(2):
            starting.start(run, plan, ["skipped", "again", "first"], {})
        active = StepRun.objects.filter(run_id=flow.id, status="active").exclude(step="a")
        started = set(active.values_list("step", "activity_id"))

    new_activities = [each for each in flow.activities() if each.step != "a"]
    assert {(each.step, each.round) for each in new_activities} == {("again", 3), ("first", 1)}
    assert {(each.step, each.pk) for each in new_activities} == started
    assert len(new_activities) == 2


def test_an_error_in_progression_fails_the_activity_without_partial_changes(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(engine, acme, step("a"), step("b", "a"))
    with monkeypatch.context() as broken:
        broken.setattr("pipelines.starting.begin", lambda *args, **more: 1 / 0)
        engine.deliver()

    settled = flow.activity()
    assert (settled.status, settled.error["code"]) == ("failed", "internal_error")
    assert flow.states == {"a": "failed", "b": "skipped"}


def test_a_revision_after_a_separate_gate_needs_the_approval_of_its_own_step_again(
    engine: Engine, acme: Tenant
) -> None:
    flow = Flow(
        engine,
        acme,
        step("brief", requires_approval=True),
        step("sign-off", "brief", human_role="editor", is_approval_gate=True),
    )
    engine.drain()
    decisions.approve(acme.pk, flow.activity(step="brief", assignee_type="agent").pk, actor="legal")
    decisions.reject(acme.pk, flow.activity(step="sign-off").pk, actor="ann", notes="too long")
    engine.drain()

    revision = flow.activity(link_kind="revision_of")
    assert revision.status == "awaiting_approval"
    assert not flow.activities(step="sign-off", round=2)

    decisions.approve(acme.pk, revision.pk, actor="legal")
    decisions.approve(acme.pk, flow.activity(step="sign-off", round=2).pk, actor="ann")
    assert flow.outcome == ("completed", 0)
