"""Timeouts of steps that wait for their dependencies, at times that the test chooses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db.models.functions import Now

from activities import background_tasks, cancellation
from activities.human_tasks import decisions
from activities.models import Activity
from agents.contracts import Accepted, AgentRequest, AgentResult
from agents.models import AgentConfig
from pipelines import waiting_steps
from pipelines.cancellation import cancel_run
from pipelines.models import StepRun
from tenants import sweeps
from tenants.context import system_scope, tenant_scope
from tenants.models import Budget, Tenant
from tests.accepted_work import AgentClient, agent_of
from tests.engine import Engine, simultaneously
from tests.flows import BROKEN, Flow, answer_by_step, step
from tests.integration.subtasks.parts import PART
from tests.spending import make_budget, release_waiting_work
from tests.upkeep import run_task

pytestmark = pytest.mark.usefixtures("one_at_a_time")

Start = Callable[..., Flow]
DAY = 86_400
#: A step that waits for work of two roles.
TWO_ROLES = (
    step("fast"),
    step("slow", agent_role="dev"),
    step("join", "fast", "slow", dependency_timeout_seconds=60),
)


def fail_overdue_after(seconds: float) -> int:
    """The number of steps that fail after this time."""
    return waiting_steps.fail_overdue(now=datetime.now(UTC) + timedelta(seconds=seconds))


def start_steps(flow: Flow, *steps: str) -> Flow:
    """Let these steps start without ending."""
    flow.engine.agent.behaviour = accept_steps(*steps)
    flow.engine.drain()
    return flow


def accept_steps(*steps: str) -> Callable[[AgentRequest], AgentResult]:
    """An agent that accepts these steps and never reports."""
    return lambda request: Accepted() if request.pipeline_step in steps else answer_by_step({})(request)


def test_a_step_whose_dependency_does_not_end_in_time_fails_and_names_the_dependency(start: Start) -> None:
    flow = start(
        step("fast"),
        step("slow"),
        step("join", "fast", "slow", dependency_timeout_seconds=60),
        step("tell", "join", on_upstream_failure="continue"),
    )
    flow.engine.agent.behaviour = accept_steps("slow")
    flow.engine.drain()

    assert (fail_overdue_after(59), fail_overdue_after(61), fail_overdue_after(61)) == (0, 1, 0)
    flow.engine.drain()

    assert flow.states == {"fast": "done", "slow": "active", "join": "failed", "tell": "done"}
    assert flow.row("join").error == {
        "code": "dependency_timeout",
        "message": "slow has not ended within 60 s.",
    }
    assert flow.outcome == ("running", 1)


def test_the_end_of_the_slow_step_still_ends_the_run(start: Start, acme: Tenant) -> None:
    flow = start(step("slow"), step("next", "slow", dependency_timeout_seconds=60))
    flow.engine.agent.behaviour = accept_steps("slow")
    flow.engine.drain()
    fail_overdue_after(61)

    cancellation.cancel(acme.pk, flow.activity(step="slow").pk, actor="ann")

    assert flow.states == {"slow": "failed", "next": "failed"}
    assert flow.outcome == ("failed", 0)


def test_time_spent_waiting_for_a_worker_does_not_count(start: Start, acme: Tenant) -> None:
    flow = start(step("slow"), step("next", "slow", dependency_timeout_seconds=60))
    before = fail_overdue_after(DAY)

    start_steps(flow, "slow")
    with tenant_scope(acme.pk):
        StepRun.objects.filter(run_id=flow.id, step="next").update(waits_until=Now())

    assert (before, fail_overdue_after(30), fail_overdue_after(61)) == (0, 0, 1)


def test_the_default_timeout_is_a_day(start: Start) -> None:
    flow = start_steps(start(step("slow"), step("next", "slow")), "slow")

    assert (fail_overdue_after(DAY - 10), fail_overdue_after(DAY + 10)) == (0, 1)
    assert flow.row("next").error["message"] == "slow has not ended within 86,400 s."


def test_the_time_starts_with_the_first_dependency(start: Start) -> None:
    flow = start(
        step("a"),
        step("b", "a"),
        step("c", "b", dependency_timeout_seconds=60),
        step("d", "c", for_each="[1]"),
    )
    before = flow.row("c").waits_until

    flow.deliver(1)

    assert before is None
    assert flow.row("c").waits_until is not None
    assert (flow.row("b").waits_until, flow.row("d").waits_until) == (None, None)
    flow.drain()
    assert [row.waits_until for row in flow.rows()] == [None] * 5


def test_the_time_starts_with_a_fan_out_as_well(start: Start) -> None:
    flow = start(step("write", for_each="[1, 2]"), step("join", "write", dependency_timeout_seconds=60))
    flow.engine.agent.behaviour = accept_steps("write")
    flow.engine.drain()

    assert (fail_overdue_after(59), fail_overdue_after(61)) == (0, 1)
    assert flow.row("join").error["message"] == "write has not ended within 60 s."


def test_a_fan_out_does_not_extend_the_time_that_another_dependency_has_started(start: Start) -> None:
    write = step("write", "list", for_each="[1, 2]")
    flow = start(
        step("fast"), step("list"), write, step("join", "fast", "write", dependency_timeout_seconds=60)
    )
    before = flow.row("join").waits_until

    start_steps(flow, "fast", "write")

    assert flow.branches("write") == ["active", "active"]
    assert flow.row("join").waits_until == before


def test_the_time_pauses_for_a_decision_and_starts_again_with_it(start: Start, acme: Tenant) -> None:
    flow = start(
        step("text"),
        step("ok", "text", human_role="editor", is_approval_gate=True),
        step("slow", "ok"),
        step("join", "ok", "slow", dependency_timeout_seconds=60),
    )
    flow.engine.agent.behaviour = accept_steps("slow")
    flow.engine.drain()
    while_undecided = fail_overdue_after(61), fail_overdue_after(125)

    decisions.approve(acme.pk, flow.activity(step="ok").pk, actor="ann")
    flow.engine.drain()
    with tenant_scope(acme.pk):
        # The decision came late within the new period.
        StepRun.objects.filter(run_id=flow.id, step="join").update(waits_until=Now())
    after_decision = fail_overdue_after(30)

    assert (while_undecided, after_decision, fail_overdue_after(61)) == ((0, 0), 0, 1)


@pytest.mark.parametrize("reason", ["approval", "blocker"])
def test_the_time_pauses_while_an_agents_work_waits_for_people(
    start: Start, acme: Tenant, reason: str
) -> None:
    flow = start(
        step("text", requires_approval=reason == "approval"),
        step("next", "text", dependency_timeout_seconds=60),
    )
    flow.drain() if reason == "approval" else block(flow)

    assert fail_overdue_after(61) == 0
    assert flow.states == {"text": "active", "next": "pending"}


@pytest.mark.parametrize("how", ["pause", "date"])
def test_the_time_begins_again_while_people_keep_work_that_it_waits_for_from_starting(
    api: Any, start: Start, how: str
) -> None:
    client = api("admin")
    client.post("/api/v1/queues/dev/pause/")
    flow = start_steps(start(*TWO_ROLES), "slow")
    slow = f"/api/v1/activities/{flow.activity(step='slow').pk}/"
    if how == "date":
        client.patch(slow, {"not_before": (datetime.now(UTC) + timedelta(days=1)).isoformat()})
        client.post("/api/v1/queues/dev/resume/")
    meanwhile = fail_overdue_after(61), fail_overdue_after(120), fail_overdue_after(122)

    client.patch(slow, {"not_before": None})
    client.post("/api/v1/queues/dev/resume/")
    flow.engine.drain()

    assert flow.states == {"fast": "done", "slow": "active", "join": "pending"}
    assert (meanwhile, fail_overdue_after(181), fail_overdue_after(183)) == ((0, 0, 0), 0, 1)


@pytest.mark.parametrize("what", ["role", "tenant"])
def test_the_time_begins_again_while_the_role_or_the_tenant_is_switched_off(
    api: Any, start: Start, acme: Tenant, what: str
) -> None:
    api("admin").post("/api/v1/queues/dev/pause/")
    flow = start_steps(start(*TWO_ROLES), "slow")

    with system_scope():
        if what == "role":
            AgentConfig.objects.filter(tenant_id=acme.pk, agent_id="dev").update(enabled=False)
        else:
            Tenant.objects.filter(pk=acme.pk).update(is_active=False)

    assert (fail_overdue_after(61), flow.states["join"]) == (0, "pending")


@pytest.mark.parametrize("reason", ["question", "pause"])
def test_the_time_does_not_end_while_a_subtask_waits_for_people(
    api: Any, start: Start, acme: Tenant, reason: str
) -> None:
    flow = start_steps(start(step("text"), step("next", "text", dependency_timeout_seconds=60)), "text")
    if reason == "pause":
        api("admin").post("/api/v1/queues/dev/pause/")
    flow.engine.agent.behaviour = lambda request: Accepted()
    subtask = AgentClient(flow.calls_of_step("text")[-1]).create_with("create_subtask", **PART)
    flow.engine.drain()
    if reason == "question":
        agent_of(flow.engine, subtask).create_with("report_blocker", type="data", message="Which one?")

    assert flow.engine.status(acme, subtask) == ("blocked" if reason == "question" else "created")
    assert (fail_overdue_after(61), flow.states) == (0, {"text": "active", "next": "pending"})


def test_a_subtask_at_work_is_no_reason_for_more_time(start: Start) -> None:
    flow = start_steps(start(step("text"), step("next", "text", dependency_timeout_seconds=60)), "text")
    flow.engine.agent.behaviour = lambda request: Accepted()
    AgentClient(flow.calls_of_step("text")[-1]).create_with("create_subtask", **PART)
    flow.engine.drain()

    assert fail_overdue_after(61) == 1


def test_the_time_begins_again_while_work_that_it_waits_for_waits_for_money(
    start: Start, acme: Tenant
) -> None:
    make_budget(acme, "0.10", agent_role="dev")
    flow = start_steps(start(*TWO_ROLES), "slow")
    meanwhile = fail_overdue_after(61), fail_overdue_after(120), fail_overdue_after(122)

    with tenant_scope(acme.pk):
        Budget.objects.update(cap=5)
    release_waiting_work(flow.engine)
    flow.engine.drain()

    assert flow.states == {"fast": "done", "slow": "active", "join": "pending"}
    assert (meanwhile, fail_overdue_after(181), fail_overdue_after(183)) == ((0, 0, 0), 0, 1)


def test_the_time_begins_again_while_work_that_it_waits_for_has_no_room_in_a_backlog(
    engine: Engine, start: Start, acme: Tenant
) -> None:
    engine.serve(acme, "dev")
    with tenant_scope(acme.pk):
        AgentConfig.objects.filter(agent_id="dev").update(backlog={"max_waiting": 1, "when_full": "reject"})
    (other,) = engine.submit(acme, "dev", not_before=datetime.now(UTC) + timedelta(days=1))
    steps = (
        step("fast"),
        step("slow", "fast", agent_role="dev"),
        step("join", "fast", "slow", dependency_timeout_seconds=60),
    )
    flow = start_steps(start(*steps), "slow")
    reason = flow.row("slow").reason
    meanwhile = fail_overdue_after(61), fail_overdue_after(120), fail_overdue_after(122)

    cancellation.cancel(acme.pk, other, actor="test")
    waiting_steps.admit_steps()
    flow.engine.drain()

    assert reason == "backlog"
    assert flow.states == {"fast": "done", "slow": "active", "join": "pending"}
    assert (meanwhile, fail_overdue_after(181), fail_overdue_after(183)) == ((0, 0, 0), 0, 1)


def block(flow: Flow) -> None:
    flow.engine.agent.behaviour = accept_steps("text")
    flow.engine.drain()
    AgentClient(flow.calls_of_step("text")[-1]).create_with(
        "report_blocker", type="data", message="Which one?"
    )


def test_two_concurrent_checks_fail_the_step_once(start: Start) -> None:
    flow = start(step("slow"), step("next", "slow"), step("tell", "next", on_upstream_failure="continue"))
    start_steps(flow, "slow")

    assert sorted(
        simultaneously(lambda: fail_overdue_after(DAY + 10), lambda: fail_overdue_after(DAY + 10))
    ) == [
        0,
        1,
    ]
    assert len(flow.activities(step="tell")) == 1


def test_the_time_starts_again_after_a_rejection(start: Start, acme: Tenant) -> None:
    gate = step("ok", "text", human_role="editor", is_approval_gate=True, dependency_timeout_seconds=60)
    flow = start(step("text"), gate).drain()

    decisions.reject(acme.pk, flow.activity(step="ok").pk, actor="ann", notes="no")
    start_steps(flow, "text")

    assert flow.row("ok").waits_until is not None
    assert (fail_overdue_after(59), fail_overdue_after(61)) == (0, 1)
    assert flow.outcome[0] == "running"


def test_a_timed_out_step_waits_again_when_its_dependency_is_retried(start: Start, acme: Tenant) -> None:
    flow = start(step("slow"), step("other"), step("join", "slow", "other", dependency_timeout_seconds=60))
    flow.engine.agent.behaviour = lambda request: (
        answer_by_step({"other": BROKEN})(request) if request.pipeline_step == "other" else Accepted()
    )
    flow.engine.deliver()
    fail_overdue_after(61)
    flow.engine.drain()
    before = flow.states

    cancellation.retry(acme.pk, flow.activity(step="other").pk, actor="ann")

    assert before == {"slow": "active", "other": "failed", "join": "failed"}
    assert flow.states == {"slow": "active", "other": "active", "join": "pending"}
    assert flow.row("join").waits_until is not None


def test_cancelling_a_run_ends_the_timeouts_of_its_steps(start: Start, acme: Tenant) -> None:
    flow = start(step("slow"), step("next", "slow", dependency_timeout_seconds=60))

    cancel_run(acme.pk, flow.id, actor="ann")

    assert flow.row("next").waits_until is None
    assert fail_overdue_after(61) == 0


def test_the_leader_sends_a_hint_about_overdue_steps(
    start: Start, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only this task, because due tasks share a queue that holds one hint at a time.
    only_task = {"overdue-steps": background_tasks._tasks["overdue-steps"]}
    monkeypatch.setattr(background_tasks, "_tasks", only_task)
    flow = start_steps(start(step("slow"), step("next", "slow", dependency_timeout_seconds=60)), "slow")
    hints_before = background_tasks.Reminder().remind()
    with tenant_scope(acme.pk):
        StepRun.objects.filter(run_id=flow.id, step="next").update(waits_until=Now())
        Activity.objects.filter(step="slow").update(started_at=Now() - timedelta(hours=1))

    assert (hints_before, background_tasks.Reminder().remind()) == ([], ["overdue-steps"])
    run_task("pipelines.fail_overdue")
    assert flow.states["next"] == "failed"


def test_steps_that_cannot_be_failed_keep_no_later_one_from_its_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    flows = [
        start_steps(start(step("text"), step("next", "text", dependency_timeout_seconds=60)), "text")
        for _ in "12"
    ]
    fail = waiting_steps.fail_if_overdue

    def fail_others(tenant_id: UUID, run_id: UUID, name: str, *, now: datetime) -> bool:
        if run_id == flows[0].id:
            raise ZeroDivisionError
        return fail(tenant_id, run_id, name, now=now)

    monkeypatch.setattr(waiting_steps, "fail_if_overdue", fail_others)

    assert fail_overdue_after(61) == 1
    assert [flow.states["next"] for flow in flows] == ["pending", "failed"]
