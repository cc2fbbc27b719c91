"""Steps that have waited too long for what they depend on, by a clock that the test holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models.functions import Now

from activities import background_tasks, cancellation
from activities.human_tasks import approvals
from activities.maintenance import invariants
from activities.models import Activity
from agents.contracts import Accepted, AgentRequest, AgentResult
from pipelines import waiting_steps
from pipelines.cancellation import cancel_run
from pipelines.models import StepRun
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.flows import BROKEN, Flow, answering, step
from tests.toolbox import Caller
from tests.upkeep import carry_out

pytestmark = pytest.mark.usefixtures("one_at_a_time")

Start = Callable[..., Flow]
DAY = 86_400


@pytest.fixture
def start(engine: Engine, acme: Tenant) -> Iterator[Start]:
    """`start(step, step, ..., params=...)`: a run of a pipeline of these steps. Nothing may be broken when the test ends."""
    yield lambda *steps, **new: Flow(engine, acme, *steps, **new)
    assert invariants.check() == []


def after(seconds: float) -> int:
    """How many steps fail when so much time has passed."""
    return waiting_steps.fail_overdue(now=datetime.now(UTC) + timedelta(seconds=seconds))


def begun(flow: Flow, *steps: str) -> Flow:
    """The run, once these steps are under way, and stay so."""
    flow.engine.agent.behaviour = slow(*steps)
    flow.engine.drain()
    return flow


def slow(*steps: str) -> Callable[[AgentRequest], AgentResult]:
    """An agent that takes these steps and does not come back."""
    return lambda request: Accepted() if request.pipeline_step in steps else answering({})(request)


def test_a_step_whose_dependency_does_not_end_in_time_fails_and_names_it(start: Start) -> None:
    flow = start(
        step("fast"),
        step("slow"),
        step("join", "fast", "slow", dependency_timeout_seconds=60),
        step("tell", "join", on_upstream_failure="continue"),
    )
    flow.engine.agent.behaviour = slow("slow")
    flow.engine.drain()

    assert (after(59), after(61), after(61)) == (0, 1, 0)
    flow.engine.drain()

    assert flow.states == {"fast": "done", "slow": "active", "join": "failed", "tell": "done"}
    assert flow.row("join").error == {
        "code": "dependency_timeout",
        "message": "slow has not ended within 60 s.",
    }
    assert flow.outcome == ("running", 1)


def test_the_slow_step_may_still_end_and_ends_the_run(start: Start, acme: Tenant) -> None:
    flow = start(step("slow"), step("next", "slow", dependency_timeout_seconds=60))
    flow.engine.agent.behaviour = slow("slow")
    flow.engine.drain()
    after(61)

    cancellation.cancel(acme.pk, flow.only(step="slow").pk, actor="ann")

    assert flow.states == {"slow": "failed", "next": "failed"}
    assert flow.outcome == ("failed", 0)


def test_waiting_for_a_worker_takes_no_time(start: Start, acme: Tenant) -> None:
    flow = start(step("slow"), step("next", "slow", dependency_timeout_seconds=60))
    before = after(DAY)

    begun(flow, "slow")
    with tenant_scope(acme.pk):
        StepRun.objects.filter(run_id=flow.id, step="next").update(waits_until=Now())

    assert (before, after(30), after(61)) == (0, 0, 1)


def test_a_day_is_what_a_step_waits_that_says_nothing(start: Start) -> None:
    flow = begun(start(step("slow"), step("next", "slow")), "slow")

    assert (after(DAY - 10), after(DAY + 10)) == (0, 1)
    assert flow.row("next").error["message"] == "slow has not ended within 86,400 s."


def test_the_time_begins_when_the_first_dependency_starts(start: Start) -> None:
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


def test_a_fan_out_lets_the_time_begin_as_well(start: Start) -> None:
    flow = start(step("write", for_each="[1, 2]"), step("join", "write", dependency_timeout_seconds=60))
    flow.engine.agent.behaviour = slow("write")
    flow.engine.drain()

    assert (after(59), after(61)) == (0, 1)
    assert flow.row("join").error["message"] == "write has not ended within 60 s."


def test_while_a_person_is_asked_no_time_passes_and_it_begins_anew_with_the_answer(
    start: Start, acme: Tenant
) -> None:
    flow = start(
        step("text"),
        step("ok", "text", human_role="editor", is_approval_gate=True),
        step("slow", "ok"),
        step("join", "ok", "slow", dependency_timeout_seconds=60),
    )
    flow.engine.agent.behaviour = slow("slow")
    flow.engine.drain()
    asked = after(61), after(125)

    approvals.approve(acme.pk, flow.only(step="ok").pk, actor="ann")
    flow.engine.drain()
    with tenant_scope(acme.pk):
        # The answer came late in the time that had begun again.
        StepRun.objects.filter(run_id=flow.id, step="join").update(waits_until=Now())
    answered = after(30)

    assert (asked, answered, after(61)) == ((0, 0), 0, 1)


@pytest.mark.parametrize("what", ["approval", "blocker"])
def test_an_agents_work_that_waits_for_people_counts_as_theirs(start: Start, acme: Tenant, what: str) -> None:
    flow = start(
        step("text", requires_approval=what == "approval"),
        step("next", "text", dependency_timeout_seconds=60),
    )
    flow.drain() if what == "approval" else block(flow)

    assert after(61) == 0
    assert flow.states == {"text": "active", "next": "pending"}


def block(flow: Flow) -> None:
    flow.engine.agent.behaviour = slow("text")
    flow.engine.drain()
    Caller(flow.told("text")[-1]).used("report_blocker", type="data", message="Which one?")


def test_two_who_look_at_once_fail_the_step_once(start: Start) -> None:
    flow = start(step("slow"), step("next", "slow"), step("tell", "next", on_upstream_failure="continue"))
    begun(flow, "slow")

    assert sorted(at_once(lambda: after(DAY + 10), lambda: after(DAY + 10))) == [0, 1]
    assert len(flow.activities(step="tell")) == 1


def test_what_was_sent_back_has_its_whole_time_again(start: Start, acme: Tenant) -> None:
    gate = step("ok", "text", human_role="editor", is_approval_gate=True, dependency_timeout_seconds=60)
    flow = start(step("text"), gate).drain()

    approvals.reject(acme.pk, flow.only(step="ok").pk, actor="ann", notes="no")
    begun(flow, "text")

    assert flow.row("ok").waits_until is not None
    assert (after(59), after(61)) == (0, 1)
    assert flow.outcome[0] == "running"


def test_a_step_that_timed_out_waits_again_when_its_dependency_is_tried_again(
    start: Start, acme: Tenant
) -> None:
    flow = start(step("slow"), step("other"), step("join", "slow", "other", dependency_timeout_seconds=60))
    flow.engine.agent.behaviour = lambda request: (
        answering({"other": BROKEN})(request) if request.pipeline_step == "other" else Accepted()
    )
    flow.engine.deliver()
    after(61)
    flow.engine.drain()
    before = flow.states

    cancellation.retry(acme.pk, flow.only(step="other").pk, actor="ann")

    assert before == {"slow": "active", "other": "failed", "join": "failed"}
    assert flow.states == {"slow": "active", "other": "active", "join": "pending"}
    assert flow.row("join").waits_until is not None


def test_a_cancelled_run_waits_for_nothing(start: Start, acme: Tenant) -> None:
    flow = start(step("slow"), step("next", "slow", dependency_timeout_seconds=60))

    cancel_run(acme.pk, flow.id, actor="ann")

    assert flow.row("next").waits_until is None
    assert after(61) == 0


def test_the_leader_hints_at_steps_whose_time_is_over(
    start: Start, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Alone: whatever else is due shares the queue, and one hint lies in it at a time.
    alone = {"overdue-steps": background_tasks._tasks["overdue-steps"]}
    monkeypatch.setattr(background_tasks, "_tasks", alone)
    flow = begun(start(step("slow"), step("next", "slow", dependency_timeout_seconds=60)), "slow")
    quiet = background_tasks.Reminder().remind()
    with tenant_scope(acme.pk):
        StepRun.objects.filter(run_id=flow.id, step="next").update(waits_until=Now())
        Activity.objects.filter(step="slow").update(started_at=Now() - timedelta(hours=1))

    assert (quiet, background_tasks.Reminder().remind()) == ([], ["overdue-steps"])
    carry_out("pipelines.fail_overdue")
    assert flow.states["next"] == "failed"
