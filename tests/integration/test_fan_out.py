"""Fan-outs: steps with a branch for each item of a list, and the joins after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn
from uuid import UUID

import pytest

from activities import cancellation, outputs, reassignment
from activities.exceptions import OutputUnavailable
from activities.human_tasks import decisions, human_work
from console.inbox import detail
from pipelines import waiting_steps
from pipelines.cancellation import cancel_run
from pipelines.exceptions import PipelineError
from tenants.models import Tenant
from tests.flows import BROKEN, Flow, step

pytestmark = pytest.mark.usefixtures("one_at_a_time")

Start = Callable[..., Flow]
TOPICS = ["bees", "hives", "honey"]
WRITE = step("write", "plan", for_each="steps.plan.data.topics")
PLAN = {"topics": TOPICS}


def write_about_item(request: Any) -> Any:
    return {"about": request.params["item"]}


def fail_for(*items: str) -> Callable[[Any], Any]:
    return lambda request: BROKEN if request.params["item"] in items else write_about_item(request)


def test_each_item_has_a_branch_and_the_join_gets_their_outputs_in_order(start: Start) -> None:
    flow = start(step("plan"), WRITE, step("join", "write"), params={"tone": "warm"}, defaults={"size": 3})

    flow.drain(plan=PLAN, write=write_about_item)

    assert flow.outcome == ("completed", 0)
    assert [call.params for call in flow.calls_of_step("write")] == [
        {"tone": "warm", "size": 3, "item": topic, "item_index": index} for index, topic in enumerate(TOPICS)
    ]
    assert [activity.branch for activity in flow.activities(step="write")] == [1, 2, 3]
    assert all(call.input["data"] == PLAN for call in flow.calls_of_step("write"))
    (joined,) = [call.input for call in flow.calls_of_step("join")]
    assert joined["data"] == {"write": [{"about": topic} for topic in TOPICS]}
    assert joined["steps"]["write"]["data"] == [{"about": topic} for topic in TOPICS]
    assert joined["steps"]["write"]["content"] == ["write: done"] * 3
    assert joined["steps"]["write"]["refs"] == [
        str(activity.output_ref) for activity in flow.activities(step="write")
    ]


def test_the_prompt_of_a_join_contains_each_part_once(start: Start) -> None:
    flow = start(step("plan"), WRITE, step("join", "plan", "write"))

    flow.drain(plan=PLAN, write=write_about_item)

    (prompt,) = [call.prompt for call in flow.calls_of_step("join")]
    assert [prompt.count(f'"about": "{topic}"') for topic in TOPICS] == [1, 1, 1]
    places = [prompt.index(f"## Data of the step write, part {number}") for number in (1, 2, 3)]
    assert places == sorted(places)
    assert "## Data of the step plan" in prompt


def test_a_fan_out_over_an_empty_list_is_done_at_once_and_joined_as_an_empty_list(start: Start) -> None:
    flow = start(
        step("plan"),
        WRITE,
        step("join", "write"),
        step("count", "write", when="len(steps.write.data) == 0 and steps.write.status == 'done'"),
    )

    flow.drain(plan={"topics": []})

    assert flow.states == {"plan": "done", "write": "done", "join": "done", "count": "done"}
    assert flow.outcome == ("completed", 0)
    (joined,) = [call.input for call in flow.calls_of_step("join")]
    assert (joined["data"], joined["steps"]["write"]["data"]) == ({"write": []}, [])
    assert flow.row("write").branches == 0


def test_a_list_above_the_limit_fails_the_step(start: Start, settings: Any) -> None:
    settings.ORCHESTRATOR_FAN_OUT_ITEMS = 2
    flow = start(step("plan"), WRITE, step("join", "write"))

    flow.drain(plan=PLAN)

    assert flow.states == {"plan": "done", "write": "failed", "join": "skipped"}
    assert flow.outcome == ("failed", 0)
    assert flow.row("write").error == {
        "code": "expression_error",
        "message": "for_each: steps.plan.data.topics: character 1: a fan-out may have at most 2 members, but this list has 3",
    }


def test_a_value_that_is_no_list_fails_the_step(start: Start) -> None:
    flow = start(step("plan"), WRITE).drain(plan={"topics": "bees"})

    assert flow.outcome == ("failed", 0)
    assert "a fan-out needs a list, but this is text" in flow.row("write").error["message"]


@pytest.mark.parametrize(
    ("policy", "join", "outcome"),
    [("fail", "skipped", "failed"), ("skip", "skipped", "completed"), ("continue", "done", "completed")],
)
def test_after_a_failed_branch_the_others_finish_and_the_step_fails(
    start: Start, policy: str, join: str, outcome: str
) -> None:
    flow = start(step("plan"), WRITE, step("join", "write", on_upstream_failure=policy))

    flow.drain(plan=PLAN, write=fail_for("hives"))

    assert flow.branches("write") == ["done", "failed", "done"]
    assert flow.states == {"plan": "done", "write": "failed", "join": join}
    assert flow.outcome == (outcome, 0)
    if join == "done":
        (joined,) = [call.input for call in flow.calls_of_step("join")]
        assert joined["data"] == {"write": [{"about": "bees"}, None, {"about": "honey"}]}
        assert joined["steps"]["write"]["refs"][1] is None


def test_a_step_fails_if_only_the_last_of_its_branches_fails(start: Start) -> None:
    flow = start(step("plan"), WRITE).drain(plan=PLAN, write=fail_for("honey"))

    assert flow.branches("write") == ["done", "done", "failed"]
    assert (flow.states["write"], flow.outcome) == ("failed", ("failed", 0))


def test_retrying_a_failed_branch_reopens_its_run(start: Start, acme: Tenant) -> None:
    flow = start(step("plan"), WRITE, step("join", "write")).drain(plan=PLAN, write=fail_for("hives"))
    (failed,) = flow.activities(step="write", status__in=["failed", "needs_review"])

    cancellation.retry(acme.pk, failed.pk, actor="ann")
    between = flow.states, flow.outcome
    flow.drain(plan=PLAN, write=write_about_item)

    assert between == ({"plan": "done", "write": "active", "join": "pending"}, ("running", 2))
    assert flow.states == {"plan": "done", "write": "done", "join": "done"}
    assert flow.calls_of_step("join")[0].input["data"] == {"write": [{"about": topic} for topic in TOPICS]}
    assert flow.outcome == ("completed", 0)


def test_retrying_a_branch_while_others_are_active_changes_only_that_branch(
    start: Start, acme: Tenant
) -> None:
    flow = start(step("plan"), WRITE, step("join", "write"))
    flow.deliver(2, plan=PLAN, write=BROKEN)
    (failed,) = flow.activities(step="write", status__in=["failed", "needs_review"])
    before = flow.row("write").unsettled_branches, flow.row("write").failed_branches

    cancellation.retry(acme.pk, failed.pk, actor="ann")
    after = flow.row("write").unsettled_branches, flow.row("write").failed_branches
    flow.drain(plan=PLAN, write=write_about_item)

    assert (before, after) == ((2, 1), (3, 0))
    assert flow.branches("write") == ["done"] * 3
    assert flow.outcome == ("completed", 0)


def test_each_branch_is_approved_or_rejected_separately(start: Start, acme: Tenant) -> None:
    flow = start(step("plan"), {**WRITE, "requires_approval": True}, step("join", "write"))
    flow.drain(plan=PLAN, write=lambda request: {**write_about_item(request), "round": request.wake_reason})
    first, second, third = flow.activities(step="write", link_kind=None)

    decisions.approve(acme.pk, first.pk, actor="ann")
    decisions.reject(acme.pk, second.pk, actor="ann", notes="again")
    decisions.approve(acme.pk, third.pk, actor="ann")
    flow.drain()
    (revision,) = flow.activities(step="write", link_kind="revision_of")
    between = flow.states["write"], flow.row("write", 2)
    decisions.approve(acme.pk, revision.pk, actor="ann")
    flow.drain()

    assert (revision.branch, revision.round, revision.params["item"]) == (2, 2, "hives")
    assert (between[0], between[1].activity_id, between[1].round) == ("active", revision.pk, 2)
    assert flow.calls_of_step("join")[0].input["data"]["write"] == [
        {"about": "bees", "round": "new_task"},
        {"about": "hives", "round": "rejection"},
        {"about": "honey", "round": "new_task"},
    ]
    assert flow.outcome == ("completed", 0)


def test_a_rejected_gate_after_a_fan_out_revises_every_branch(start: Start, acme: Tenant) -> None:
    gate = step("sign-off", "write", human_role="editor", is_approval_gate=True)
    flow = start(step("plan"), WRITE, gate, step("join", "sign-off"))
    flow.drain(plan=PLAN, write=lambda request: {**write_about_item(request), "why": request.wake_reason})
    gate_activity = flow.activity(step="sign-off")

    decisions.reject(acme.pk, gate_activity.pk, actor="ann", notes="warmer")
    between = flow.states, flow.outcome, flow.row("write").unsettled_branches
    flow.drain()
    decisions.approve(acme.pk, flow.activity(step="sign-off", round=2).pk, actor="ann")
    flow.drain()

    assert len(gate_activity.input["refs"]["write"]) == 3
    assert [source.title for source in detail.sources_of(gate_activity, None)] == [
        "Result of write, part 1",
        "Result of write, part 2",
        "Result of write, part 3",
    ]
    assert between == (
        {"plan": "done", "write": "active", "sign-off": "pending", "join": "pending"},
        ("running", 3),
        3,
    )
    # The approved outputs are passed to the step after the gate.
    assert flow.calls_of_step("join")[0].input["data"] == {
        "write": [{"about": topic, "why": "rejection"} for topic in TOPICS]
    }
    assert flow.outcome == ("completed", 0)


def test_people_can_complete_the_branches_of_a_fan_out(start: Start, acme: Tenant) -> None:
    flow = start(
        step("plan"),
        step("check", "plan", human_role="editor", for_each="steps.plan.data.topics"),
        step("join", "check"),
    ).drain(plan=PLAN)

    for activity in flow.activities(step="check"):
        human_work.complete(
            acme.pk, activity.pk, actor="ann", output={"data": {"seen": activity.params["item"]}}
        )
    flow.drain()

    assert flow.calls_of_step("join")[0].input["data"] == {"check": [{"seen": topic} for topic in TOPICS]}


def test_a_gate_that_rejects_while_a_failed_branch_is_retried_asks_again_about_all_branches(
    start: Start, acme: Tenant
) -> None:
    gate = step(
        "sign-off", "write", human_role="editor", is_approval_gate=True, on_upstream_failure="continue"
    )
    flow = start(step("plan"), WRITE, gate).drain(plan=PLAN, write=fail_for("hives"))
    cancellation.retry(acme.pk, flow.activity(step="write", branch=2).pk, actor="ann")

    decisions.reject(acme.pk, flow.activity(step="sign-off").pk, actor="ann", notes="too long")
    flow.drain(plan=PLAN, write=write_about_item)
    decisions.approve(acme.pk, flow.activity(step="sign-off", round=2).pk, actor="ann")

    assert flow.branches("write") == ["done"] * 3
    assert flow.outcome == ("completed", 0)


def test_a_rejected_gate_for_an_item_fails_its_branch(start: Start, acme: Tenant) -> None:
    gate = step("ok", "plan", human_role="editor", is_approval_gate=True, for_each="steps.plan.data.topics")
    flow = start(step("plan"), gate, step("join", "ok", on_upstream_failure="continue")).drain(plan=PLAN)
    first, second, third = flow.activities(step="ok")

    decisions.approve(acme.pk, first.pk, actor="ann")
    decisions.reject(acme.pk, second.pk, actor="ann", notes="no")
    decisions.approve(acme.pk, third.pk, actor="ann")
    flow.drain()

    assert flow.branches("ok") == ["done", "failed", "done"]
    assert flow.outcome == ("completed", 0)


def test_a_branch_continues_with_the_successor_of_its_activity(start: Start, acme: Tenant) -> None:
    flow = start(step("plan"), WRITE, step("join", "write"))
    flow.drain(plan=PLAN, write=fail_for("hives"))
    (failed,) = flow.activities(step="write", status__in=["failed", "needs_review"])

    successor = reassignment.reassign(acme.pk, failed.pk, actor="ann", reason="better", agent_role="dev")
    flow.drain(plan=PLAN, write=write_about_item)

    assert (successor.branch, flow.row("write", 2).activity_id) == (2, successor.pk)
    assert flow.outcome == ("completed", 0)
    assert flow.calls_of_step("join")[0].input["data"]["write"][1] == {"about": "hives"}


def test_a_cancelled_branch_counts_as_failed(start: Start, acme: Tenant) -> None:
    flow = start(step("plan"), {**WRITE, "requires_approval": True}).drain(plan=PLAN, write=write_about_item)
    first, second, third = flow.activities(step="write", link_kind=None)

    cancellation.cancel(acme.pk, second.pk, actor="ann")
    decisions.approve(acme.pk, first.pk, actor="ann")
    decisions.approve(acme.pk, third.pk, actor="ann")

    assert flow.branches("write") == ["done", "failed", "done"]
    assert flow.outcome == ("failed", 0)


def test_a_cancelled_run_cancels_its_branches(start: Start, acme: Tenant) -> None:
    flow = start(step("plan"), WRITE, step("join", "write"))
    flow.deliver(2, plan=PLAN, write=write_about_item)

    cancel_run(acme.pk, flow.id, actor="ann")
    flow.engine.drain()

    assert flow.run.status == "cancelled"
    assert {activity.status for activity in flow.activities(step="write")} <= {"cancelled", "done", "failed"}
    assert not flow.activities(step="join")


def test_a_condition_about_the_item_omits_items(start: Start) -> None:
    flow = start(step("plan"), {**WRITE, "when": "item != 'hives'"}, step("join", "write"))

    flow.drain(plan=PLAN, write=write_about_item)

    assert [(call.params["item"], call.params["item_index"]) for call in flow.calls_of_step("write")] == [
        ("bees", 0),
        ("honey", 2),
    ]
    assert flow.calls_of_step("join")[0].input["data"] == {"write": [{"about": "bees"}, {"about": "honey"}]}


def test_a_condition_that_cannot_be_evaluated_for_an_item_fails_the_step_and_names_the_item(
    start: Start,
) -> None:
    flow = start(step("plan"), {**WRITE, "when": "item > 3"}).drain(plan={"topics": [4, "x"]})

    assert flow.outcome == ("failed", 0)
    assert flow.row("write").error["message"].startswith("when: item > 3: item 1: character 6: ")


def test_a_condition_about_the_step_is_evaluated_before_the_list(start: Start) -> None:
    flow = start(step("plan"), {**WRITE, "when": "steps.plan.data != null"}, step("join", "write"))

    flow.drain(plan=None)

    assert flow.states == {"plan": "done", "write": "skipped", "join": "skipped"}
    assert flow.row("write").reason == "condition"


def test_the_first_step_can_fan_out_over_a_parameter(start: Start) -> None:
    flow = start(step("write", for_each="params.topics"), step("join", "write"), params={"topics": TOPICS})

    flow.drain(write=write_about_item)

    assert flow.calls_of_step("join")[0].input["data"] == {"write": [{"about": topic} for topic in TOPICS]}
    assert flow.outcome == ("completed", 0)


def test_a_fan_out_can_follow_a_fan_out(start: Start) -> None:
    flow = start(
        step("plan"), WRITE, step("read", "write", for_each="steps.write.data"), step("join", "read", "write")
    )

    flow.drain(
        plan=PLAN, write=write_about_item, read=lambda request: request.params["item"]["about"].upper()
    )

    assert flow.calls_of_step("join")[0].input["data"] == {
        "read": ["BEES", "HIVES", "HONEY"],
        "write": [{"about": topic} for topic in TOPICS],
    }
    # A branch gets its item only, not the whole list.
    assert all(call.input is None for call in flow.calls_of_step("read"))


def test_the_list_can_be_read_from_mongodb(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = start(step("plan"), WRITE, step("join", "write", when="len(steps.write.data) == 3"))
    with monkeypatch.context() as moved:
        moved.setattr(outputs, "read_spooled", lambda tenant_id, ids: {})
        flow.drain(plan=PLAN, write=write_about_item)
        outputs.copy_waiting()
        assert flow.row("write").reason == "evaluating"
        waiting_steps.decide_waiting()
        flow.drain()
        outputs.copy_waiting()
        waiting_steps.decide_waiting()
        flow.drain()

    assert flow.outcome == ("completed", 0)
    assert flow.calls_of_step("join")[0].input["data"] == {"write": [{"about": topic} for topic in TOPICS]}


def test_a_silent_mongodb_is_awaited_once_a_turn_and_not_for_each_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call waits for seconds, and workers have few threads for background tasks, among them those that send alerts."""
    calls: list[UUID] = []

    def wait_in_vain(tenant_id: UUID, run_id: UUID) -> NoReturn:
        calls.append(run_id)
        raise OutputUnavailable("The store of outputs does not answer.")

    with monkeypatch.context() as moved:
        moved.setattr(outputs, "read_spooled", lambda tenant_id, ids: {})
        flows = [start(step("plan"), WRITE).drain(plan=PLAN) for _ in range(3)]
        outputs.copy_waiting()
        assert [flow.row("write").reason for flow in flows] == ["evaluating"] * 3
        with monkeypatch.context() as silent:
            silent.setattr(waiting_steps, "decide_run", wait_in_vain)
            assert (waiting_steps.decide_waiting(), len(calls)) == (0, 1)

        assert waiting_steps.decide_waiting() == 3


