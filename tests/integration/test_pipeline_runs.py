"""Runs of pipelines: what follows a step, what follows a decision, and what follows a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from activities import cancellation
from activities.exceptions import AlreadyDecided, TransitionRefused
from activities.human_tasks import approvals
from activities.models import Activity
from agents.contracts import Completed, Output
from agents.exceptions import PermanentAgentError
from pipelines import progression, starting, versions
from pipelines.cancellation import cancel_run
from pipelines.models import PipelineRun, StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture
def start(engine: Engine, acme: Tenant) -> Callable[..., UUID]:
    """`start(step, step, ..., params=...)`: the id of a run of a pipeline of these steps."""

    def started(*steps: dict[str, Any], **new: Any) -> UUID:
        versions.save(acme.pk, {"key": "flow", "name": "Flow", "steps": list(steps)}, actor="test")
        return start_run(acme.pk, "flow", NewRun(**new), actor="test").pk

    return started


def step(name: str, *after: str, **more: Any) -> dict[str, Any]:
    assignee = {} if "human_role" in more else {"agent_role": "qa"}
    return {"id": name, "depends_on": list(after), **assignee, **more}


def states(tenant: Tenant, run_id: UUID) -> dict[str, str]:
    with tenant_scope(tenant.pk):
        return dict(StepRun.objects.filter(run_id=run_id).values_list("step", "status"))


def run_status(tenant: Tenant, run_id: UUID) -> tuple[str, int]:
    with tenant_scope(tenant.pk):
        return PipelineRun.objects.values_list("status", "unsettled").get(pk=run_id)


def activities(tenant: Tenant, run_id: UUID, **which: Any) -> list[Activity]:
    with tenant_scope(tenant.pk):
        return list(Activity.objects.filter(pipeline_run_id=run_id, **which).order_by("created_at"))


def only(tenant: Tenant, run_id: UUID, **which: Any) -> Activity:
    (found,) = activities(tenant, run_id, **which)
    return found


def test_a_run_that_starts_is_told_as_it_is_stored(acme: Tenant) -> None:
    versions.save(
        acme.pk, {"key": "flow", "name": "Flow", "steps": [step("a"), step("b", "a")]}, actor="test"
    )
    given = NewRun(
        name="Ünïcode",
        params={"wide": 10**30 + 1, "quote": "it's", "none": None},
        input={"data": [1.5]},
        priority=3,
        retry={"max_attempts": 2},
        timeout_seconds=7,
        requested_identity="user:1",
    )

    told = start_run(acme.pk, "flow", given, actor="user:eva")

    with tenant_scope(acme.pk):
        stored = PipelineRun.objects.get(pk=told.pk)
        steps = list(
            StepRun.objects.filter(run_id=told.pk).values_list("step", "position", "status", "round")
        )
    fields = [field.attname for field in PipelineRun._meta.concrete_fields]
    assert {name: getattr(told, name) for name in fields} == {name: getattr(stored, name) for name in fields}
    assert stored.params == given.params
    assert steps == [("a", 0, "active", 1), ("b", 1, "pending", 1)]


def test_each_step_works_on_the_output_of_the_one_before(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(
        step("a"), step("b", "a"), step("c", "b"), params={"city": "Oslo"}, input={"content": "begin"}
    )

    engine.drain()

    assert run_status(acme, run_id) == ("completed", 0)
    assert [call.pipeline_step for call in engine.agent.calls] == ["a", "b", "c"]
    assert [(call.input or {}).get("content") for call in engine.agent.calls] == [
        "begin",
        "a: done",
        "b: done",
    ]
    assert all(call.params == {"city": "Oslo"} for call in engine.agent.calls)


def test_a_join_starts_once_after_its_last_dependency_with_all_their_outputs(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(step("a"), step("b"), step("c"), step("join", "a", "b", "c"))

    engine.drain()

    assert run_status(acme, run_id) == ("completed", 0)
    assert len(activities(acme, run_id, step="join")) == 1
    joined = engine.agent.calls[-1].input["steps"]
    assert {name: given["content"] for name, given in joined.items()} == {
        name: f"{name}: done" for name in "abc"
    }


def test_repeating_progression_starts_nothing_twice(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(step("a"), step("b", "a"))
    engine.drain()
    settled = only(acme, run_id, step="a")

    with tenant_scope(acme.pk):
        progression.advance(settled)

    assert len(activities(acme, run_id)) == 2
    assert run_status(acme, run_id) == ("completed", 0)


def test_a_failed_step_fails_the_run_and_skips_what_depends_on_it_while_others_end(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    engine.agent.behaviour = failing_in("bad")
    run_id = start(step("bad"), step("after", "bad"), step("beside"))

    engine.drain()

    assert states(acme, run_id) == {"bad": "failed", "after": "skipped", "beside": "done"}
    assert run_status(acme, run_id) == ("failed", 0)


def test_a_step_may_go_on_in_spite_of_a_failure_upstream(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    engine.agent.behaviour = failing_in("bad")
    run_id = start(step("bad"), step("good"), step("join", "bad", "good", on_upstream_failure="continue"))

    engine.drain()

    assert states(acme, run_id) == {"bad": "failed", "good": "done", "join": "done"}
    assert run_status(acme, run_id) == ("completed", 0)


def test_trying_a_failed_step_again_revives_its_run(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    engine.agent.behaviour = failing_in("bad")
    run_id = start(step("bad"), step("after", "bad"))
    engine.drain()
    engine.agent.behaviour = failing_in("nothing")

    cancellation.retry(acme.pk, only(acme, run_id, step="bad").pk, actor="test")
    engine.drain()

    assert states(acme, run_id) == {"bad": "done", "after": "done"}
    assert run_status(acme, run_id) == ("completed", 0)


def test_an_approved_step_lets_the_next_one_start(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(step("brief", requires_approval=True), step("text", "brief"))
    engine.drain()
    waiting, gate = activities(acme, run_id)

    approvals.approve(acme.pk, gate.pk, actor="ann", notes="fine")
    engine.drain()

    brief = engine.get(acme, waiting.pk)
    assert (brief.status, brief.decided_by, brief.reviewer_notes) == ("approved", "ann", "fine")
    assert engine.get(acme, gate.pk).status == "approved"
    assert run_status(acme, run_id) == ("completed", 0)


def test_a_rejection_makes_a_revision_that_sees_the_output_and_the_notes_and_asks_again(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(step("brief", requires_approval=True), step("text", "brief"), input={"content": "source"})
    engine.drain()
    first = only(acme, run_id, step="brief", assignee_type="agent")

    approvals.reject(acme.pk, first.pk, actor="ann", notes="Add the costs.")
    engine.drain()

    revision = only(acme, run_id, link_kind="revision_of")
    call = engine.agent.calls[-1]
    assert (revision.status, revision.round, revision.name) == ("awaiting_approval", 2, "brief (revision)")
    assert call.wake_reason == "rejection"
    assert call.wake_context["rejection_ref"] == str(first.output_ref)
    assert call.input["content"] == "source"
    assert "brief: done" in call.prompt
    assert "Add the costs." in call.prompt
    approvals.approve(acme.pk, revision.pk, actor="ann")
    engine.drain()
    assert run_status(acme, run_id) == ("completed", 0)
    assert engine.agent.calls[-1].input["content"] == "brief (revision): done"


def test_after_the_last_round_a_rejection_fails_the_step_and_asks_a_person(
    engine: Engine, acme: Tenant, start: Callable[..., UUID], settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 2
    run_id = start(step("brief", requires_approval=True), step("text", "brief"))
    for _ in range(2):
        engine.drain()
        approvals.reject(acme.pk, only(acme, run_id, status="awaiting_approval").pk, actor="ann", notes="no")

    assert run_status(acme, run_id) == ("failed", 0)
    assert states(acme, run_id) == {"brief": "failed", "text": "skipped"}
    with tenant_scope(acme.pk):
        assert Activity.objects.get(link_kind="escalation").status == "created"


def test_a_gate_step_that_refuses_sends_the_work_back_and_asks_again(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(
        step("brief"),
        step("sign-off", "brief", human_role="editor", is_approval_gate=True),
        step("text", "sign-off"),
    )
    engine.drain()
    approvals.reject(acme.pk, only(acme, run_id, step="sign-off").pk, actor="ann", notes="too long")
    engine.drain()
    again = only(acme, run_id, step="sign-off", round=2)

    approvals.approve(acme.pk, again.pk, actor="ann")
    engine.drain()

    assert run_status(acme, run_id) == ("completed", 0)
    assert [call.name for call in engine.agent.calls] == ["brief", "brief (revision)", "text"]
    assert engine.agent.calls[-1].input["content"] == "brief (revision): done"


def test_a_second_decision_is_told_who_was_first(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(step("brief", requires_approval=True))
    engine.drain()
    waiting = only(acme, run_id, assignee_type="agent")
    approvals.approve(acme.pk, waiting.pk, actor="ann")

    with pytest.raises(AlreadyDecided, match="ann approved this at"):
        approvals.reject(acme.pk, waiting.pk, actor="bob", notes="no")

    assert len(activities(acme, run_id)) == 2


def test_only_what_waits_behind_a_gate_can_be_approved(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)

    with pytest.raises(TransitionRefused):
        approvals.approve(acme.pk, activity_id, actor="ann")


def test_a_cancelled_run_cancels_its_work_and_its_gates(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(step("brief", requires_approval=True), step("beside"), step("text", "brief", "beside"))
    engine.deliver()
    engine.deliver()

    cancel_run(acme.pk, run_id, actor="ann")
    engine.drain()

    assert run_status(acme, run_id)[0] == "cancelled"
    assert {found.status for found in activities(acme, run_id)} <= {"cancelled", "done"}
    assert not activities(acme, run_id, step="text")


def test_a_run_keeps_the_version_that_it_began_with(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(step("a"), step("b", "a"))

    versions.save(
        acme.pk, {"key": "flow", "name": "Flow", "steps": [step("a"), step("z", "a")]}, actor="test"
    )
    engine.drain()

    assert states(acme, run_id) == {"a": "done", "b": "done"}


def test_of_steps_that_shall_start_those_that_wait_do_in_their_own_round_and_once(
    engine: Engine, acme: Tenant, start: Callable[..., UUID]
) -> None:
    run_id = start(step("a"), step("skipped", "a"), step("again", "a"), step("first", "a"))
    with tenant_scope(acme.pk):
        StepRun.objects.filter(run_id=run_id, step="skipped").update(status="skipped")
        StepRun.objects.filter(run_id=run_id, step="again").update(round=3)
        run = PipelineRun.objects.get(pk=run_id)
        plan = versions.compile_version(run.version_id)
        for _ in range(2):
            starting.start(run, plan, ["skipped", "again", "first"], {})
        active = StepRun.objects.filter(run_id=run_id, status="active").exclude(step="a")
        started = set(active.values_list("step", "activity_id"))

    found = [each for each in activities(acme, run_id) if each.step != "a"]
    assert {(each.step, each.round) for each in found} == {("again", 3), ("first", 1)}
    assert {(each.step, each.pk) for each in found} == started
    assert len(found) == 2


def test_a_result_whose_progression_breaks_fails_the_activity_and_keeps_no_half(
    engine: Engine, acme: Tenant, start: Callable[..., UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = start(step("a"), step("b", "a"))
    with monkeypatch.context() as broken:
        broken.setattr("pipelines.starting.begin", lambda *args, **more: 1 / 0)
        engine.deliver()

    settled = only(acme, run_id)
    assert (settled.status, settled.error["code"]) == ("failed", "internal_error")
    assert states(acme, run_id) == {"a": "failed", "b": "skipped"}


def failing_in(name: str) -> Callable[[Any], Completed]:
    def behave(request: Any) -> Completed:
        if request.pipeline_step == name:
            raise PermanentAgentError("no")
        return Completed(Output(content=f"{request.name}: done"))

    return behave
