"""Agents ask and people decide. Calls of agents cannot set decision rules, and cannot change questions or work of others."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from activities import suspension
from activities.human_tasks import decisions
from activities.models import Activity
from activities.schemas import ABOUT_PEOPLE, KINDS
from agents.tools import DEFINITIONS
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, agent_of, count_activities, is_called_again
from tests.answers import problem
from tests.engine import Engine
from tests.integration.tools.calling import CALLS
from tests.snapshots import changed, snapshot

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

#: Fields that would set when, by whom and with which default a question is decided.
RULES: dict[str, Any] = {
    "due_seconds": 0.01, "on_timeout": "approve", "reminders": [5], "escalation": [{"after_seconds": 5, "human_role": "cfo"}], "quorum": 1,
    "voters": 3, "self_approval": True, "due_at": "2020-01-01T00:00:00Z", "expires_at": "2020-01-01T00:00:00Z", "rules": {},
}  # fmt: skip
QUESTION = {"type": "budget", "title": "Go on?"}


def request_approval(agent: AgentClient, *ids: UUID) -> dict[str, Any]:
    """Request an approval about these activities and return the response."""
    answer = agent.use("create_approval", **QUESTION, activity_ids=[str(one) for one in ids])
    assert answer.status_code == 201, answer.content
    body: dict[str, Any] = answer.json()
    return body


def reasons(answer: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["reason"] for one in answer["not_held"]}


def test_no_tool_accepts_a_decision_rule(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    before = snapshot(acme)

    for tool, (member, value) in product(CALLS, RULES.items()):
        answer = agent.use(tool, **CALLS[tool], **{member: value})
        faults = problem(answer, 400, "validation_failed")["errors"]
        assert [fault["path"] for fault in faults] == [member], tool

    assert changed(before, snapshot(acme)) == set()


def test_schemas_of_tools_contain_no_refused_field_and_no_decision_rule() -> None:
    for tool in DEFINITIONS:
        fields = set(tool.input_schema["properties"])
        assert fields <= set(KINDS[tool.name]().fields)
        assert fields & (set(ABOUT_PEOPLE) | set(RULES)) <= {"options"}


def test_an_agent_cannot_answer_a_review_of_other_work(api: Any, engine: Engine, acme: Tenant) -> None:
    victim, reviewed_agent = accept_work(engine, acme, "dev")
    review = reviewed_agent.create_with(
        "request_human_review", question="May this be published?", human_role="legal"
    )
    _, hostile = accept_work(engine, acme)
    before = snapshot(acme)

    answer = request_approval(hostile, victim)

    assert (answer["id"], answer["held"], answer["stop"]) == (None, [], False)
    assert list(reasons(answer)) == [str(victim)]
    assert changed(before, snapshot(acme)) == {"activities_toolcall"}
    assert api().get("/api/v1/approvals/").json()["results"] == []
    assert engine.status(acme, victim) == "awaiting_review"
    assert engine.status(acme, review) == "created"
    assert not is_called_again(engine, victim)


def test_an_agent_cannot_start_work_that_a_person_holds(api: Any, engine: Engine, acme: Tenant) -> None:
    (victim,) = engine.submit(acme, "dev")
    body = {**QUESTION, "human_role": "cfo", "quorum": 3, "voters": 5, "activity_ids": [str(victim)]}
    approval = api("operator").post("/api/v1/approvals/", body).json()["id"]
    _, hostile = accept_work(engine, acme)

    answer = request_approval(hostile, victim)

    assert answer["held"] == []
    assert api().get(f"/api/v1/approvals/{approval}/").json()["status"] == "pending"
    assert not is_called_again(engine, victim)


def test_other_work_and_unknown_ids_are_refused_in_the_same_words(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    (foreign,) = engine.submit(other_tenant, "ba")
    (others,) = engine.submit(acme, "ba")
    _, agent = accept_work(engine, acme)

    answer = request_approval(agent, foreign, others, uuid4())

    assert len(answer["not_held"]) == 3
    assert len(set(reasons(answer).values())) == 1
    assert engine.status(acme, others) == "created"


def test_an_approval_over_mixed_work_holds_only_the_agents_own(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (others,) = engine.submit(acme, "ba")
    activity_id, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", name="part", agent_role="ba", blocking=False)

    answer = request_approval(agent, activity_id, subtask, others)

    assert (set(answer["held"]), set(reasons(answer))) == ({str(activity_id), str(subtask)}, {str(others)})
    assert (answer["status"], answer["stop"]) == ("awaiting_review", True)
    assert [engine.status(acme, one) for one in (activity_id, subtask, others)] == [
        "awaiting_review", "awaiting_review", "created",
    ]  # fmt: skip
    linked = api().get(f"/api/v1/approvals/{answer['id']}/").json()["links"]
    assert {one["activity"] for one in linked} == {str(activity_id), str(subtask)}


def test_own_work_includes_subtasks_at_any_depth_and_of_successors_but_not_the_parent(
    engine: Engine, acme: Tenant
) -> None:
    root, agent = accept_work(engine, acme)
    child = agent.create_with("create_subtask", name="child", agent_role="dev", blocking=False)
    engine.drain()
    successor = agent_of(engine, child).create_with("reassign_task", agent_role="seo", reason="Yours.")
    engine.drain()
    grandchild = agent_of(engine, successor).create_with(
        "create_subtask", name="grandchild", agent_role="ba", blocking=False
    )
    _, stranger = accept_work(engine, acme, "dev")

    assert request_approval(stranger, grandchild)["held"] == []
    assert request_approval(agent_of(engine, successor), root)["held"] == []
    assert request_approval(agent, grandchild)["held"] == [str(grandchild)]


def test_own_work_includes_subtasks_of_a_revision(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    child = agent.create_with("create_subtask", name="child", agent_role="dev", blocking=False)
    engine.drain()
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=child).update(requires_approval=True)
    agent_of(engine, child).post("complete", RESULT)
    decisions.reject(acme.pk, child, actor="Ann", notes="Again.")
    engine.drain()
    with tenant_scope(acme.pk):
        revision = Activity.objects.get(parent_id=child, link_kind="revision_of")
    part = agent_of(engine, revision.pk).create_with(
        "create_subtask", name="part", agent_role="ba", blocking=False
    )

    assert request_approval(agent, part)["held"] == [str(part)]


def test_a_successor_may_hold_the_subtasks_of_the_reassigned_work(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    _, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", name="part", agent_role="ba", blocking=False)
    successor = agent.create_with("reassign_task", agent_role="dev", reason="Yours.")
    engine.drain()

    answer = request_approval(agent_of(engine, successor), subtask)

    expected = [str(subtask)] if engine.status(acme, subtask) != "cancelled" else []
    assert answer["held"] == expected


def test_waiting_work_of_the_own_pipeline_run_is_held_and_running_work_is_not(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    steps = [{"id": name, "agent_role": role, "depends_on": []} for name, role in (("a", "qa"), ("b", "ba"), ("c", "dev"))]  # fmt: skip
    versions.save(acme.pk, {"key": "wide", "name": "Wide", "steps": steps}, actor="test")
    mine, theirs = (start_run(acme.pk, "wide", NewRun(), actor="test") for _ in "12")
    engine.drain()
    with tenant_scope(acme.pk):
        rows = Activity.objects.filter(step__isnull=False)
        of_run = {(str(run), step): pk for run, step, pk in rows.values_list("pipeline_run_id", "step", "pk")}
    mine_b, mine_c, theirs_b = (
        of_run[str(mine.pk), "b"], of_run[str(mine.pk), "c"], of_run[str(theirs.pk), "b"]
    )  # fmt: skip

    answer = request_approval(agent_of(engine, of_run[str(mine.pk), "a"]), mine_b, mine_c, theirs_b)

    assert answer["held"] == [str(mine_b)]
    assert reasons(answer)[str(mine_c)] == "It is in_progress."
    assert reasons(answer)[str(theirs_b)] != reasons(answer)[str(mine_c)]


def test_waiting_work_of_the_own_deliverable_is_held(engine: Engine, acme: Tenant) -> None:
    page, other_page = uuid4(), uuid4()
    (mine,) = engine.submit(acme, "ba", deliverable_id=page)
    (theirs,) = engine.submit(acme, "ba", deliverable_id=other_page)
    _, agent = accept_work(engine, acme, deliverable_id=page)

    answer = request_approval(agent, mine, theirs)

    assert (answer["held"], list(reasons(answer))) == ([str(mine)], [str(theirs)])
    assert [engine.status(acme, one) for one in (mine, theirs)] == ["awaiting_review", "created"]


def test_running_subtasks_and_tasks_of_people_are_not_held(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    running = agent.create_with("create_subtask", name="part", agent_role="dev", blocking=False)
    persons = agent.create_with("create_subtask", name="photo", human_role="editor", blocking=False)
    engine.drain()

    answer = request_approval(agent, running, persons)

    assert answer["held"] == []
    assert reasons(answer)[str(running)] == "It is in_progress and continues."
    assert "person" in reasons(answer)[str(persons)]


def test_a_repeated_request_for_approval_is_a_duplicate(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    first = request_approval(agent, activity_id, uuid4())
    count = count_activities(acme)

    ids = [str(activity_id), first["not_held"][0]["id"]]
    again = agent.use("create_approval", **QUESTION, activity_ids=ids)

    assert (again.status_code, again.json()) == (200, {**first, "duplicate": True})
    assert count_activities(acme) == count


def test_a_blocked_subtask_waits_for_the_approval_as_well(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", name="part", agent_role="dev", blocking=False)
    engine.drain()
    resolution = agent_of(engine, subtask).create_with(
        "report_blocker", type="api_outage", message="It is down."
    )

    answer = request_approval(agent, subtask)

    assert (
        reasons(answer)[str(subtask)]
        == "It is blocked. It continues after that and after people have decided."
    )
    suspension.resolve_blocker(acme.pk, resolution, actor="Ann", note="It is up.")
    assert not is_called_again(engine, subtask)
