"""Agents work with the tools of the MCP server. Their token authorises their own run only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from mcp.shared.exceptions import MCPError

from activities import cancellation
from activities.api.run_callbacks import ErrorSerializer, LogLineSerializer
from activities.schemas import KINDS
from orchestrator.mcp.api import access_of_person, access_of_run
from tenants.models import Tenant
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.mcp_server.assistants import Assistant, access_of_run_request, disagreements
from tests.integration.tools.calling import CALLS, LEAVES, every_tool

AcceptWork = Callable[..., tuple[Any, Assistant]]


def test_an_agent_has_its_own_tools_and_none_of_people(accept_work: AcceptWork) -> None:
    _, agent = accept_work()

    tools = agent.tools()

    assert set(CALLS) | {"get_job", "report_progress", "log", "complete", "fail", "read_skill"} == set(tools)
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools.values())


@every_tool
def test_the_schema_of_each_of_the_five_tools_agrees_with_the_api(accept_work: AcceptWork, tool: str) -> None:
    _, agent = accept_work()

    assert list(disagreements(agent.tools()[tool].input_schema, KINDS[tool]())) == []


def test_the_schemas_of_reports_agree_with_the_api(accept_work: AcceptWork, settings: Any) -> None:
    _, agent = accept_work()
    tools = agent.tools()
    lines = tools["log"].input_schema["properties"]["lines"]

    assert list(disagreements(tools["fail"].input_schema, ErrorSerializer())) == []
    assert list(disagreements(lines["items"], LogLineSerializer())) == []
    assert lines["maxItems"] == settings.ORCHESTRATOR_RUN_LOG_CALL_LINES
    assert lines["items"]["properties"]["text"]["maxLength"] == settings.ORCHESTRATOR_RUN_LOG_LINE_BYTES


@every_tool
def test_each_of_the_five_tools_has_its_effect(
    accept_work: AcceptWork, engine: Engine, acme: Tenant, tool: str
) -> None:
    activity_id, agent = accept_work()
    arguments = CALLS[tool]

    answer = agent.use(tool, **arguments)
    again = agent.use(tool, **arguments)

    assert engine.status(acme, activity_id) == LEAVES[tool]
    assert answer["stop"] is True
    assert (again["id"], again["duplicate"]) == (answer["id"], True)


def test_the_text_of_a_tool_that_ends_the_run_says_so(accept_work: AcceptWork) -> None:
    _, agent = accept_work()

    result = agent.call("request_human_review", question="Is this the tone?")

    assert "This run is over: end now." in result.content[0].text  # type: ignore[union-attr]


def test_the_job_contains_no_token(accept_work: AcceptWork, engine: Engine) -> None:
    activity_id, agent = accept_work(params={"limit": 3}, input={"content": "Notes about bees", "data": None})

    job = agent.use("get_job")

    assert (job["job_id"], job["params"], job["input"]["content"]) == (
        str(activity_id),
        {"limit": 3},
        "Notes about bees",
    )
    assert not {"callback", "token"} & set(job)
    assert engine.agent.calls[-1].callback.token.partition(":")[0] not in json.dumps(job)


def test_an_agent_reports_progress_and_completes(
    accept_work: AcceptWork, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work()

    beat = agent.use("report_progress", message="Half of it", percent=50, usage={"input_tokens": 7})
    done = agent.use("complete", content="# Bees", data={"words": 2})

    run = engine.runs(acme, activity_id)[-1]
    assert (beat["stop"], run.progress) == (False, {"message": "Half of it", "percent": 50})
    assert done["accepted"] is True
    assert engine.status(acme, activity_id) == "done"


def test_lines_that_an_agent_logs_are_in_the_log_of_its_run(
    accept_work: AcceptWork, api: Callable[..., Any], engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work()

    response = agent.use(
        "log", lines=[{"kind": "text", "text": "Counting."}, {"kind": "note", "text": "Two."}]
    )

    run = engine.runs(acme, activity_id)[-1]
    log = api().get(f"/api/v1/activities/{activity_id}/runs/{run.pk}/log/").json()
    assert response["accepted"] == 2
    assert [(line["kind"], line["text"]) for line in log["results"]] == [
        ("text", "Counting."),
        ("note", "Two."),
    ]


def test_an_agent_reports_a_permanent_failure(accept_work: AcceptWork, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work()

    agent.use("fail", message="There are no bees.", code="no_bees")

    assert engine.runs(acme, activity_id)[-1].error["code"] == "no_bees"


def test_a_cancelled_run_is_told_to_stop(accept_work: AcceptWork, acme: Tenant) -> None:
    activity_id, agent = accept_work()
    cancellation.cancel(acme.pk, activity_id, actor="test")

    beat = agent.use("report_progress", message="On my way")
    refused = agent.use_refused("complete", content="# Bees")

    assert beat["stop"] is True
    assert (refused["status"], refused["code"], refused["stop"]) == (409, "run_superseded", True)
    assert "Stop working on it" in refused["text"]


def test_the_token_of_a_run_is_refused_for_another_run(
    accept_work: AcceptWork, engine: Engine, acme: Tenant, site: str
) -> None:
    mine_id, mine = accept_work()
    other_id, _ = accept_work()
    other = engine.agent.calls[-1]

    stolen = Assistant(access_of_run(site, str(other.run_id), mine.access.token))
    refused = stolen.use_refused("complete", content="mine now")

    assert refused["status"] == 404
    assert engine.status(acme, other_id) == engine.status(acme, mine_id) == "in_progress"


def test_the_token_of_a_run_is_refused_for_tools_of_people(accept_work: AcceptWork, site: str) -> None:
    _, agent = accept_work()

    refused = Assistant(access_of_person(site, agent.access.token)).use_refused("inbox")

    assert refused["status"] == 401
    assert agent.access.token not in refused["text"]


def test_errors_of_arguments_have_their_path(accept_work: AcceptWork, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work()

    by_schema = agent.use_refused(
        "create_subtask", name="x", description="y", blocking="yes", due_at="2030-01-01"
    )
    by_api = agent.use_refused("create_subtask", name="x", description="y", blocking=True)

    assert {fault["path"] for fault in by_schema["errors"]} == {"blocking", ""}
    assert "due_at" in by_schema["text"]
    assert (by_api["status"], by_api["code"]) == (400, "validation_failed")
    assert all(fault["path"] in by_api["text"] for fault in by_api["errors"])
    assert engine.status(acme, activity_id) == "in_progress"


@in_one_test("key", ["../complete", "..", "a/b", "%2e%2e", "", "a\x00", "a\n", "?x=1"])
def test_the_key_of_a_skill_cannot_change_the_address(accept_work: AcceptWork, key: str) -> None:
    _, agent = accept_work()

    refused = agent.use_refused("read_skill", key=key)

    assert refused["code"] == "invalid_arguments"


@in_one_test(
    "hostile",
    [{"data": "\ud800"}, {"data": {"a": "\x00"}}, {"data": 2**70}, {"content": "\ud800"}],
    ids=["surrogate", "nul", "huge number", "surrogate text"],
)
def test_results_that_cannot_be_stored_are_refused_and_the_run_continues(
    accept_work: AcceptWork, engine: Engine, acme: Tenant, hostile: dict[str, Any]
) -> None:
    activity_id, agent = accept_work()

    refused = agent.use_refused("complete", **hostile)

    assert refused["status"] == 400
    assert engine.status(acme, activity_id) == "in_progress"


def test_an_unknown_tool_is_an_error_of_the_protocol(accept_work: AcceptWork) -> None:
    _, agent = accept_work()

    with pytest.raises(MCPError, match="There is no tool confirm_decision"):
        agent.call("confirm_decision", id=str(uuid4()), decision="approve", confirmation="x")


def test_an_unreachable_orchestrator_is_reported(accept_work: AcceptWork, engine: Engine) -> None:
    accept_work()
    unreachable = Assistant(access_of_run_request("http://127.0.0.1:9", engine.agent.calls[-1]))

    refused = unreachable.use_refused("complete", content="# Bees")

    assert refused["code"] == "unreachable"
    assert "is unknown" in refused["text"]
