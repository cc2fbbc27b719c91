"""Agents ask and people decide: no call of an agent sets how or when a question is decided, or touches what somebody else has asked."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from activities import suspension
from activities.models import Activity
from activities.schemas import ABOUT_PEOPLE, KINDS
from agents.tools import DEFINITIONS
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.integration.tools.calling import CALLS
from tests.snapshots import changed, snapshot
from tests.toolbox import Caller, at_work, caller_of, count_of, not_woken

pytestmark = pytest.mark.usefixtures("one_at_a_time")

#: What says by when, by whom and with what default a question is decided.
RULES: dict[str, Any] = {
    "due_seconds": 0.01, "on_timeout": "approve", "reminders": [5], "escalation": [{"after_seconds": 5, "human_role": "cfo"}], "quorum": 1,
    "voters": 3, "self_approval": True, "due_at": "2020-01-01T00:00:00Z", "expires_at": "2020-01-01T00:00:00Z", "rules": {},
}  # fmt: skip
QUESTION = {"type": "budget", "title": "Go on?"}


def own_only(agent: Caller, *ids: UUID) -> dict[str, Any]:
    """What an approval over these answers."""
    answer = agent.use("create_approval", **QUESTION, activity_ids=[str(one) for one in ids])
    assert answer.status_code == 201, answer.content
    found: dict[str, Any] = answer.json()
    return found


def refused(answer: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["reason"] for one in answer["not_held"]}


def test_no_tool_takes_a_rule_by_which_people_decide(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    before = snapshot(acme)

    for tool, (member, value) in product(CALLS, RULES.items()):
        answer = agent.use(tool, **CALLS[tool], **{member: value})
        faults = problem(answer, 400, "validation_failed")["errors"]
        assert [fault["path"] for fault in faults] == [member], tool

    assert changed(before, snapshot(acme)) == set()


def test_models_are_told_of_no_member_that_the_tools_refuse_and_of_no_rule() -> None:
    for tool in DEFINITIONS:
        told = set(tool.input_schema["properties"])
        assert told <= set(KINDS[tool.name]().fields)
        assert told & (set(ABOUT_PEOPLE) | set(RULES)) <= {"options"}


def test_an_agent_cannot_answer_the_review_that_anothers_work_waits_in(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    victim, asking = at_work(engine, acme, "dev")
    review = asking.used("request_human_review", question="May this be published?", human_role="legal")
    _, hostile = at_work(engine, acme)
    before = snapshot(acme)

    answer = own_only(hostile, victim)

    assert (answer["id"], answer["held"], answer["stop"]) == (None, [], False)
    assert list(refused(answer)) == [str(victim)]
    assert changed(before, snapshot(acme)) == {"activities_toolcall"}
    assert api().get("/api/v1/approvals/").json()["results"] == []
    assert engine.status(acme, victim) == "awaiting_review"
    assert engine.status(acme, review) == "created"
    assert not_woken(engine, victim)


def test_an_agent_cannot_start_what_a_person_has_held(api: Any, engine: Engine, acme: Tenant) -> None:
    (victim,) = engine.submit(acme, "dev")
    body = {**QUESTION, "human_role": "cfo", "quorum": 3, "voters": 5, "activity_ids": [str(victim)]}
    approval = api("operator").post("/api/v1/approvals/", body).json()["id"]
    _, hostile = at_work(engine, acme)

    answer = own_only(hostile, victim)

    assert answer["held"] == []
    assert api().get(f"/api/v1/approvals/{approval}/").json()["status"] == "pending"
    assert not_woken(engine, victim)


def test_what_is_not_the_runs_own_and_what_does_not_exist_are_refused_in_the_same_words(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    (foreign,) = engine.submit(other_tenant, "ba")
    (others,) = engine.submit(acme, "ba")
    _, agent = at_work(engine, acme)

    answer = own_only(agent, foreign, others, uuid4())

    assert len(answer["not_held"]) == 3
    assert len(set(refused(answer).values())) == 1
    assert engine.status(acme, others) == "created"


def test_of_a_mixed_list_the_own_work_waits_and_the_rest_goes_on(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    (others,) = engine.submit(acme, "ba")
    activity_id, agent = at_work(engine, acme)
    part = agent.used("create_subtask", name="part", agent_role="ba", blocking=False)

    answer = own_only(agent, activity_id, part, others)

    assert (set(answer["held"]), set(refused(answer))) == ({str(activity_id), str(part)}, {str(others)})
    assert (answer["status"], answer["stop"]) == ("awaiting_review", True)
    assert [engine.status(acme, one) for one in (activity_id, part, others)] == [
        "awaiting_review", "awaiting_review", "created",
    ]  # fmt: skip
    linked = api().get(f"/api/v1/approvals/{answer['id']}/").json()["links"]
    assert {one["activity"] for one in linked} == {str(activity_id), str(part)}


def test_subtasks_are_own_work_at_any_depth_and_through_heirs_and_the_parent_is_not(
    engine: Engine, acme: Tenant
) -> None:
    root, agent = at_work(engine, acme)
    child = agent.used("create_subtask", name="child", agent_role="dev", blocking=False)
    engine.drain()
    heir = caller_of(engine, child).used("reassign_task", agent_role="seo", reason="Yours.")
    engine.drain()
    grandchild = caller_of(engine, heir).used(
        "create_subtask", name="grandchild", agent_role="ba", blocking=False
    )
    _, stranger = at_work(engine, acme, "dev")

    assert own_only(stranger, grandchild)["held"] == []
    assert own_only(caller_of(engine, heir), root)["held"] == []
    assert own_only(agent, grandchild)["held"] == [str(grandchild)]


def test_an_heir_asks_about_the_subtasks_of_the_work_that_it_has_taken_over(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    _, agent = at_work(engine, acme)
    part = agent.used("create_subtask", name="part", agent_role="ba", blocking=False)
    heir = agent.used("reassign_task", agent_role="dev", reason="Yours.")
    engine.drain()

    answer = own_only(caller_of(engine, heir), part)

    expected = [str(part)] if engine.status(acme, part) != "cancelled" else []
    assert answer["held"] == expected


def test_of_the_own_deliverable_and_pipeline_run_what_waits_is_held_and_what_runs_is_not(
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

    answer = own_only(caller_of(engine, of_run[str(mine.pk), "a"]), mine_b, mine_c, theirs_b)

    assert answer["held"] == [str(mine_b)]
    assert refused(answer)[str(mine_c)] == "It is in_progress."
    assert refused(answer)[str(theirs_b)] != refused(answer)[str(mine_c)]


def test_of_the_own_deliverable_what_waits_is_held(engine: Engine, acme: Tenant) -> None:
    page, other_page = uuid4(), uuid4()
    (mine,) = engine.submit(acme, "ba", deliverable_id=page)
    (theirs,) = engine.submit(acme, "ba", deliverable_id=other_page)
    _, agent = at_work(engine, acme, deliverable_id=page)

    answer = own_only(agent, mine, theirs)

    assert (answer["held"], list(refused(answer))) == ([str(mine)], [str(theirs)])
    assert [engine.status(acme, one) for one in (mine, theirs)] == ["awaiting_review", "created"]


def test_a_subtask_that_runs_goes_on_and_a_persons_part_is_not_held(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    running = agent.used("create_subtask", name="part", agent_role="dev", blocking=False)
    persons = agent.used("create_subtask", name="photo", human_role="editor", blocking=False)
    engine.drain()

    answer = own_only(agent, running, persons)

    assert answer["held"] == []
    assert refused(answer)[str(running)] == "It is in_progress and continues."
    assert "person" in refused(answer)[str(persons)]


def test_the_same_call_again_has_the_same_answer_and_asks_nobody_twice(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme)
    first = own_only(agent, activity_id, uuid4())
    count = count_of(acme)

    ids = [str(activity_id), first["not_held"][0]["id"]]
    again = agent.use("create_approval", **QUESTION, activity_ids=ids)

    assert (again.status_code, again.json()) == (200, {**first, "duplicate": True})
    assert count_of(acme) == count


def test_an_agent_is_told_that_its_blocked_part_waits_for_the_decision_too(
    engine: Engine, acme: Tenant
) -> None:
    _, agent = at_work(engine, acme)
    part = agent.used("create_subtask", name="part", agent_role="dev", blocking=False)
    engine.drain()
    resolution = caller_of(engine, part).used("report_blocker", type="api_outage", message="It is down.")

    answer = own_only(agent, part)

    assert (
        refused(answer)[str(part)] == "It is blocked. It continues after that and after people have decided."
    )
    suspension.resolve_blocker(acme.pk, resolution, actor="Ann", note="It is up.")
    assert not_woken(engine, part)
