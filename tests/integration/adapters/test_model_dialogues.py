"""What only adapters for models do: streams, JSON, caching, credentials, and faults of providers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents import adapters
from agents.adapters.dialogue import MATERIAL
from agents.command_line import transcripts
from agents.contracts import AdapterSettings, AgentResult, Completed, ContextFile, Output, Skills, ToolAnswer
from agents.exceptions import (
    AgentError,
    ConfigurationError,
    OutboundRefused,
    PermanentAgentError,
    RetryableAgentError,
)
from agents.response_parser import InvalidAnswer
from agents.runner import run_agent
from agents.tools import DEFINITIONS
from benchmarks.fake_provider import FakeProvider, Fault, Turn, Use
from tests.recording_link import RecordingLink
from tests.subjects import KEY, Calls, Fails, ModelSubject, Says, a_request

SUBTASK = {"name": "a", "description": "b", "human_role": "editor", "blocking": False}


def output_of(result: AgentResult) -> Output:
    assert isinstance(result, Completed)
    return result.output


def with_steps(model: ModelSubject, *steps: Turn | Fault, **options: Any) -> AdapterSettings:
    model.provider.script(*steps)
    return model.settings(options=options)


def test_a_model_receives_its_instructions_context_files_and_tools(model: ModelSubject) -> None:
    skills = Skills(context=[ContextFile("The client", "They sell tea.")])

    model.run(Says(), skills=skills)

    body = model.bodies[0]
    system = body["system"][0]["text"] if model.name == "anthropic" else body["messages"][0]["content"]
    names = [each.get("name") or each["function"]["name"] for each in body["tools"]]
    (marker,) = set(re.findall(r"[0-9a-f]{16}", system))
    section = f"<<context file {marker}>>\nThey sell tea.\n<<end of context file {marker}>>"
    assert system == f"You write titles.\n\n## The client\n\n{section}\n\n{MATERIAL}"
    assert names == [definition.name for definition in DEFINITIONS]
    assert body["stream"] is True


@pytest.mark.parametrize("stream", [True, False])
def test_a_streamed_answer_equals_one_in_one_piece(model: ModelSubject, stream: bool) -> None:
    turns = (
        Turn("Let me see.", (Use("create_subtask", SUBTASK),)),
        Turn("One two  three.", input_tokens=9, output_tokens=4),
    )
    link = RecordingLink()

    result = run_agent(a_request(with_steps(model, *turns, stream=stream)), link=link)

    assert output_of(result) == Output("One two  three.")
    assert [dict(call.arguments) for call in link.tool_calls] == [SUBTASK]
    assert model.bodies[0].get("stream", False) is stream


def test_the_next_request_repeats_the_conversation_with_the_results_of_tools(model: ModelSubject) -> None:
    use = Use("create_subtask", SUBTASK, id="call-1")
    link = RecordingLink(lambda call: ToolAnswer({"error": "unknown_role"}, refused=True))

    run_agent(a_request(with_steps(model, Turn("Hm.", (use,)), Turn("Done."))), link=link)

    call, tool_result = model.bodies[1]["messages"][-2:]
    assert call["role"] == "assistant"
    if model.name == "anthropic":
        assert call["content"][-1] == {
            "type": "tool_use",
            "id": "call-1",
            "name": "create_subtask",
            "input": SUBTASK,
        }
        assert tool_result["content"] == [
            {
                "type": "tool_result",
                "tool_use_id": "call-1",
                "content": '{"error":"unknown_role"}',
                "is_error": True,
            }
        ]
    else:
        assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == SUBTASK
        assert tool_result == {
            "role": "tool",
            "tool_call_id": "call-1",
            "content": '{"error":"unknown_role"}',
        }


def test_several_tool_calls_run_in_order_until_one_ends_the_run(
    model: ModelSubject,
) -> None:
    uses = (
        Use("create_subtask", SUBTASK),
        Use("report_blocker", {"type": "x", "message": "y"}),
        Use("create_subtask", SUBTASK),
    )
    link = RecordingLink(lambda call: ToolAnswer({}, stop=call.name == "report_blocker"))

    result = run_agent(a_request(with_steps(model, Turn("", uses))), link=link)

    assert [call.name for call in link.tool_calls] == ["create_subtask", "report_blocker"]
    assert output_of(result) == Output()


def test_cached_tokens_count_as_usage_and_the_cache_is_requested(provider: FakeProvider) -> None:
    pytest.importorskip("anthropic")
    settings = AdapterSettings("anthropic", provider.anthropic_url, {"type": "bearer", "token": KEY}, "m-1")
    provider.script(Turn("x", input_tokens=10, output_tokens=1, cache_written=100, cache_read=1000))

    result = run_agent(a_request(settings))

    body = provider.recorder.calls[0].body
    assert isinstance(result, Completed)
    assert result.usage is not None
    assert result.usage.input_tokens == 1110
    assert body["system"][-1]["cache_control"] == body["tools"][-1]["cache_control"] == {"type": "ephemeral"}


def test_tokens_of_a_stream_are_estimated_when_the_server_does_not_count_them(provider: FakeProvider) -> None:
    pytest.importorskip("openai")
    settings = AdapterSettings("openai", provider.openai_url, {"type": "bearer", "token": KEY}, "m-1")
    provider.script(Turn("A title of some words.", counting=False))

    result = run_agent(a_request(settings))

    assert isinstance(result, Completed)
    assert result.usage is not None
    assert (result.usage.output_tokens, result.usage.model) == (len("A title of some words.") // 3 + 1, "m-1")
    assert result.usage.input_tokens > 10


def test_json_output_becomes_data(model: ModelSubject) -> None:
    settings = with_steps(model, Turn('```json\n{"titles": ["a"], "score": 1}\n```'), output="json")

    assert output_of(run_agent(a_request(settings))) == Output(
        data={"titles": ["a"], "score": 1}, content_type="application/json"
    )


def test_a_model_that_answers_without_json_is_asked_once_more(model: ModelSubject) -> None:
    settings = with_steps(model, Turn("Here you are: [1"), Turn("[1]"), output="json")

    assert output_of(run_agent(a_request(settings))).data == [1]
    assert "one JSON value" in model.bodies[1]["messages"][-1]["content"]


def test_a_model_that_never_answers_with_json_fails_permanently(model: ModelSubject) -> None:
    settings = with_steps(model, Turn("No."), Turn("Still no."), output="json")

    with pytest.raises(InvalidAnswer):
        run_agent(a_request(settings))


def test_the_options_of_the_role_are_sent(model: ModelSubject) -> None:
    run_agent(a_request(with_steps(model, Turn("x"), max_tokens=77, temperature=0.3, tools=False)))

    body = model.bodies[0]
    assert (body["max_tokens"], body["temperature"], "tools" in body) == (77, 0.3, False)


@pytest.mark.parametrize(
    "options",
    [{"max_tokens": 0}, {"max_tokens": "9"}, {"temperature": 3}, {"output": "xml"}, {"stream": 1}, {"provider": "huge"},
     {"provider": {"requests": 5}}, {"provider": {"requests_per_minute": 0}}, {"rounds": True}],
)  # fmt: skip
def test_invalid_options_are_refused_before_anything_is_sent(
    model: ModelSubject, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError):
        run_agent(a_request(model.settings(options=options)))

    assert model.bodies == []


def test_a_truncated_answer_fails_unless_the_role_accepts_it(model: ModelSubject) -> None:
    with pytest.raises(PermanentAgentError, match="max_tokens") as caught:
        run_agent(a_request(with_steps(model, Turn("Half a", ended="length"))))
    allowed = with_steps(model, Turn("Half a", ended="length"), accept_truncated=True)

    assert caught.value.error_code == "answer_truncated"
    assert output_of(run_agent(a_request(allowed))).content == "Half a"


def test_a_refusal_or_an_empty_answer_is_an_error(model: ModelSubject) -> None:
    for turn, code in ((Turn("No.", ended="refusal"), "model_refused"), (Turn(""), "empty_answer")):
        with pytest.raises(AgentError) as caught:
            run_agent(a_request(with_steps(model, turn)))
        assert caught.value.error_code == code


def test_a_model_that_calls_tools_endlessly_is_stopped(model: ModelSubject) -> None:
    model.provider.default = lambda body: Turn("", (Use("create_subtask", SUBTASK),))

    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(model.settings(options={"rounds": 3})), link=RecordingLink())

    assert (caught.value.error_code, len(model.bodies)) == ("too_many_rounds", 3)


def test_a_run_whose_budget_is_used_up_calls_no_further_tool(model: ModelSubject) -> None:
    link = RecordingLink(
        stop_spending=lambda usage: "The budget is used up." if usage.output_tokens >= 2 else None
    )

    with pytest.raises(AgentError, match="budget") as caught:
        model.run(Calls("create_subtask", SUBTASK), link=link)

    assert (caught.value.retryable, link.tool_calls) == (False, [])


def test_malformed_arguments_of_a_tool_are_reported_to_the_model(provider: FakeProvider) -> None:
    pytest.importorskip("openai")
    settings = AdapterSettings("openai", provider.openai_url, {"type": "bearer", "token": KEY}, "m-1")
    provider.script(Turn("", (Use("create_subtask", '{"name": "a'),)), Turn("Then without."))
    link = RecordingLink()

    assert output_of(run_agent(a_request(settings), link=link)).content == "Then without."
    assert link.tool_calls == []
    assert "invalid_arguments" in provider.recorder.calls[1].body["messages"][-1]["content"]


@pytest.mark.parametrize("kind", ["disconnect", "malformed", "error"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_broken_or_malformed_answer_is_retryable(model: ModelSubject, kind: str, stream: bool) -> None:
    if not stream and kind != "malformed":
        pytest.skip("only streams have a middle")

    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(with_steps(model, Fault(kind), stream=stream)))

    assert caught.value.error_code in ("agent_unreachable", "provider_answer_invalid", "agent_error_status")


def test_an_overload_in_the_middle_of_a_stream_is_retryable(model: ModelSubject) -> None:
    with pytest.raises(RetryableAgentError) as caught:
        run_agent(a_request(with_steps(model, Fault("error", type="overloaded_error"))))

    assert caught.value.error_code == "agent_error_status"


def test_an_exhausted_quota_is_permanent(provider: FakeProvider) -> None:
    pytest.importorskip("openai")
    settings = AdapterSettings("openai", provider.openai_url, {"type": "bearer", "token": KEY}, "m-1")
    provider.script(Fault(status=429, type="insufficient_quota"))

    with pytest.raises(PermanentAgentError) as caught:
        run_agent(a_request(settings))

    assert caught.value.error_code == "provider_quota"


# Credentials


@pytest.mark.parametrize("status", [401, 403])
def test_the_error_of_a_refused_credential_names_the_setting_but_not_the_key(
    model: ModelSubject, status: int
) -> None:
    model.provider.script(Fault(status=status, message=f"bad key {KEY}"))

    with pytest.raises(ConfigurationError, match=r"\[secret\].*_API_KEY") as caught:
        run_agent(a_request(model.settings()))

    assert KEY not in str(caught.value)


def test_only_the_configured_key_is_sent_and_nothing_from_the_environment(
    model: ModelSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-the-machine")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Inside: secret-header")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-machine")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-machine")

    model.run(Says())

    headers = model.provider.recorder.calls[0].headers
    expected_header = {"anthropic": ("x-api-key", KEY), "openai": ("authorization", f"Bearer {KEY}")}[
        model.name
    ]
    assert headers[expected_header[0]] == expected_header[1]
    assert "of-the-machine" not in str(headers)
    assert "secret-header" not in str(headers)


def test_the_platforms_key_is_sent_to_the_platforms_address_only(model: ModelSubject, settings: Any) -> None:
    settings.ANTHROPIC_API_KEY = settings.OPENAI_API_KEY = KEY
    settings.ANTHROPIC_BASE_URL, settings.OPENAI_BASE_URL = (
        model.provider.anthropic_url,
        model.provider.openai_url,
    )
    model.provider.script(Turn("Mine."))

    response = run_agent(a_request(model.settings(endpoint=None, auth={})))
    with pytest.raises(ConfigurationError):
        run_agent(a_request(model.settings(auth={})))

    assert output_of(response).content == "Mine."
    assert KEY not in str(model.provider.recorder.calls[1].headers)


def test_without_any_key_nothing_is_sent(model: ModelSubject, settings: Any) -> None:
    settings.ANTHROPIC_API_KEY = settings.OPENAI_API_KEY = ""

    with pytest.raises(ConfigurationError, match="_API_KEY"):
        run_agent(a_request(model.settings(endpoint=None, auth={})))


@pytest.mark.parametrize(
    "endpoint",
    ["https://10.0.0.5/v1", "http://127.0.0.1:2/v1", "https://169.254.169.254/", "file:///etc/passwd"],
)
def test_an_endpoint_of_a_model_on_the_internal_network_is_refused(
    model: ModelSubject, endpoint: str
) -> None:
    with pytest.raises(OutboundRefused):
        run_agent(a_request(model.settings(endpoint=endpoint)))


def test_a_redirect_is_not_followed_with_the_credential(model: ModelSubject) -> None:
    with pytest.raises(AgentError):
        model.run(Fails(302))

    assert len(model.bodies) == 1


def test_the_error_of_a_missing_library_says_how_to_install_it(
    model: ModelSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    adapters.get.cache_clear()
    monkeypatch.setitem(sys.modules, model.name, None)
    monkeypatch.delitem(sys.modules, f"agents.adapters.{model.name}", raising=False)

    with pytest.raises(ConfigurationError, match=r"pip install orchestrator\[llm\]"):
        run_agent(a_request(replace(model.settings())))

    adapters.get.cache_clear()


def test_a_role_without_a_model_cannot_run(model: ModelSubject) -> None:
    with pytest.raises(ConfigurationError, match="no model"):
        run_agent(a_request(model.settings(model=None)))


def test_a_run_ends_after_its_maximum_number_of_turns(model: ModelSubject) -> None:
    use = Use("create_subtask", SUBTASK)
    settings = with_steps(model, Turn("1", (use,)), Turn("2", (use,)), Turn("3"))

    with pytest.raises(PermanentAgentError, match="not done after 2 turns") as caught:
        run_agent(replace(a_request(settings), max_turns=2), link=RecordingLink())

    assert caught.value.error_code == "max_turns"
    assert len(model.bodies) == 2


def test_a_transcript_is_written_without_the_credential(
    model: ModelSubject, settings: Any, tmp_path: Path
) -> None:
    settings.ORCHESTRATOR_HOME = tmp_path
    use = Use("create_subtask", SUBTASK)
    request = a_request(with_steps(model, Turn("Hm.", (use,)), Turn(f"Done, {KEY}.")))

    run_agent(request, link=RecordingLink(lambda call: ToolAnswer({"id": "7"})))

    transcript = transcripts.path_of(request.tenant_id, request.run_id).read_text()
    lines = [json.loads(line) for line in transcript.splitlines()]
    assert [line["role"] for line in lines] == ["user", "assistant", "tool", "assistant"]
    assert lines[0]["content"] == request.prompt
    assert lines[1]["tools"][0]["arguments"] == SUBTASK
    assert lines[2]["content"] == {"id": "7"}
    assert lines[3]["content"] == "Done, [secret]."


def test_a_transcript_that_cannot_be_written_does_not_fail_the_run(
    model: ModelSubject, settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    settings.ORCHESTRATOR_HOME = tmp_path / "file"

    assert output_of(run_agent(a_request(with_steps(model, Turn("ok"))))) == Output("ok")