def test_a_run_whose_outputs_can_never_be_read_in_time_keeps_no_other_from_its_decision(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = waiting_steps.decide_run

    def decide_unless_stuck(tenant_id: UUID, run_id: UUID) -> None:
        if run_id == stuck:
            raise OutputUnavailable("The store of outputs does not answer.")
        decide(tenant_id, run_id)

    with monkeypatch.context() as moved:
        moved.setattr(outputs, "read_spooled", lambda tenant_id, ids: {})
        flows = [start(step("plan"), WRITE).drain(plan=PLAN) for _ in range(4)]
        outputs.copy_waiting()
        stuck = flows[0].id
        moved.setattr(waiting_steps, "decide_run", decide_unless_stuck)
        decided = sum(waiting_steps.decide_waiting() for _ in range(2))

    assert decided == 3
    assert [flow.row("write").reason for flow in flows] == ["evaluating", "", "", ""]


def test_a_run_cannot_have_parameters_that_are_reserved_for_items(start: Start) -> None:
    with pytest.raises(PipelineError, match="its own item"):
        start(step("write", for_each="params.topics"), params={"topics": TOPICS, "item": 1})


def test_every_branch_has_the_retry_and_timeout_of_its_step(start: Start) -> None:
    retry = {"max_attempts": 2, "strategy": "fixed", "base_seconds": 0}
    flow = start(step("plan"), {**WRITE, "retry": retry, "timeout_seconds": 7}).drain(
        plan=PLAN, write=write_about_item
    )

    assert {(branch.max_attempts, branch.timeout_seconds) for branch in flow.activities(step="write")} == {
        (2, 7)
    }
