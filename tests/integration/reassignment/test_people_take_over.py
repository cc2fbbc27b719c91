"""A person takes over, and decisions go to other people."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.integration.reassignment.heirs import TO_AGENT, TO_PERSON, heir_of
from tests.toolbox import (
    OUTPUT,
    Caller,
    at_work,
    caller_of,
    of,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


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

    assert "the people who are asked must answer it" in refused["detail"]
