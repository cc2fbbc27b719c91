"""An approval whose activities have all ended leaves the inbox, because nobody would receive the decision."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from activities import cancellation
from activities.exceptions import TransitionRefused
from activities.human_tasks import approvals, deadlines, decisions, human_work
from activities.maintenance import recovery, system_jobs
from activities.models import Activity, Alert
from activities.submission import NewActivity, submit
from agents.contracts import Accepted, AgentRequest, Completed, Output
from agents.exceptions import PermanentAgentError
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient, accept_work, children, wakes_per_call
from tests.engine import Engine, simultaneously
from tests.flows import Flow, step
from tests.integration.approvals_over_many.voters import voter
from tests.open_questions import links_of, open_approval

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def sweep() -> object:
    """Do what the leader does every few seconds."""
    (job,) = [job for job in system_jobs.table() if job.name == "obsolete approvals"]
    return job.work(system_jobs.Term(epoch=0))


def finish(agent: AgentClient) -> None:
    assert agent.post("complete", {"output": {"content": "x"}}).status_code == 200


def is_in_the_inbox(tenant: Tenant, approval: UUID, api: Any) -> bool:
    items = api("reviewer").get("/api/v1/inbox/").json()["results"]
    return str(approval) in {item["id"] for item in items}


def test_an_approval_leaves_the_inbox_with_the_last_of_its_activities(
    engine: Engine, api: Any, accepting: Tenant
) -> None:
    first, first_agent = accept_work(engine, accepting)
    second, second_agent = accept_work(engine, accepting)
    approval = open_approval(accepting, [first, second])

    finish(first_agent)
    sweep()
    waits_for_the_second = is_in_the_inbox(accepting, approval, api)
    finish(second_agent)
    sweep()

    assert waits_for_the_second
    assert not is_in_the_inbox(accepting, approval, api)
    body = api("viewer").get(f"/api/v1/approvals/{approval}/").json()
    assert (body["status"], body["notes"]) == ("withdrawn", approvals.ALL_ENDED)
    ended = ("skipped", "It was done and did not wait for this.")
    assert links_of(accepting, approval) == {first: ended, second: ended}
    with pytest.raises(TransitionRefused, match=rf"{approvals.ALL_ENDED} \(engine, 20.+Z\); it waits for no"):
        decisions.approve(accepting.pk, approval, actor="Ann")
    assert len(wakes_per_call(engine, first)) == len(wakes_per_call(engine, second)) == 1


def test_it_does_not_matter_how_they_ended(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted() if request.params else Completed(Output(content="x"))
    cancelled, gated = (
        engine.submit(acme, params={"later": True})[0],
        engine.submit(acme, requires_approval=True)[0],
    )
    engine.drain()
    with tenant_scope(acme.pk):
        (task,) = submit([NewActivity(name="Read it", human_role="editor")], actor="test")
    approval = open_approval(acme, [cancelled, gated, task.id])

    cancellation.cancel(acme.pk, cancelled, actor="Ann")
    human_work.complete(acme.pk, task.id, actor="Ann")
    before = sweep(), engine.status(acme, approval)
    decisions.approve(acme.pk, gated, actor="Ann")

    assert before == (0, "created")
    assert (sweep(), engine.status(acme, approval)) == (1, "cancelled")
    assert links_of(acme, approval) == {
        cancelled: ("skipped", "It was cancelled or reassigned."),
        gated: ("skipped", "It was approved and did not wait for this."),
        task.id: ("skipped", "It belongs to a person, so it does not start automatically."),
    }


def test_work_that_runs_again_keeps_its_approval(engine: Engine, acme: Tenant) -> None:
    """A failed activity may be retried, and a revision takes the place of rejected work: both receive the decision."""

    def broken(request: AgentRequest) -> Completed:
        raise PermanentAgentError("no")

    engine.agent.behaviour = lambda request: Accepted()
    failing, rejected = accept_work(engine, acme), accept_work(engine, acme, requires_approval=True)
    about_failed, about_rejected = open_approval(acme, [failing[0]]), open_approval(acme, [rejected[0]])

    failing[1].post("fail", {"error": {"message": "no", "retryable": False}})
    finish(rejected[1])
    decisions.reject(acme.pk, rejected[0], actor="Ann", notes="Shorter.")

    assert sweep() == 0
    assert engine.status(acme, about_failed) == engine.status(acme, about_rejected) == "created"
    (revision,) = children(acme, rejected[0], "revision_of")
    assert revision.status == "awaiting_review"


@pytest.mark.parametrize("swept_before", [False, True])
def test_a_question_about_work_that_a_later_gate_may_send_back_is_kept_for_its_revision(
    engine: Engine, accepting: Tenant, swept_before: bool
) -> None:
    flow = Flow(
        engine, accepting, step("write"), step("look", "write", human_role="editor", is_approval_gate=True)
    )
    engine.drain()
    work = flow.activity(step="write").pk
    approval = open_approval(accepting, [work])
    finish(AgentClient(engine.agent.calls[-1]))
    if swept_before:
        assert sweep() == 0

    decisions.reject(accepting.pk, flow.activity(step="look").pk, actor="Ann", notes="Shorter.")

    assert (sweep(), engine.status(accepting, approval)) == (0, "created")
    (revision,) = children(accepting, work, "revision_of")
    assert revision.status == "awaiting_review"


def test_a_question_is_withdrawn_when_the_last_gate_about_its_work_is_decided(
    engine: Engine, accepting: Tenant
) -> None:
    flow = Flow(
        engine,
        accepting,
        step("write"),
        step("look", "write", human_role="editor", is_approval_gate=True),
        step("publish", "look"),
    )
    engine.drain()
    approval = open_approval(accepting, [flow.activity(step="write").pk])
    finish(AgentClient(engine.agent.calls[-1]))
    before = sweep()

    decisions.approve(accepting.pk, flow.activity(step="look").pk, actor="Ann")

    assert (before, sweep(), engine.status(accepting, approval)) == (0, 1, "cancelled")


def test_a_question_about_results_or_about_no_activity_stays(engine: Engine, acme: Tenant) -> None:
    ids = engine.submit(acme, count=2)
    engine.drain()
    about_results, about_nothing = open_approval(acme, ids), open_approval(acme)

    assert sweep() == 0
    assert engine.status(acme, about_results) == engine.status(acme, about_nothing) == "created"


def test_votes_options_and_due_times_do_not_keep_it(engine: Engine, accepting: Tenant) -> None:
    activity_id, agent = accept_work(engine, accepting)
    rules = {"options": ("a", "b"), "quorum": 2, "voters": 3, "due_seconds": 60, "on_timeout": "reject"}
    approval = open_approval(accepting, [activity_id], **rules)
    decisions.approve(accepting.pk, approval, actor=voter("Ann"), chosen_option="a")
    finish(agent)

    assert (sweep(), engine.status(accepting, approval)) == (1, "cancelled")

    deadlines.pass_due(clock.now() + timedelta(seconds=61))
    assert engine.status(accepting, approval) == "cancelled"
    with tenant_scope(accepting.pk):
        assert not Alert.objects.filter(activity_id=approval).exists()


def test_a_decision_at_the_same_moment_has_one_outcome(engine: Engine, accepting: Tenant) -> None:
    for _ in range(8):
        activity_id, agent = accept_work(engine, accepting)
        approval = open_approval(accepting, [activity_id])
        finish(agent)

        decided, withdrawn = simultaneously(
            partial(decisions.approve, accepting.pk, approval, actor="Ann"), sweep
        )

        status = engine.status(accepting, approval)
        if isinstance(decided, Activity):
            assert (status, withdrawn) == ("approved", 0)
        else:
            assert isinstance(decided, TransitionRefused)
            assert (status, withdrawn) == ("cancelled", 1)
        assert links_of(accepting, approval)[activity_id][0] == "skipped"


def test_an_approval_that_was_decided_since_the_leader_looked_is_left_alone(
    engine: Engine, accepting: Tenant
) -> None:
    activity_id, agent = accept_work(engine, accepting)
    approval = open_approval(accepting, [activity_id])
    finish(agent)
    decisions.approve(accepting.pk, approval, actor="Ann")

    assert not approvals.withdraw_obsolete(accepting.pk, approval)
    assert engine.status(accepting, approval) == "approved"


def test_an_approval_that_an_activity_waits_for_after_all_is_left_alone(
    engine: Engine, accepting: Tenant
) -> None:
    """Such as a revision that has taken the place of rejected work since the leader looked."""
    activity_id, _ = accept_work(engine, accepting)
    approval = open_approval(accepting, [activity_id])

    assert not approvals.withdraw_obsolete(accepting.pk, approval)
    assert engine.status(accepting, approval) == "created"


def test_one_approval_that_cannot_be_withdrawn_does_not_stop_the_others(
    engine: Engine, accepting: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [accept_work(engine, accepting) for _ in range(2)]
    stuck, other = [open_approval(accepting, [activity_id]) for activity_id, _ in pairs]
    for _, agent in pairs:
        finish(agent)
    withdraw = approvals.withdraw_obsolete

    def broken_for_one(tenant_id: UUID, approval_id: UUID) -> bool:
        if approval_id == stuck:
            raise RuntimeError("broken")
        return withdraw(tenant_id, approval_id)

    monkeypatch.setattr("activities.human_tasks.approvals.withdraw_obsolete", broken_for_one)

    assert recovery.withdraw_obsolete_approvals() == 1
    assert (engine.status(accepting, stuck), engine.status(accepting, other)) == ("created", "cancelled")
