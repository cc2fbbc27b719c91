"""How the Agent2Agent adapter handles an agent's task: messages, results, questions, and tasks that outlive a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("a2a", reason="pip install orchestrator[a2a]")

from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentInterface, Part, TaskState
from google.protobuf.struct_pb2 import Value
from pytest_httpserver import HTTPServer

from agents.adapters import a2a
from agents.adapters.dialogue import LONGEST_WORD, LiveText
from agents.contracts import AdapterSettings, AgentResult, Completed, Output, ToolAnswer, ToolCall
from agents.exceptions import (
    AgentError,
    ConfigurationError,
    OutboundRefused,
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from agents.runner import run_agent
from tests.a2a_agent import A2AAgent, Turn, answers_at_once, ends, hangs, says
from tests.recording_link import RecordingLink
from tests.subjects import TOKEN, a_request

#: Two activities for one deliverable, which share their agent's session.
ONE, OTHER = {"activity_id": UUID(int=1)}, {"activity_id": UUID(int=2)}


@pytest.fixture
def agent(a2a_agent: A2AAgent) -> A2AAgent:
    return a2a_agent


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a, "FIRST_POLL_SECONDS", 0.01)
    monkeypatch.setattr(a2a, "MAX_POLL_SECONDS", 0.02)


@pytest.fixture
def plain_agent(settings: Any) -> Iterator[A2AAgent]:
    """An agent that does not stream."""
    with A2AAgent(streaming=False) as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW += (running.place,)
        yield running


def run(
    agent: A2AAgent,
    link: RecordingLink | None = None,
    *,
    auth: Any = None,
    options: Any = None,
    **changes: Any,
) -> AgentResult:
    changes = {**ONE, **changes}
    settings_of_agent = AdapterSettings("a2a", agent.url, auth or {}, options=options or {})
    return run_agent(a_request(settings_of_agent, **changes), link=link or RecordingLink())


def completed(result: AgentResult) -> Completed:
    assert isinstance(result, Completed)
    return result


def methods(agent: A2AAgent) -> list[str]:
    return [method for method, _ in agent.calls if method != "card"]


def session_of(link: RecordingLink) -> dict[str, str]:
    session: dict[str, str] = json.loads(link.sessions[-1])
    return session


def test_people_read_what_an_agent_says_while_it_works(agent: A2AAgent) -> None:
    link, seen = RecordingLink(), threading.Event()

    async def turn(task: TaskUpdater, queue: EventQueue) -> None:
        await task.start_work(task.new_agent_message([Part(text="Reading the brief.")]))
        await task.add_artifact([Part(text="First line\nsec")], artifact_id="a", append=False)
        await task.add_artifact([Part(text="ond line")], artifact_id="a", append=True, last_chunk=True)
        seen.set()
        await task.complete(task.new_agent_message([Part(text="That is all.")]))

    agent.turns = [turn]

    result = completed(run(agent, link))

    assert [line for kind, line in link.lines if kind == "text" and line] == [
        "Reading the brief.", "First line", "sec", "ond line", "That is all.",
    ]  # fmt: skip
    assert result.output == Output("First line\nsecond line")


def test_an_agent_that_does_not_stream_is_polled_until_it_is_done(plain_agent: A2AAgent) -> None:
    result = completed(run(plain_agent))

    assert result.output.content == "Done."
    assert methods(plain_agent)[0] == "SendMessage"
    assert set(methods(plain_agent)[1:]) <= {"GetTask"}


def test_an_agent_of_protocol_version_0_3_can_be_called(settings: Any) -> None:
    with A2AAgent(version="0.3.0") as agent:
        settings.ORCHESTRATOR_EGRESS_ALLOW += (agent.place,)
        agent.turns = [says("Old, but good.", input_tokens=3)]

        result = completed(run(agent))

    assert methods(agent) == ["message/stream"]
    assert (result.output.content, result.usage and result.usage.input_tokens) == ("Old, but good.", 3)


def test_a_message_without_a_task_is_the_result(agent: A2AAgent) -> None:
    agent.turns = [answers_at_once(Part(text="Yes."))]

    assert completed(run(agent)).output == Output("Yes.")


def test_data_and_files_become_data_of_the_output(agent: A2AAgent) -> None:
    counted = Value()
    counted.struct_value.update({"words": 3, "share": 0.5})
    page = Part(url="https://cdn.example/page.png", media_type="image/png", filename="page.png")
    raw = Part(raw=b"\x00\x01", media_type="application/octet-stream")

    agent.turns = [
        answers_at_once(Part(data=counted)),
        answers_at_once(Part(text="See"), Part(data=counted), page, raw),
    ]

    assert completed(run(agent)).output == Output(None, {"words": 3, "share": 0.5}, "application/json")
    assert completed(run(agent)).output == Output(
        "See",
        {
            "data": {"words": 3, "share": 0.5},
            "files": [
                {"name": "page.png", "media_type": "image/png", "url": "https://cdn.example/page.png"},
                {"media_type": "application/octet-stream", "base64": "AAE="},
            ],
        },
    )


def test_a_question_of_the_agent_becomes_a_review_and_the_answer_continues_the_task(
    agent: A2AAgent,
) -> None:
    async def draft_and_ask(task: TaskUpdater, queue: EventQueue) -> None:
        await task.add_artifact([Part(text="A draft")])
        await task.requires_input(task.new_agent_message([Part(text="Formal or not?")]))

    agent.turns = [draft_and_ask, says("Formally done.")]
    link = RecordingLink(lambda call: ToolAnswer({"stop": True}, stop=True))

    first = completed(run(agent, link))
    second = completed(
        run(agent, session_id=first.session_id, idempotency_key="wake-2", prompt="Formal, please.")
    )

    (call,) = link.tool_calls
    assert (call.name, dict(call.arguments)) == (
        "request_human_review",
        {"question": "Formal or not?", "content": "A draft"},
    )
    assert (first.output, first.session_id) == (Output(), link.sessions[-1])
    assert second.output.content == "A draft\n\nFormally done."
    tasks = [message.task_id for message in agent.heard]
    assert tasks == [session_of(link)["task"]] * 2
    assert [message.parts[0].text for message in agent.heard][1] == "Formal, please."


def test_an_answer_to_the_agent_is_repeated_until_it_arrives_and_not_after_that(agent: A2AAgent) -> None:
    agent.turns = [ends(TaskState.TASK_STATE_INPUT_REQUIRED, "Which?"), says("That one.")]
    link = RecordingLink(lambda call: ToolAnswer({"stop": True}, stop=True))
    question = completed(run(agent, link))
    wake = {"idempotency_key": "wake-2", "prompt": "The first."}

    agent.refusing = (503, {})
    with pytest.raises(RetryableAgentError):
        # The agent refuses to look up the task.
        run(agent, link, session_id=question.session_id, **wake)
    agent.refusing, agent.refused_methods = None, {"SendStreamingMessage": 503}
    with pytest.raises(RetryableAgentError):
        run(agent, link, session_id=question.session_id, **wake)
    agent.refused_methods = {}
    agent.hang_up_after = {"SendStreamingMessage": 1, "GetTask": 0}
    with pytest.raises(RetryableAgentError):
        run(agent, link, session_id=link.sessions[-1], attempt=2, **wake)
    agent.hang_up_after = {}
    done = completed(run(agent, link, session_id=link.sessions[-1], attempt=3, **wake))

    assert done.output.content == "That one."
    assert len(link.tool_calls) == 1
    assert [message.parts[0].text for message in agent.heard][1:] == ["The first."]
    assert agent.cancelled == []


def test_a_task_that_requires_authorisation_reports_a_blocker(agent: A2AAgent) -> None:
    agent.turns = [ends(TaskState.TASK_STATE_AUTH_REQUIRED, "Sign in to the shop.")]
    link = RecordingLink(lambda call: ToolAnswer({"stop": True}, stop=True))

    assert completed(run(agent, link)).output == Output()

    (call,) = link.tool_calls
    assert (call.name, dict(call.arguments)) == (
        "report_blocker",
        {"type": "agent_auth_required", "message": "Sign in to the shop."},
    )


def test_a_question_without_anybody_to_answer_it_fails_with_the_reason(agent: A2AAgent) -> None:
    agent.turns = [ends(TaskState.TASK_STATE_INPUT_REQUIRED, "Which?")]
    refused = RecordingLink(lambda call: ToolAnswer({"message": "Nobody has this role."}, refused=True))

    with pytest.raises(PermanentAgentError, match=r"nobody could be asked: Nobody has this role\."):
        run(agent, refused)


@pytest.mark.parametrize(
    ("state", "kind", "code", "text"),
    [
        (
            TaskState.TASK_STATE_FAILED,
            RetryableAgentError,
            "agent_failed",
            "The agent's task failed: No paper.",
        ),
        (
            TaskState.TASK_STATE_REJECTED,
            PermanentAgentError,
            "agent_refused",
            "The agent rejected the task: No paper.",
        ),
        (
            TaskState.TASK_STATE_CANCELED,
            PermanentAgentError,
            "agent_cancelled",
            "The agent cancelled its task: No paper.",
        ),
    ],
)
def test_the_final_state_of_a_task_decides_whether_it_is_retried(
    agent: A2AAgent, state: TaskState, kind: type[AgentError], code: str, text: str
) -> None:
    agent.turns = [ends(state, "No paper.")]

    with pytest.raises(kind) as caught:
        run(agent)

    assert (caught.value.error_code, str(caught.value)) == (code, text)


def test_a_cancelled_run_cancels_the_task_at_the_agent(agent: A2AAgent) -> None:
    agent.turns = [hangs()]
    link = RecordingLink()
    link.saw_session = lambda session: setattr(link, "stop", lambda: "It was cancelled.")  # type: ignore[method-assign]

    with pytest.raises(AgentError) as caught:
        run(agent, link)

    assert caught.value.error_code == "run_cancelled"
    assert agent.cancelled == [agent.heard[0].task_id]


def test_a_task_that_exceeds_its_timeout_is_cancelled_at_the_agent(agent: A2AAgent) -> None:
    agent.turns = [hangs()]

    with pytest.raises(RetryableAgentError, match=r"no complete answer within 2 s") as caught:
        run(agent, timeout_seconds=2)

    assert caught.value.error_code == "agent_timeout"
    assert agent.cancelled == [agent.heard[0].task_id]


def test_a_broken_connection_loses_no_work(agent: A2AAgent) -> None:
    agent.hang_up_after = {"SendStreamingMessage": 0}
    agent.turns = [says("All of it.")]

    with pytest.raises(RetryableAgentError) as caught:
        run(agent)  # because the task has no id yet that could be looked up

    assert caught.value.error_code == "agent_unreachable"
    agent.hang_up_after = {"SendStreamingMessage": 1}

    assert completed(run(agent)).output.content == "All of it."
    assert len(agent.heard) == 2
    assert "GetTask" in methods(agent)


def test_the_next_attempt_continues_a_task_whose_agent_was_unreachable(agent: A2AAgent) -> None:
    agent.hang_up_after = {"SendStreamingMessage": 1, "GetTask": 0}
    agent.turns = [says("Late.")]
    link = RecordingLink()

    with pytest.raises(RetryableAgentError) as caught:
        run(agent, link)

    assert caught.value.error_code == "agent_unreachable"
    assert methods(agent).count("GetTask") == a2a.MAX_FAILED_POLLS
    agent.hang_up_after = {}

    again = completed(run(agent, session_id=link.sessions[-1], attempt=2))

    assert again.output.content == "Late."
    assert (len(agent.heard), agent.cancelled) == (1, [])


def test_each_run_after_a_failed_task_starts_another_with_a_new_message_id(agent: A2AAgent) -> None:
    """Also if the runs before used up no attempt, such as runs that a budget has stopped."""
    agent.turns = [ends(TaskState.TASK_STATE_FAILED)] * 2 + [says("Better.")]
    link = RecordingLink()
    with pytest.raises(RetryableAgentError):
        run(agent, link)
    with pytest.raises(RetryableAgentError):
        run(agent, link, session_id=link.sessions[-1], run_id=UUID(int=2))

    again = completed(run(agent, session_id=link.sessions[-1], run_id=UUID(int=3)))

    assert again.output.content == "Better."
    assert [message.message_id for message in agent.heard] == [
        "wake-1", f"wake-1:{UUID(int=2)}", f"wake-1:{UUID(int=3)}"
    ]  # fmt: skip
    assert len({message.task_id for message in agent.heard}) == 3
    assert len({message.context_id for message in agent.heard}) == 1


def test_a_later_wake_continues_in_the_same_context(agent: A2AAgent) -> None:
    agent.turns = [says("One."), says("Two.")]

    first = completed(run(agent))
    second = completed(
        run(agent, session_id=first.session_id, idempotency_key="wake-2", prompt="Again, shorter.")
    )

    assert second.output.content == "Two."
    assert len({message.context_id for message in agent.heard}) == 1
    assert len({message.task_id for message in agent.heard}) == 2


def test_an_unfinished_task_of_an_earlier_wake_is_cancelled_first(agent: A2AAgent) -> None:
    agent.turns = [hangs(), says("Now.")]
    agent.hang_up_after = {"SendStreamingMessage": 1, "GetTask": 0}
    link = RecordingLink()
    with pytest.raises(RetryableAgentError):
        run(agent, link)
    agent.hang_up_after = {}

    second = completed(run(agent, session_id=link.sessions[-1], idempotency_key="wake-2"))

    assert agent.cancelled == [session_of(link)["task"]]
    assert second.output.content == "Now."


def test_a_task_that_the_agent_no_longer_knows_invalidates_the_session(agent: A2AAgent) -> None:
    mine = a2a._short(str(ONE["activity_id"]))

    with pytest.raises(SessionInvalid):
        run(agent, session_id=json.dumps({"context": "c", "task": "gone", "message": mine}))


@pytest.mark.parametrize("session", ["s-1", '"text"', "[1]", '{"task": null}'])
def test_a_session_of_another_adapter_is_ignored(agent: A2AAgent, session: str) -> None:
    assert completed(run(agent, session_id=session)).output.content == "Done."


def test_credentials_are_sent_with_every_call_and_redacted_in_errors(agent: A2AAgent) -> None:
    run(agent, auth={"type": "bearer", "token": "the-agents-secret"})

    assert {headers.get("authorization") for _, headers in agent.calls} == {"Bearer the-agents-secret"}
    agent.turns = [ends(TaskState.TASK_STATE_REJECTED, "the-agents-secret is wrong")]
    with pytest.raises(PermanentAgentError, match=r"\[secret\] is wrong"):
        run(agent, auth={"type": "bearer", "token": "the-agents-secret"})


def test_a_card_does_not_lead_credentials_to_another_host(agent: A2AAgent, settings: Any) -> None:
    with A2AAgent() as other:
        settings.ORCHESTRATOR_EGRESS_ALLOW += (other.place,)
        agent.card.supported_interfaces[0].url = f"{other.url}/rpc"

        with pytest.raises(ConfigurationError, match="its credentials are for 127"):
            run(agent, auth={"type": "bearer", "token": "the-agents-secret"})

        assert other.calls == []
        assert completed(run(agent)).output.content == "Done."  # because there is no credential to leak
        assert len(other.heard) == 1


def test_a_card_cannot_lead_to_a_refused_address(agent: A2AAgent) -> None:
    agent.card.supported_interfaces[0].url = "http://169.254.169.254/latest/meta-data"

    with pytest.raises(OutboundRefused):
        run(agent)


def test_the_callback_token_is_shared_only_if_the_role_says_so(agent: A2AAgent) -> None:
    run(agent)
    run(agent, options={"share_callback": True})

    private, shared = (dict(message.metadata) for message in agent.heard)
    assert "callback" not in private
    assert shared["callback"]["token"] == TOKEN
    with pytest.raises(ConfigurationError, match="share_callback must be true or false"):
        run(agent, options={"share_callback": "yes"})


def test_a_result_above_the_limit_is_refused(agent: A2AAgent, settings: Any) -> None:
    settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES = 1_000
    agent.turns = [says("x" * 2_000)]

    with pytest.raises(PermanentAgentError) as caught:
        run(agent)

    assert caught.value.error_code == "answer_too_large"


def test_an_unknown_binding_is_a_configuration_error_that_names_the_known_ones(agent: A2AAgent) -> None:
    agent.card.supported_interfaces[0].protocol_binding = "GRPC"

    with pytest.raises(ConfigurationError, match=r"JSONRPC and HTTP\+JSON are"):
        run(agent)


def test_an_endpoint_without_a_card_fails_with_the_status(agent: A2AAgent) -> None:
    nowhere = AdapterSettings("a2a", f"{agent.url}/elsewhere")

    with pytest.raises(PermanentAgentError, match=r"status 404"):
        run_agent(a_request(nowhere))
    with pytest.raises(ConfigurationError, match="has no endpoint"):
        run_agent(a_request(replace(nowhere, endpoint=None)))


def test_the_rest_binding_works_as_well(agent: A2AAgent) -> None:
    agent.card.supported_interfaces[0].CopyFrom(
        AgentInterface(url=f"{agent.url}/rest", protocol_binding="HTTP+JSON", protocol_version="1.0")
    )

    assert completed(run(agent)).output.content == "Done."


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"task": {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, '
         '"artifacts": [{"artifactId": "a", "parts": [{"data": NaN}]}]}}', "number that JSON does not know"),
        ('{"task": {"status": {"state": "TASK_STATE_WORKING"}}}', "task.id is missing"),
        ('{"statusUpdate": {"contextId": "c"}}', "task.id is missing"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_used_is_permanent_and_says_why(
    agent: A2AAgent, httpserver: HTTPServer, answer: str, why: str
) -> None:
    agent.card.supported_interfaces[0].url = httpserver.url_for("/rpc")
    httpserver.expect_request("/rpc").respond_with_data(
        f'data: {{"jsonrpc": "2.0", "id": "1", "result": {answer}}}\n\n', content_type="text/event-stream"
    )

    with pytest.raises(PermanentAgentError, match=why) as caught:
        run(agent)

    assert caught.value.error_code == "invalid_agent_answer"


def test_an_update_after_the_final_status_does_not_open_the_task_again(
    agent: A2AAgent, httpserver: HTTPServer
) -> None:
    agent.card.supported_interfaces[0].url = httpserver.url_for("/rpc")
    of_task = '"taskId": "t", "contextId": "c"'
    updates = (
        '{"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}}',
        f'{{"artifactUpdate": {{{of_task}, "artifact": {{"artifactId": "a", "parts": [{{"text": "All of it."}}]}}}}}}',
        f'{{"statusUpdate": {{{of_task}, "status": {{"state": "TASK_STATE_COMPLETED"}}}}}}',
        f'{{"statusUpdate": {{{of_task}, "status": {{"state": "TASK_STATE_WORKING"}}}}}}',
    )
    lines = [f'data: {{"jsonrpc": "2.0", "id": "1", "result": {update}}}\n\n' for update in updates]
    httpserver.expect_oneshot_request("/rpc").respond_with_data(
        "".join(lines), content_type="text/event-stream"
    )

    assert completed(run(agent)).output.content == "All of it."

    assert len(httpserver.log) == 1, "the task is not polled"


def test_a_compressed_answer_is_refused(agent: A2AAgent) -> None:
    agent.refusing = (200, {"Content-Encoding": "gzip"})

    with pytest.raises(PermanentAgentError) as caught:
        run(agent)

    assert caught.value.error_code == "answer_encoded"


def test_the_next_attempt_asks_a_question_that_was_lost_with_its_run(agent: A2AAgent) -> None:
    agent.turns = [ends(TaskState.TASK_STATE_INPUT_REQUIRED, "Which?")]

    def fail_like_a_dead_worker(call: ToolCall) -> ToolAnswer:
        raise RuntimeError("the worker dies")

    lost, link = (
        RecordingLink(fail_like_a_dead_worker),
        RecordingLink(lambda call: ToolAnswer({"stop": True}, stop=True)),
    )
    with pytest.raises(RetryableAgentError):
        run(agent, lost)

    run(agent, link, session_id=lost.sessions[-1], attempt=2)

    assert [call.name for call in link.tool_calls] == ["request_human_review"]
    assert len(agent.heard) == 1


@pytest.mark.parametrize("turn", [hangs(), ends(TaskState.TASK_STATE_INPUT_REQUIRED, "Which?")])
def test_the_task_of_another_activity_of_the_same_deliverable_is_not_touched(
    agent: A2AAgent, turn: Turn
) -> None:
    agent.turns = [turn, says("Mine.")]
    agent.hang_up_after = {"SendStreamingMessage": 1, "GetTask": 0}
    link = RecordingLink(lambda call: ToolAnswer({"stop": True}, stop=True))
    with suppress(RetryableAgentError):
        run(agent, link, **ONE)
    agent.hang_up_after = {}

    done = completed(run(agent, session_id=link.sessions[-1], idempotency_key="wake-2", **OTHER))

    assert (done.output.content, agent.cancelled) == ("Mine.", [])
    theirs, mine = agent.heard
    assert (theirs.context_id == mine.context_id, theirs.task_id == mine.task_id) == (True, False)


def test_a_task_that_the_agent_loses_during_the_run_is_started_again(plain_agent: A2AAgent) -> None:
    plain_agent.turns = [hangs(), says("Again.")]
    link = RecordingLink()

    def lose_the_task(session: str) -> None:
        link.sessions.append(session)
        plain_agent.forgotten.add(json.loads(session)["task"])

    link.saw_session = lose_the_task  # type: ignore[method-assign]
    with pytest.raises(RetryableAgentError, match="has lost the task"):
        run(plain_agent, link)
    with pytest.raises(SessionInvalid):
        run(plain_agent, session_id=link.sessions[-1], attempt=2)
    assert completed(run(plain_agent, attempt=2)).output.content == "Again."


def test_the_usage_of_a_task_is_counted_once_per_message(agent: A2AAgent) -> None:
    input_required = ends(TaskState.TASK_STATE_INPUT_REQUIRED, "Which?", input_tokens=5)
    failed = ends(TaskState.TASK_STATE_FAILED, "No.", input_tokens=7)
    agent.turns = [input_required, says("That one."), failed]
    link = RecordingLink(lambda call: ToolAnswer({"stop": True}, stop=True))

    question = completed(run(agent, link))
    answered = completed(run(agent, link, session_id=question.session_id, idempotency_key="wake-2"))
    with pytest.raises(RetryableAgentError):
        run(agent, link, idempotency_key="wake-3")

    assert (question.usage and question.usage.input_tokens, answered.usage) == (5, None)
    assert [each.input_tokens for each in link.usages] == [5, 7]


def test_a_long_question_is_complete_in_the_content_of_the_review(agent: A2AAgent) -> None:
    async def draft_and_ask(task: TaskUpdater, queue: EventQueue) -> None:
        await task.add_artifact([Part(text="A draft")])
        await task.requires_input(task.new_agent_message([Part(text="Why? " * 500)]))

    agent.turns = [draft_and_ask]
    link = RecordingLink(lambda call: ToolAnswer({"stop": True}, stop=True))
    run(agent, link)

    (call,) = link.tool_calls
    assert len(call.arguments["question"]) == a2a.QUESTION_CHARACTERS
    assert call.arguments["content"] == "Why? " * 500 + "\n\nA draft"


def test_live_text_without_spaces_is_logged_in_pieces() -> None:
    link = RecordingLink()
    live = LiveText(link)
    for _ in range(LONGEST_WORD):
        live.hear("xyz")

    assert max(len(line) for _, line in link.lines) <= LONGEST_WORD + 3
    live.end()
    assert "".join(line for _, line in link.lines) == "xyz" * LONGEST_WORD
