"""Work that is reassigned to people, and decisions that are reassigned to other people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities.models import Activity, Deadline
from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, action_url, agent_of
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.reassignment.successors import TO_AGENT, TO_PERSON, successor_of

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


@pytest.mark.parametrize("verb", ["complete", "approve"])
def test_a_person_completes_or_approves_reassigned_work(
    api: Any, engine: Engine, acme: Tenant, verb: str
) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("reassign_task", **TO_PERSON)
    client = api("reviewer")
    (item,) = client.get("/api/v1/inbox/").json()["results"]
    assert (item["human_role"], item["is_approval_gate"]) == ("editor", True)
    assert {"complete", "approve", "reject"} <= set(item["allowed_actions"])

    answer = client.post(
        action_url(item["id"], verb), {"output": {"content": "By hand."}} if verb == "complete" else {}
    )

    assert answer.status_code == 200, answer.content
    assert (answer.json()["status"], answer.json()["output_ref"] is not None) == (
        ("done", True) if verb == "complete" else ("approved", False)
    )
    assert engine.status(acme, activity_id) == "reassigned"


def test_reassigned_work_can_return_to_an_agent(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme, requires_approval=True)
    agent.create_with("reassign_task", **TO_PERSON)
    successor = successor_of(acme, activity_id)

    returned = (
        api("operator")
        .post(action_url(successor.pk, "reassign"), {"agent_role": "seo", "reason": "Thought so."})
        .json()
    )
    engine.drain()
    agent_of(engine, UUID(returned["id"])).post("complete", RESULT)

    assert engine.status(acme, UUID(returned["id"])) == "awaiting_approval"


def test_decision_rules_of_a_gate_do_not_apply_to_the_person_with_the_work(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    """Otherwise a due time for the approval would approve work that nobody has done."""
    rules = {"due_seconds": 60, "on_timeout": "approve"}
    activity_id, agent = accept_work(engine, acme, requires_approval=True, decision_rules=rules)
    agent.create_with("reassign_task", **TO_PERSON)
    successor = successor_of(acme, activity_id)
    assert (successor.decision_rules, successor.due_at) == (None, None)

    returned = api("operator").post(action_url(successor.pk, "reassign"), TO_AGENT).json()

    assert returned["decision_rules"] == rules


def test_a_gate_can_be_reassigned_to_people_only_and_stays_a_gate(
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
    AgentClient(engine.agent.calls[-1]).post("complete", RESULT)
    (gate,) = client.get("/api/v1/inbox/").json()["results"]

    refused = problem(client.post(action_url(gate["id"], "reassign"), TO_AGENT), 409, "transition_refused")
    successor = client.post(
        action_url(gate["id"], "reassign"), {"human_role": "boss", "reason": "Yours."}
    ).json()

    assert "only people decide" in refused["detail"]
    assert (
        successor["human_role"],
        successor["is_approval_gate"],
        "complete" in successor["allowed_actions"],
    ) == (
        "boss",
        True,
        False,
    )
    problem(client.post(action_url(successor["id"], "complete")), 409, "transition_refused")
    assert client.post(action_url(successor["id"], "approve")).status_code == 200
    with tenant_scope(acme.pk):
        assert PipelineRun.objects.get(pk=run.pk).status == "completed"


@in_one_test("due_at", ["2040-01-31T09:00:00Z", None])
def test_a_changed_due_time_also_applies_to_the_successor_of_a_gate(
    api: Any, engine: Engine, acme: Tenant, due_at: str | None
) -> None:
    """Otherwise the default outcome would come at the time that a person has moved or removed."""
    client = api("operator")
    rules = {"due_seconds": 60, "on_timeout": "approve"}
    gate = client.post(
        "/api/v1/activities/", {"name": "Fine?", "human_role": "editor", "is_approval_gate": True, **rules}
    ).json()
    assert client.patch(f"/api/v1/activities/{gate['id']}/", {"due_at": due_at}).status_code == 200

    successor = client.post(action_url(gate["id"], "reassign"), {"human_role": "boss", "reason": "Yours."})

    with tenant_scope(acme.pk):
        times = Deadline.objects.filter(activity_id=successor.json()["id"]).values_list("at", flat=True)
        assert [f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in times] == ([due_at] if due_at else [])
    assert (successor.json()["due_at"] or "")[:16] == (due_at or "")[:16]


def test_the_successor_of_an_overdue_gate_has_as_much_time_as_the_gate_had(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    rules = {"due_seconds": 3600, "on_timeout": "escalate"}
    client = api("operator")
    gate = client.post(
        "/api/v1/activities/", {"name": "Fine?", "human_role": "editor", "is_approval_gate": True, **rules}
    ).json()
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=gate["id"]).update(due_at=datetime(2020, 1, 1, tzinfo=UTC))

    answer = client.post(action_url(gate["id"], "reassign"), {"human_role": "boss", "reason": "Yours."})

    with tenant_scope(acme.pk):
        successor = Activity.objects.get(pk=answer.json()["id"])
        deadline = Deadline.objects.get(activity_id=successor.pk)
    assert deadline.at == successor.due_at
    assert abs(successor.due_at - successor.created_at - timedelta(hours=1)) < timedelta(minutes=1)


@in_one_test("tool", ["request_human_review", "create_approval"])
def test_a_question_of_an_agent_cannot_be_reassigned(
    api: Any, engine: Engine, acme: Tenant, tool: str
) -> None:
    _, agent = accept_work(engine, acme)
    arguments = {"request_human_review": {"question": "?"}, "create_approval": {"type": "x", "title": "?"}}
    item = agent.create_with(tool, **arguments[tool])

    refused = problem(api().post(action_url(item, "reassign"), TO_PERSON), 409, "transition_refused")

    assert "the people who are asked must answer it" in refused["detail"]
