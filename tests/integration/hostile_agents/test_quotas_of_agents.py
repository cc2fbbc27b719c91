"""Quotas of what agents may request."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from activities.models import Activity, ApprovalLink, ToolCall
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import accept_work, action_url, child, count_activities
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.tools.calling import CALLS

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


def test_only_one_blocker_of_a_type_is_open(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("report_blocker", **CALLS["report_blocker"])

    for number in range(3):
        agent.use("report_blocker", key=f"k{number}", **CALLS["report_blocker"])

    assert child(acme, activity_id).link_kind == "resolution"
    assert count_activities(acme) == 2


def test_an_approval_of_an_agent_links_at_most_fifty_activities(engine: Engine, acme: Tenant) -> None:
    page = uuid4()
    _, agent = accept_work(engine, acme, deliverable_id=page)
    ids = list(map(str, engine.submit(acme, "ba", count=51, deliverable_id=page)))

    refused = problem(
        agent.use("create_approval", **CALLS["create_approval"], activity_ids=ids), 429, "quota_exceeded"
    )

    assert refused["quota"] == "links"
    with tenant_scope(acme.pk):
        assert ApprovalLink.objects.count() == 0
    assert agent.use("create_approval", **CALLS["create_approval"], activity_ids=ids[:50]).status_code == 201


@in_one_test(
    ("tool", "member", "most"),
    [
        ("report_blocker", "message", 2_000), ("report_blocker", "type", 63), ("create_subtask", "name", 200),
        ("create_subtask", "description", 20_000), ("request_human_review", "question", 2_000),
        ("request_human_review", "content", 200_000),
        ("create_approval", "title", 200), ("create_approval", "type", 63), ("create_approval", "description", 20_000),
        ("reassign_task", "reason", 2_000),
    ],
)  # fmt: skip
def test_texts_of_agents_have_a_maximum_length(
    engine: Engine, acme: Tenant, tool: str, member: str, most: int
) -> None:
    _, agent = accept_work(engine, acme)

    refused = problem(agent.use(tool, **{**CALLS[tool], member: "x" * (most + 1)}), 400, "validation_failed")

    assert [fault["path"] for fault in refused["errors"]] == [member]
    assert agent.use(tool, **{**CALLS[tool], member: "x" * most}).status_code == 201


def test_only_a_quota_that_time_renews_says_when_to_call_again(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_TOOL_BURST, settings.ORCHESTRATOR_TOOL_RATE = 2, 0.001
    settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN = 1
    _, agent = accept_work(engine, acme)
    task = {"name": "Look", "human_role": "editor", "blocking": False}
    agent.create_with("create_subtask", **task)

    of_the_run, of_the_rate = (agent.use("create_subtask", **task, key=f"{number}") for number in range(2))

    assert problem(of_the_run, 429, "quota_exceeded")["quota"] == "tool_calls"
    assert not of_the_run.has_header("Retry-After")
    assert problem(of_the_rate, 429, "quota_exceeded")["quota"] == "rate"
    assert 900 < int(of_the_rate["Retry-After"]) <= 1000


ASKING = [
    ("report_blocker", CALLS["report_blocker"]), ("request_human_review", CALLS["request_human_review"]),
    ("create_approval", CALLS["create_approval"]), ("reassign_task", CALLS["reassign_task"]),
    ("create_subtask", {"name": "Look", "human_role": "editor", "blocking": False}),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments"), ASKING, ids=[tool for tool, _ in ASKING])
def test_open_items_of_a_role_in_the_inbox_are_limited(
    api: Any,
    engine: Engine,
    acme: Tenant,
    other_tenant: Tenant,
    settings: Any,
    tool: str,
    arguments: dict[str, Any],
) -> None:
    settings.ORCHESTRATOR_OPEN_ITEMS_PER_AGENT = 2
    engine.serve(other_tenant)
    _, first = accept_work(engine, acme)
    tasks = [
        first.create_with("create_subtask", name=name, human_role="editor", blocking=False) for name in "ab"
    ]
    activity_id, agent = accept_work(engine, acme)
    _, other_role_agent = accept_work(engine, acme, "dev")
    _, other_tenant_agent = accept_work(engine, other_tenant)
    before = count_activities(acme)

    refused = problem(agent.use(tool, **arguments), 429, "quota_exceeded")

    assert (refused["quota"], count_activities(acme), engine.status(acme, activity_id)) == (
        "inbox",
        before,
        "in_progress",
    )
    assert other_role_agent.use(tool, **arguments).status_code == 201
    assert other_tenant_agent.use(tool, **arguments).status_code == 201
    assert agent.use("create_subtask", name="x", agent_role="dev", blocking=False).status_code == 201
    assert api().post(action_url(tasks[0], "complete"), {}).status_code == 200
    assert agent.use(tool, key="again", **arguments).status_code == 201


def test_an_open_question_is_not_asked_twice(engine: Engine, acme: Tenant) -> None:
    page = uuid4()
    _, agent = accept_work(engine, acme, deliverable_id=page)
    ids = list(map(str, engine.submit(acme, "ba", count=2, deliverable_id=page)))
    approval = {**CALLS["create_approval"], "activity_ids": ids}
    task = {"name": "Look", "description": "There.", "human_role": "editor", "blocking": False}

    ids_by_tool = {
        tool: {agent.use(tool, key=f"{number}", **arguments).json()["id"] for number in range(4)}
        for tool, arguments in (("create_approval", approval), ("create_subtask", task))
    }
    others = {
        agent.use("create_subtask", **{**task, "name": "Look again"}).json()["id"],
        agent.use("create_approval", **{**approval, "activity_ids": ids[:1]}).json()["id"],
        agent.use("create_approval", **{**approval, "title": "And this?"}).json()["id"],
    }

    assert [len(ids_of_tool) for ids_of_tool in ids_by_tool.values()] == [1, 1]
    assert len(others - ids_by_tool["create_approval"] - ids_by_tool["create_subtask"]) == 3
    with tenant_scope(acme.pk):
        assert Activity.objects.filter(assignee_type="human").count() == 5
        assert ToolCall.objects.count() == 11


def test_every_refusal_is_logged_once(
    engine: Engine, acme: Tenant, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.ORCHESTRATOR_OPEN_ITEMS_PER_AGENT = 0
    _, agent = accept_work(engine, acme)

    agent.use("create_approval", **CALLS["create_approval"], activity_ids=[str(uuid4())])
    agent.use("report_blocker", type="x", message="y", channel_id=str(uuid4()))
    agent.use("request_human_review", question="May I?")

    refusals = [record for record in caplog.records if getattr(record, "action", "") == "tool_refused"]
    assert [(record.tool, record.code) for record in refusals] == [  # type: ignore[attr-defined]
        ("create_approval", "quota_exceeded"), ("report_blocker", "tool_refused"), ("request_human_review", "quota_exceeded"),
    ]  # fmt: skip
    assert {record.run for record in refusals} == {str(agent.run_id)}  # type: ignore[attr-defined]
