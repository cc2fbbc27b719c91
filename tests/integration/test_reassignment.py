"""Work that goes to somebody else: the heir takes its place, in the pipeline and before whoever waits, and what was asked falls away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from activities.models import Activity, DeadLetter
from activities.states import LinkKind
from agents.contracts import Accepted
from pipelines import cancellation as run_cancellation
from pipelines import versions
from pipelines.models import PipelineRun, StepRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.toolbox import (
    OUTPUT,
    Caller,
    at_work,
    caller_of,
    calls_of,
    child,
    children,
    count_of,
    not_woken,
    of,
    over,
    woken,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")

TO_AGENT = {"agent_role": "dev", "reason": "Yours."}
TO_PERSON = {"assignee_type": "human", "human_role": "editor", "reason": "Tricky."}


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


def heir_of(acme: Tenant, activity_id: UUID) -> Activity:
    return child(acme, activity_id, LinkKind.REASSIGNED_FROM)


def fail(agent: Caller) -> None:
    agent.post("fail", {"error": {"message": "cannot", "retryable": False}})


# What an heir is


def test_an_agent_hands_its_work_on_with_everything_that_belongs_to_it(engine: Engine, acme: Tenant) -> None:
    fields = {
        "description": "All about bees", "priority": 5, "params": {"words": 900}, "metadata": {"client": "apiary"},
        "input": {"content": "notes", "data": {"a": 1}}, "group_key": "site", "max_attempts": 7, "timeout_seconds": 44,
        "retry": {"base_seconds": 3},
    }  # fmt: skip
    activity_id, agent = at_work(engine, acme, **fields)

    answer = agent.use("reassign_task", **TO_AGENT).json()

    first, heir = engine.get(acme, activity_id), heir_of(acme, activity_id)
    assert answer == {"id": str(heir.pk), "status": "reassigned", "stop": True, "duplicate": False}
    assert (first.status, first.reassign_reason) == ("reassigned", "Yours.")
    kept = (
        "name",
        "description",
        "priority",
        "params",
        "input",
        "group_key",
        "max_attempts",
        "timeout_seconds",
        "retry",
    )
    assert [getattr(heir, name) for name in kept] == [getattr(first, name) for name in kept]
    assert (heir.agent_role, heir.is_approval_gate, heir.status) == ("dev", False, "created")
    assert heir.metadata == {
        "client": "apiary", "reassigned_from": str(activity_id), "reassign_reason": "Yours.", "taken_over_from": "qa",
    }  # fmt: skip
    told = woken(engine, heir.pk)
    assert (told.wake_reason, told.agent_role) == ("new_task", "dev")
    assert told.wakes[0]["reassigned_from"] == str(activity_id)
    assert (told.input or {})["content"] == "notes"


def test_the_run_that_handed_on_is_over_and_its_slot_is_free(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    activity_id, agent = at_work(engine, acme)
    (behind,) = engine.submit(acme)

    agent.used("reassign_task", **TO_AGENT)
    engine.drain()

    assert engine.status(acme, behind) == "in_progress"
    (run,) = engine.runs(acme, activity_id)
    assert (run.status, run.ended_by_tool) == ("completed", "reassign_task")
    assert agent.post("heartbeat").json()["stop"] is True
    assert agent.post("complete", OUTPUT).json() == {"accepted": False, "duplicate": False, "stop": True}


def test_a_dedup_key_goes_with_the_work(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme, dedup_key="once")

    agent.used("reassign_task", **TO_AGENT)

    again = api().post("/api/v1/activities/", {"name": "again", "agent_role": "qa", "dedup_key": "once"})
    assert (again.status_code, again.json()["id"]) == (200, str(heir_of(acme, activity_id).pk))


def test_a_dedup_key_that_is_taken_by_now_stays_where_it_is(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme, dedup_key="once")
    fail(agent)
    (twin,) = engine.submit(acme, dedup_key="once")
    client = api("operator")

    refused = problem(client.post(of(activity_id, "retry")), 409, "transition_refused")
    heir = client.post(of(activity_id, "reassign"), TO_AGENT)

    assert str(twin) in refused["detail"]
    assert (heir.status_code, heir.json()["dedup_key"]) == (201, None)


# A person takes over


@pytest.mark.parametrize("verb", ["complete", "approve"])
def test_a_person_who_takes_over_does_it_or_approves_what_is_there(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    activity_id, agent = at_work(engine, acme)
    agent.used("reassign_task", **TO_PERSON)
    client = api("reviewer")
    (item,) = client.get("/api/v1/inbox/").json()["results"]
    assert (item["human_role"], item["is_approval_gate"]) == ("editor", True)
    assert {"complete", "approve", "reject"} <= set(item["allowed_actions"])

    answer = client.post(
        of(item["id"], verb), {"output": {"content": "By hand."}} if verb == "complete" else {}
    )

    assert answer.status_code == 200, answer.content
    assert (answer.json()["status"], answer.json()["output_ref"] is not None) == (
        ("done", True) if verb == "complete" else ("approved", False)
    )
    assert engine.status(acme, activity_id) == "reassigned"


def test_a_person_may_hand_it_back_to_an_agent(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme, requires_approval=True)
    agent.used("reassign_task", **TO_PERSON)
    heir = heir_of(acme, activity_id)

    back = (
        api("operator").post(of(heir.pk, "reassign"), {"agent_role": "seo", "reason": "Thought so."}).json()
    )
    engine.drain()
    caller_of(engine, UUID(back["id"])).post("complete", OUTPUT)

    assert engine.status(acme, UUID(back["id"])) == "awaiting_approval"


def test_the_rules_for_the_gate_behind_an_agents_work_are_not_those_of_the_person_who_takes_it_over(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    """Else a due time for the approval would approve what nobody has done."""
    rules = {"due_seconds": 60, "on_timeout": "approve"}
    activity_id, agent = at_work(engine, acme, requires_approval=True, decision_rules=rules)
    agent.used("reassign_task", **TO_PERSON)
    heir = heir_of(acme, activity_id)
    assert (heir.decision_rules, heir.due_at) == (None, None)

    back = api("operator").post(of(heir.pk, "reassign"), TO_AGENT).json()

    assert back["decision_rules"] == rules


def test_what_people_decide_goes_to_other_people_and_stays_a_decision(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    steps = [
        {"id": "a", "agent_role": "qa"},
        {"id": "ok", "human_role": "editor", "is_approval_gate": True, "depends_on": ["a"]},
    ]
    versions.save(acme.pk, {"key": "gated", "name": "Gated", "steps": steps}, actor="test")
    run = start_run(acme.pk, "gated", NewRun(), actor="test")
    engine.drain()
    Caller(engine.agent.calls[-1]).post("complete", OUTPUT)
    (gate,) = client.get("/api/v1/inbox/").json()["results"]

    refused = problem(client.post(of(gate["id"], "reassign"), TO_AGENT), 409, "transition_refused")
    heir = client.post(of(gate["id"], "reassign"), {"human_role": "boss", "reason": "Yours."}).json()

    assert "only people decide" in refused["detail"]
    assert (heir["human_role"], heir["is_approval_gate"], "complete" in heir["allowed_actions"]) == (
        "boss",
        True,
        False,
    )
    problem(client.post(of(heir["id"], "complete")), 409, "transition_refused")
    assert client.post(of(heir["id"], "approve")).status_code == 200
    with tenant_scope(acme.pk):
        assert PipelineRun.objects.get(pk=run.pk).status == "completed"


@pytest.mark.parametrize("tool", ["request_human_review", "create_approval"])
def test_a_question_is_answered_by_whoever_is_asked(
    api: Any, engine: Engine, acme: Tenant, tool: str
) -> None:
    _, agent = at_work(engine, acme)
    arguments = {"request_human_review": {"question": "?"}, "create_approval": {"type": "x", "title": "?"}}
    item = agent.used(tool, **arguments[tool])

    refused = problem(api().post(of(item, "reassign"), TO_PERSON), 409, "transition_refused")

    assert "whoever is asked answers it" in refused["detail"]


# From where an operator may hand it on


def created(engine: Engine, acme: Tenant) -> UUID:
    (activity_id,) = engine.submit(acme, "ba")
    return activity_id


def running(engine: Engine, acme: Tenant) -> UUID:
    return at_work(engine, acme)[0]


def asking(tool: str, **arguments: Any) -> Callable[[Engine, Tenant], UUID]:
    def waiting(engine: Engine, acme: Tenant) -> UUID:
        activity_id, agent = at_work(engine, acme)
        agent.used(tool, **arguments)
        return activity_id

    return waiting


def failed(engine: Engine, acme: Tenant) -> UUID:
    activity_id, agent = at_work(engine, acme)
    fail(agent)
    return activity_id


def given_to_people(engine: Engine, acme: Tenant) -> UUID:
    from activities import deadletters

    activity_id = failed(engine, acme)
    deadletters.handle_waiting()
    return activity_id


FROM: dict[str, Callable[[Engine, Tenant], UUID]] = {
    "created": created,
    "in_progress": running,
    "blocked": asking("report_blocker", type="x", message="y"),
    "awaiting_subtask": asking("create_subtask", name="part", agent_role="ba", blocking=True),
    "awaiting_review": asking("request_human_review", question="?"),
    "failed": failed,
    "needs_review": given_to_people,
}


@pytest.mark.parametrize("status", FROM)
@pytest.mark.parametrize("to", [TO_AGENT, TO_PERSON], ids=["agent", "person"])
def test_an_operator_hands_on_whatever_is_not_decided_or_done(
    api: Any, engine: Engine, acme: Tenant, status: str, to: dict[str, str]
) -> None:
    activity_id = FROM[status](engine, acme)
    assert engine.status(acme, activity_id) == status
    asked = [one.pk for one in children(acme, activity_id)]

    answer = api("operator", name="Ann").post(of(activity_id, "reassign"), to)

    assert answer.status_code == 201, answer.content
    heir = heir_of(acme, activity_id)
    assert (answer.json()["id"], answer["Location"]) == (str(heir.pk), f"/api/v1/activities/{heir.pk}/")
    assert engine.status(acme, activity_id) == "reassigned"
    for one in asked:
        assert (engine.status(acme, one), engine.get(acme, one).cancel_reason) == ("cancelled", "obsolete")
    assert not_woken(engine, activity_id)
    if to is TO_AGENT:
        assert len(calls_of(engine, heir.pk)) == 1
        caller_of(engine, heir.pk).post("complete", OUTPUT)
        assert engine.status(acme, heir.pk) == "done"


def test_an_agent_whose_work_was_taken_away_is_told_to_stop(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme)

    api("operator").post(of(activity_id, "reassign"), TO_AGENT)

    assert agent.post("heartbeat").json()["stop"] is True
    over(agent.post("complete", OUTPUT))
    over(agent.use("report_blocker", type="x", message="y"))


def test_handing_on_what_had_failed_closes_its_dead_letter(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id = given_to_people(engine, acme)

    api("operator").post(of(activity_id, "reassign"), TO_AGENT)

    with tenant_scope(acme.pk):
        assert DeadLetter.objects.get(activity_id=activity_id).state == "closed"


@pytest.mark.parametrize("status", ["awaiting_approval", "done", "cancelled", "reassigned"])
def test_what_is_decided_or_done_is_not_handed_on(
    api: Any, engine: Engine, acme: Tenant, status: str
) -> None:
    client = api("operator")
    activity_id, agent = at_work(engine, acme, requires_approval=status == "awaiting_approval")
    if status == "cancelled":
        client.post(of(activity_id, "cancel"))
    elif status == "reassigned":
        client.post(of(activity_id, "reassign"), TO_AGENT)
    else:
        agent.post("complete", OUTPUT)
    before = count_of(acme)

    problem(client.post(of(activity_id, "reassign"), TO_AGENT), 409, "transition_refused")

    assert (engine.status(acme, activity_id), count_of(acme)) == (status, before)


@pytest.mark.parametrize(
    ("body", "path"),
    [({"agent_role": "dev"}, "reason"), ({"reason": "x"}, "agent_role"), ({"agent_role": "none-such", "reason": "x"}, "agent_role"),
     ({"assignee_type": "agent", "human_role": "x", "reason": "x"}, "assignee_type")],
)  # fmt: skip
def test_what_is_wrong_with_handing_on_is_named_by_its_path(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any], path: str
) -> None:
    refused = problem(api().post(of(created(engine, acme), "reassign"), body), 400, "validation_failed")

    assert [fault["path"] for fault in refused["errors"]] == [path]


def test_only_operators_hand_on(api: Any, engine: Engine, acme: Tenant) -> None:
    problem(api("reviewer").post(of(created(engine, acme), "reassign"), TO_AGENT), 403, "forbidden")


# In a pipeline


def piped(engine: Engine, acme: Tenant) -> tuple[PipelineRun, Caller]:
    """A run of three steps, the first of which is at work."""
    steps = [
        {"id": "a", "agent_role": "qa"},
        {"id": "b", "agent_role": "qa"},
        {"id": "c", "agent_role": "qa"},
    ]
    versions.save(acme.pk, {"key": "three", "name": "Three", "steps": steps}, actor="test")
    run = start_run(acme.pk, "three", NewRun(), actor="test")
    engine.drain()
    return run, Caller(engine.agent.calls[-1])


def run_now(acme: Tenant, run: PipelineRun) -> tuple[str, dict[str, str]]:
    with tenant_scope(acme.pk):
        steps = dict(StepRun.objects.filter(run_id=run.pk).values_list("step", "status"))
        return PipelineRun.objects.get(pk=run.pk).status, steps


@pytest.mark.parametrize("by", ["agent", "operator"])
def test_the_heir_of_a_step_moves_its_run_on(api: Any, engine: Engine, acme: Tenant, by: str) -> None:
    run, agent = piped(engine, acme)

    if by == "agent":
        heir = agent.used("reassign_task", **TO_AGENT)
    else:
        heir = UUID(api("operator").post(of(agent.activity_id, "reassign"), TO_AGENT).json()["id"])
    assert run_now(acme, run) == ("running", {"a": "active", "b": "pending", "c": "pending"})
    engine.drain()
    caller_of(engine, heir).post("complete", OUTPUT)
    engine.drain()

    following = engine.agent.calls[-1]
    assert (following.pipeline_step, (following.input or {})["content"]) == ("b", "# Bees")
    assert run_now(acme, run) == ("running", {"a": "done", "b": "active", "c": "pending"})


@pytest.mark.parametrize("to", [TO_AGENT, TO_PERSON], ids=["agent", "person"])
def test_the_heir_of_a_failed_step_opens_its_run_again(
    api: Any, engine: Engine, acme: Tenant, to: dict[str, str]
) -> None:
    run, agent = piped(engine, acme)
    fail(agent)
    assert run_now(acme, run) == ("failed", {"a": "failed", "b": "skipped", "c": "skipped"})
    client = api("operator")

    heir = UUID(client.post(of(agent.activity_id, "reassign"), to).json()["id"])
    assert run_now(acme, run) == ("running", {"a": "active", "b": "pending", "c": "pending"})
    if to is TO_AGENT:
        engine.drain()
        caller_of(engine, heir).post("complete", OUTPUT)
    else:
        client.post(of(heir, "complete"), {"output": {"content": "By hand."}})
    for _ in "bc":
        engine.drain()
        Caller(engine.agent.calls[-1]).post("complete", OUTPUT)

    assert run_now(acme, run) == ("completed", {"a": "done", "b": "done", "c": "done"})


def test_a_gate_that_sends_back_what_a_person_had_taken_over_asks_that_person_again(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    steps = [
        {"id": "a", "agent_role": "qa"},
        {"id": "ok", "human_role": "boss", "is_approval_gate": True, "depends_on": ["a"]},
    ]
    versions.save(acme.pk, {"key": "gated", "name": "Gated", "steps": steps}, actor="test")
    run = start_run(acme.pk, "gated", NewRun(), actor="test")
    engine.drain()
    heir = Caller(engine.agent.calls[-1]).used("reassign_task", **TO_PERSON)
    client.post(of(heir, "complete"), {"output": {"content": "By hand."}})
    gate = next(
        item for item in client.get("/api/v1/inbox/").json()["results"] if item["human_role"] == "boss"
    )

    assert client.post(of(gate["id"], "reject"), {"notes": "Shorter."}).status_code == 200

    (again,) = client.get("/api/v1/inbox/").json()["results"]
    assert (again["human_role"], again["round"], again["reviewer_notes"]) == ("editor", 2, "Shorter.")
    client.post(of(again["id"], "complete"), {"output": {"content": "Short."}})
    (gate,) = client.get("/api/v1/inbox/").json()["results"]
    client.post(of(gate["id"], "approve"))
    assert run_now(acme, run)[0] == "completed"


def test_the_heir_of_a_revision_is_told_what_was_rejected_and_why(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = at_work(engine, acme, requires_approval=True)
    agent.post("complete", OUTPUT)
    api("reviewer").post(of(activity_id, "reject"), {"notes": "Shorter."})
    engine.drain()
    revision = child(acme, activity_id, LinkKind.REVISION_OF).pk

    heir = caller_of(engine, revision).used("reassign_task", **TO_AGENT)

    told = woken(engine, heir)
    assert (told.wake_reason, told.wakes[0]["reviewer_notes"]) == ("rejection", "Shorter.")
    assert told.wakes[0]["rejection_ref"] == str(agent.run_id)
    assert engine.get(acme, heir).round == 2


def test_nothing_is_handed_on_in_a_run_that_was_cancelled(api: Any, engine: Engine, acme: Tenant) -> None:
    """Whoever cancelled it has not seen the heir, so that nobody would ever stop it."""
    run, agent = piped(engine, acme)
    with tenant_scope(acme.pk):  # as far as a cancellation has come that was interrupted
        PipelineRun.objects.filter(pk=run.pk).update(status="cancelled")

    problem(api("operator").post(of(agent.activity_id, "reassign"), TO_AGENT), 409, "transition_refused")

    assert children(acme, agent.activity_id) == []
    run_cancellation.cancel_run(acme.pk, run.pk, actor="test")
    assert engine.status(acme, agent.activity_id) == "cancelled"


# How often an agent may hand on


def test_work_is_handed_on_three_times_and_not_more(api: Any, engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    second = agent.used("reassign_task", agent_role="dev", reason="x")
    third = UUID(api().post(of(second, "reassign"), {"agent_role": "qa", "reason": "Back."}).json()["id"])
    engine.drain()
    fourth = caller_of(engine, third).used("reassign_task", agent_role="seo", reason="x")
    engine.drain()

    refused = problem(caller_of(engine, fourth).use("reassign_task", **TO_PERSON), 429, "quota_exceeded")

    assert refused["quota"] == "reassignments"
    assert (engine.status(acme, fourth), count_of(acme)) == ("in_progress", 4)


@pytest.mark.parametrize("back_to", ["qa", "dev"])
def test_an_agent_never_hands_back_to_a_role_that_has_had_the_work(
    engine: Engine, acme: Tenant, back_to: str
) -> None:
    _, agent = at_work(engine, acme)
    heir = agent.used("reassign_task", **TO_AGENT)
    engine.drain()

    refused = problem(
        caller_of(engine, heir).use("reassign_task", agent_role=back_to, reason="x"), 403, "tool_refused"
    )

    assert f"{back_to} has had this work before" in refused["detail"]
    assert (engine.status(acme, heir), count_of(acme)) == ("in_progress", 2)


def test_a_revision_in_between_does_not_make_the_agents_forget_who_had_the_work(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    _, agent = at_work(engine, acme, requires_approval=True)
    heir = agent.used("reassign_task", **TO_AGENT)
    engine.drain()
    caller_of(engine, heir).post("complete", OUTPUT)
    api("reviewer").post(of(heir, "reject"), {"notes": "Again."})
    engine.drain()
    revision = child(acme, heir, LinkKind.REVISION_OF).pk

    problem(
        caller_of(engine, revision).use("reassign_task", agent_role="qa", reason="x"), 403, "tool_refused"
    )


def test_an_operator_may_hand_back(api: Any, engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    heir = agent.used("reassign_task", **TO_AGENT)

    assert (
        api("operator").post(of(heir, "reassign"), {"agent_role": "qa", "reason": "Do it."}).status_code
        == 201
    )
