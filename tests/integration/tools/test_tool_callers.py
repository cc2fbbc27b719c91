"""Who may call tools, with which arguments, and how often."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from rest_framework.test import APIClient

from activities import backlog
from activities.models import Activity, ToolCall
from agents import configuration
from agents.models import AgentConfig
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient, accept_work, action_url, agent_of, child, count_activities
from tests.answers import problem
from tests.engine import Engine
from tests.integration.tools.calling import CALLS, LEAVES, every_tool

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


@every_tool
def test_the_token_of_another_run_is_refused(engine: Engine, acme: Tenant, tool: str) -> None:
    _, mine = accept_work(engine, acme)
    _, other = accept_work(engine, acme)

    answer = AgentClient(mine.request, token=other.request.callback.token).use(tool, **CALLS[tool])

    problem(answer, 404, "not_found")
    assert count_activities(acme) == 2


@every_tool
def test_only_agents_call_tools(api: Any, engine: Engine, acme: Tenant, tool: str) -> None:
    _, agent = accept_work(engine, acme)
    address = f"/{agent.address}tools/{tool}/"

    problem(api("admin").post(address, CALLS[tool]), 401, "invalid_token")
    problem(APIClient().post(address, CALLS[tool]), 401, "not_authenticated")

    assert count_activities(acme) == 1


@pytest.mark.parametrize("verb", ["approve", "reject", "review", "resolve", "cancel", "reassign", "complete"])
def test_an_agent_cannot_decide_its_own_question(engine: Engine, acme: Tenant, verb: str) -> None:
    _, agent = accept_work(engine, acme)
    item = agent.create_with("request_human_review", question="Good?")

    answer = agent.client.post(action_url(item, verb), {"notes": "yes"})

    problem(answer, 401, "invalid_token")
    assert engine.status(acme, item) == "created"


def test_an_unknown_tool_is_not_found(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)

    body = problem(agent.use("approve_everything", a=1), 404, "tool_not_available")

    assert "report_blocker, create_subtask" in body["detail"], "it says which tools there are"


WRONG = {
    "report_blocker": [
        ({"message": ""}, "message"), ({"type": None}, "type"), ({"channel_id": "seven"}, "channel_id"), ({"kind": "x"}, "kind"),
    ],
    "create_subtask": [
        ({"agent_role": "no-such-role"}, "agent_role"), ({"agent_role": None}, "agent_role"), ({"human_role": "editor"}, "agent_role"),
        ({"assignee_type": "human"}, "assignee_type"), ({"blocking": None}, "blocking"), ({"blocking": "yes"}, "blocking"),
        ({"params": [1]}, "params"), ({"name": "x" * 201}, "name"),
    ],
    "request_human_review": [
        ({"question": " "}, "question"), ({"on_timeout": "approve"}, "on_timeout"), ({"human_role": 3}, "human_role"),
    ],
    "create_approval": [({"options": ["a", "a"]}, "options"), ({"activity_ids": ["x"]}, "activity_ids[0]")],
    "reassign_task": [
        ({"reason": ""}, "reason"), ({"human_role": None}, "agent_role"), ({"assignee_type": "robot"}, "assignee_type"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("tool", WRONG)
def test_an_invalid_call_is_refused_with_its_path_and_nothing_happens(
    engine: Engine, acme: Tenant, tool: str
) -> None:
    activity_id, agent = accept_work(engine, acme)

    for change, path in WRONG[tool]:
        refused = problem(agent.use(tool, **{**CALLS[tool], **change}), 400, "validation_failed")
        assert path in [fault["path"] for fault in refused["errors"]], change
    assert (engine.status(acme, activity_id), count_activities(acme)) == ("in_progress", 1)
    assert agent.use(tool, **CALLS[tool]).status_code == 201


def test_every_error_of_a_call_is_named_at_once(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)

    refused = problem(
        agent.use("create_subtask", name="", agent_role="no-such-role", blocking="yes"),
        400,
        "validation_failed",
    )

    assert {fault["path"] for fault in refused["errors"]} == {"name", "agent_role", "blocking"}


def test_a_null_argument_counts_as_absent(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)

    agent.create_with(
        "reassign_task", assignee_type="agent", agent_role="dev", human_role=None, reason="Yours."
    )

    assert child(acme, activity_id).agent_role == "dev"


def test_the_number_of_tool_calls_of_a_run_is_limited(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN = 3
    activity_id, agent = accept_work(engine, acme)
    subtask = {"agent_role": "ba", "blocking": False}
    first = [agent.use("create_subtask", name=f"part {n}", **subtask).json() for n in range(3)]

    refused = problem(agent.use("report_blocker", **CALLS["report_blocker"]), 429, "quota_exceeded")

    assert refused["quota"] == "tool_calls"
    assert engine.status(acme, activity_id) == "in_progress"
    assert agent.use("create_subtask", name="part 0", **subtask).json() == {**first[0], "duplicate": True}


def test_a_refused_call_does_not_count(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN = 1
    _, agent = accept_work(engine, acme)
    for _ in range(3):
        agent.use("report_blocker", type="x", message="y", channel_id=str(uuid4()))

    assert agent.use("report_blocker", **CALLS["report_blocker"]).status_code == 201


def test_each_run_has_its_own_limit_of_tool_calls(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN = 1
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("report_blocker", **CALLS["report_blocker"])
    api().post(action_url(activity_id, "resolve"), {"note": "Up."})
    engine.drain()

    assert agent_of(engine, activity_id).use("report_blocker", **CALLS["report_blocker"]).status_code == 201


@pytest.mark.parametrize("tool", ["create_subtask", "reassign_task"])
def test_a_full_backlog_refuses_new_work_but_answers_repeated_calls(
    engine: Engine, acme: Tenant, settings: Any, tool: str
) -> None:
    arguments = {**CALLS[tool], "human_role": None, "agent_role": "ba"}
    activity_id, agent = accept_work(engine, acme)
    other_id, other = accept_work(engine, acme)
    first = agent.use(tool, **arguments)
    backlog._counts.clear()
    settings.ORCHESTRATOR_MAX_BACKLOG = 1

    refused = other.use(tool, **arguments)

    problem(refused, 429, "backlog_full")
    assert refused["Retry-After"]
    assert engine.status(acme, other_id) == "in_progress"
    assert agent.use(tool, **arguments).json() == {**first.json(), "duplicate": True}
    assert engine.status(acme, activity_id) == LEAVES[tool]


@pytest.mark.parametrize("tool", ["create_subtask", "reassign_task"])
@pytest.mark.parametrize("key", ["", "k-1"])
def test_a_role_that_was_switched_off_is_refused_but_repeated_calls_get_the_first_response(
    engine: Engine, acme: Tenant, tool: str, key: str
) -> None:
    arguments = {**CALLS[tool], "human_role": None, "agent_role": "ba"}
    _, agent = accept_work(engine, acme)
    _, other = accept_work(engine, acme)
    first = agent.use(tool, key=key, **arguments)
    with tenant_scope(acme.pk):
        AgentConfig.objects.create(tenant_id=acme.pk, agent_id="ba", enabled=False)
    configuration.forget()

    problem(other.use(tool, key=key, **arguments), 400, "validation_failed")

    assert agent.use(tool, key=key, **arguments).json() == {**first.json(), "duplicate": True}


def test_another_tenant_cannot_see_or_change_the_result_of_a_tool_call(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    resolution = agent.create_with("report_blocker", **CALLS["report_blocker"])

    for page in ("", "timeline/", "why/"):
        problem(api(tenant=other_tenant).get(f"/api/v1/activities/{resolution}/{page}"), 404, "not_found")
    for verb, body in (
        ("resolve", {"note": "x"}),
        ("cancel", {}),
        ("reassign", {"human_role": "x", "reason": "y"}),
    ):
        for target in (resolution, activity_id):
            problem(api(tenant=other_tenant).post(action_url(target, verb), body), 404, "not_found")
    with tenant_scope(other_tenant.pk):
        assert (ToolCall.objects.count(), Activity.objects.count()) == (0, 0)
    assert (engine.status(acme, activity_id), engine.status(acme, UUID(str(resolution)))) == (
        "blocked",
        "created",
    )
