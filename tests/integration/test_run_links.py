"""The link between a worker and an agent that runs inside it: the same tools as over HTTP, robust against whatever the agent sends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from activities import cancellation, outputs, run_logs
from activities.execution import agent_tools
from activities.models import Activity, ActivityRun
from activities.schemas import arguments_of
from agents import adapters
from agents.contracts import (
    AgentRequest,
    AgentResult,
    Completed,
    Output,
    RunLink,
    ToolAnswer,
    ToolCall,
    Usage,
)
from agents.tools import DEFINITIONS
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import child
from tests.engine import Engine
from tests.integration.tools.calling import CALLS, LEAVES

pytestmark = pytest.mark.usefixtures("one_at_a_time")

Work = Callable[[AgentRequest, RunLink], AgentResult]

#: Arguments that the tool refuses.
BAD: dict[str, list[Any]] = {
    "report_blocker": [{}, {"type": "api_outage"}, {"type": 5, "message": "x"}, {"type": "a", "message": "b", "more": 1}],
    "create_subtask": [{"name": "a", "description": "b"}, {"name": "", "description": "b", "blocking": True, "agent_role": "ba"}],
    "request_human_review": [{}, {"question": "x", "due_seconds": 86400}],
    "create_approval": [{"type": "a"}, {"type": "a", "title": "b", "options": ["x", "x"]}],
    "reassign_task": [{"human_role": "editor"}, {"human_role": "editor", "reason": ""}],
}  # fmt: skip


@pytest.fixture
def run_with_link(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Work], Activity]:
    """`run_with_link(work)`: runs one activity by this function inside a worker; returns the activity afterwards."""
    engine.serve(tenant)

    def run(work: Work) -> Activity:
        class Inside:
            def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
                return work(request, link)

        monkeypatch.setattr(adapters, "get", lambda name: Inside())
        (activity_id,) = engine.submit(tenant)
        engine.deliver()
        with tenant_scope(tenant.pk):
            return Activity.objects.for_tenant(tenant.pk).get(pk=activity_id)

    return run


def run_of(activity: Activity) -> ActivityRun:
    with tenant_scope(activity.tenant_id):
        return ActivityRun.objects.for_tenant(activity.tenant_id).get(activity_id=activity.pk)


def done(text: str = "done") -> Completed:
    return Completed(Output(content=text))


def test_models_are_offered_exactly_the_tools_that_exist() -> None:
    assert {definition.name for definition in DEFINITIONS} == set(agent_tools.NAMES)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_the_schema_of_a_tool_for_models_agrees_with_the_arguments_that_it_accepts(
    definition: Any, tenant: Tenant
) -> None:
    validator = jsonschema.Draft202012Validator(definition.input_schema)

    assert validator.is_valid(CALLS[definition.name])
    arguments_of(definition.name, CALLS[definition.name], tenant.pk)
    for bad in BAD[definition.name]:
        assert not validator.is_valid(bad), bad
        with pytest.raises(Exception, match=r"."):
            arguments_of(definition.name, bad, tenant.pk)


@pytest.mark.parametrize("tool", CALLS)
def test_a_tool_that_ends_the_run_leaves_the_activity_in_the_same_status_as_over_http(
    run_with_link: Callable[[Work], Activity], tenant: Tenant, tool: str
) -> None:
    answers: list[ToolAnswer] = []

    def work(request: AgentRequest, link: RunLink) -> AgentResult:
        answers.append(link.call_tool(ToolCall(tool, CALLS[tool], "call-1")))
        return done("this is no output")

    activity = run_with_link(work)

    assert (answers[0].stop, answers[0].refused) == (True, False)
    assert (activity.status, activity.output_ref) == (LEAVES[tool], None)
    assert str(child(tenant, activity.pk).pk) == answers[0].body["id"]


def test_a_repeated_tool_call_has_one_effect(
    run_with_link: Callable[[Work], Activity], tenant: Tenant
) -> None:
    answers: list[ToolAnswer] = []

    def work(request: AgentRequest, link: RunLink) -> AgentResult:
        call = ToolCall("create_subtask", {"name": "Beside", "agent_role": "ba", "blocking": False}, "call-1")
        answers.extend(link.call_tool(call) for _ in range(3))
        return done()

    activity = run_with_link(work)

    assert activity.status == "done"
    assert {answer.body["id"] for answer in answers} == {str(child(tenant, activity.pk).pk)}


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("format_disk", {}, "tool_not_available"),
        ("report_blocker", {"type": ["x"], "message": None}, "invalid_arguments"),
        (
            "report_blocker",
            {"type": "a", "message": "b", "channel_id": "0198c0de-0000-7000-8000-000000000000"},
            "tool_refused",
        ),
        ("create_subtask", {"name": "a", "agent_role": "nobody", "blocking": True}, "invalid_arguments"),
    ],
)
def test_a_refused_tool_call_is_answered_with_the_reason_and_the_run_continues(
    run_with_link: Callable[[Work], Activity], name: str, arguments: dict[str, Any], code: str
) -> None:
    answers: list[ToolAnswer] = []

    def work(request: AgentRequest, link: RunLink) -> AgentResult:
        answers.append(link.call_tool(ToolCall(name, arguments, "call-1")))
        return done()

    activity = run_with_link(work)

    assert activity.status == "done"
    assert (answers[0].refused, answers[0].stop, answers[0].body["error"]) == (True, False, code)
    assert answers[0].body["message"]


def test_a_cancelled_run_learns_the_reason_and_its_tools_do_nothing(
    run_with_link: Callable[[Work], Activity], tenant: Tenant
) -> None:
    answers: list[Any] = []

    def work(request: AgentRequest, link: RunLink) -> AgentResult:
        answers.append(link.stop_reason())
        cancellation.cancel(tenant.pk, request.activity_id, actor="test", reason="Not needed.")
        answers.append(link.stop_reason())
        answers.append(link.count_usage(Usage(input_tokens=1)))
        answers.append(link.call_tool(ToolCall("report_blocker", CALLS["report_blocker"], "call-1")))
        return done()

    activity = run_with_link(work)

    assert activity.status == "cancelled"
    assert answers[:3] == [
        None,
        "The work was cancelled or reassigned.",
        "The work was cancelled or reassigned.",
    ]
    assert answers[3].stop


def test_session_and_usage_are_recorded_before_the_run_ends(
    run_with_link: Callable[[Work], Activity], tenant: Tenant
) -> None:
    recorded: list[Any] = []

    def work(request: AgentRequest, link: RunLink) -> AgentResult:
        link.saw_session("s-1")
        assert link.count_usage(Usage(10, 20, Decimal("0.25"), "small")) is None
        with tenant_scope(tenant.pk):
            run = ActivityRun.objects.for_tenant(tenant.pk).get(pk=request.run_id)
        recorded.append((run.session_id, run.usage))
        return done()

    run_with_link(work)

    assert recorded == [
        ("s-1", {"input_tokens": 10, "output_tokens": 20, "cost_usd": "0.25", "model": "small"})
    ]


def test_log_lines_of_an_agent_in_a_worker_are_cleaned_and_limited(
    run_with_link: Callable[[Work], Activity], tenant: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_RUN_LOG_LINE_BYTES = 200

    def work(request: AgentRequest, link: RunLink) -> AgentResult:
        link.log("text", "I begin.\r\n\x1b[1mThen\x1b[0m I\x00 go on.")
        link.log("shout", "x" * 500)
        return done()

    run = run_of(run_with_link(work))
    assert run_logs.here().flush()

    lines = run_logs.read(tenant.pk, run.pk).lines
    assert [(line.number, line.kind, line.text) for line in lines[:2]] == [
        (1, "text", "I begin."),
        (2, "text", "Then I go on."),
    ]
    assert (lines[2].kind, len(lines[2].text) < 200) == ("note", True)
    assert lines[2].text.endswith("more characters)")


def test_during_an_outage_of_mongodb_log_lines_are_buffered_up_to_a_limit(
    run_with_link: Callable[[Work], Activity], tenant: Tenant, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "TIMEOUT_MS", 50)
    documents, writers = run_logs._documents, list[threading.Thread]()
    monkeypatch.setattr(
        run_logs, "_documents", lambda: writers.append(threading.current_thread()) or documents()
    )
    address, settings.MONGODB_URI = settings.MONGODB_URI, "mongodb://127.0.0.1:1/none?appname=link-away"
    settings.ORCHESTRATOR_RUN_LOG_BUFFER_BYTES = 360
    settings.ORCHESTRATOR_RUN_LOG_CALL_LINES = 2

    def work(request: AgentRequest, link: RunLink) -> AgentResult:
        link.log("text", "one\ntwo\nthree\nfour\nfive")
        return done()

    activity = run_with_link(work)
    assert activity.status == "done"
    assert threading.current_thread() not in writers  # so the run has not waited for MongoDB
    with monkeypatch.context() as patch:
        patch.setattr(run_logs, "WRITE_SECONDS", 0.2)
        assert not run_logs.here().flush()

    settings.MONGODB_URI = address
    assert run_logs.here().flush()
    assert [line.text for line in run_logs.read(tenant.pk, run_of(activity).pk).lines] == [
        "one", "two", "three", "2 lines were not kept: the store of logs did not answer.",
    ]  # fmt: skip
