"""Agents that are programs: what they are given, how their output is understood, and that nothing of them is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agents.command_line import processes, reading, transcripts, upkeep
from agents.contracts import Completed, Output, Usage
from agents.exceptions import (
    AgentError,
    ConfigurationError,
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from agents.runner import run_agent
from tests.engine import eventually
from tests.programs import KEY, NOTE_KEEPER, TOKEN, Linked, a_request, processes_of, program

STREAM = {"output": "stream-json"}
SHELL_WORDS = "; rm -rf / && $(echo) `id` | '\" > x\n--help"


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.ORCHESTRATOR_HOME = tmp_path / "home"
    settings.ORCHESTRATOR_CLI_COMMANDS = (sys.executable,)
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(processes, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(processes, "SAMPLE_COST", 2)
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.02)


def run(
    command: list[Any], link: Linked | None = None, *, changes: dict[str, Any] | None = None, **options: Any
) -> Completed:
    result = run_agent(a_request({"command": command, **options}, **(changes or {})), link=link or Linked())
    assert isinstance(result, Completed)
    return result


def failing(
    command: list[Any], link: Linked | None = None, *, changes: dict[str, Any] | None = None, **options: Any
) -> AgentError:
    with pytest.raises(AgentError) as caught:
        run(command, link, changes=changes, **options)
    return caught.value


# --- What it is given ---


def test_what_a_program_prints_is_the_output(tmp_path: Path) -> None:
    assert run(program(tmp_path, "print('Grüße,', sys.stdin.read())")).output == Output(
        "Grüße, Count the bees. Then rest."
    )


def test_the_prompt_may_come_as_a_file_and_the_job_beside_it_without_the_token(tmp_path: Path) -> None:
    code = """
        job = json.load(open(sys.argv[2]))
        print(json.dumps({"output": {"data": [open(sys.argv[1]).read(), job["params"], job["callback"], sys.argv[3:]]}}))
    """
    command = [
        *program(tmp_path, code),
        "{prompt_file}",
        "{job_file}",
        ["--model", "{model}"],
        ["--skills", "{skills_dir}"],
    ]

    data = run(command, prompt="file", output="json", changes={"params": {"a": 1}}).output.data

    assert data == [
        "Count the bees. Then rest.",
        {"a": 1},
        {"url": "http://127.0.0.1:1/api/v1/agent-runs/1/"},
        [],
    ]


def test_no_text_from_outside_reaches_a_shell_or_becomes_an_option(tmp_path: Path) -> None:
    command = [
        *program(tmp_path, "print(json.dumps({'output': {'data': [sys.argv[1:], sys.stdin.read()]}}))"),
        "{role}",
    ]

    assert run(command, output="json", changes={"prompt": SHELL_WORDS}).output.data == [["dev"], SHELL_WORDS]
    for bad in ("--dangerous", "a b", "$(id)", "x\ny"):
        request = a_request({"command": [*command, "{model}"]})
        settings = type(request.settings)("cli", model=bad, options=request.settings.options)
        assert isinstance(failing([*command, "{model}"], changes={"settings": settings}), ConfigurationError)
        assert isinstance(
            failing(command, changes={"session_id": bad}, resume=["--resume", "{session_id}"]), SessionInvalid
        )


def test_the_environment_is_what_was_allowed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    command = program(tmp_path, "print(json.dumps({'output': {'data': [dict(os.environ), sys.argv]}}))")

    environment, arguments = run(
        command,
        output="json",
        credential_variable="MODEL_KEY",
        environment=["HTTPS_PROXY"],
        variables={"CI": "1"},
    ).output.data

    ours = {name: value for name, value in environment.items() if name.startswith("ORCHESTRATOR_")}
    assert ours.keys() == {
        "ORCHESTRATOR_RUN_ID", "ORCHESTRATOR_ACTIVITY_ID", "ORCHESTRATOR_AGENT_ROLE", "ORCHESTRATOR_CALLBACK_URL",
        "ORCHESTRATOR_CALLBACK_TOKEN", "ORCHESTRATOR_DEADLINE",
    }  # fmt: skip
    assert environment.keys() - ours.keys() <= {
        "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HOME", "TMPDIR", "HTTPS_PROXY", "CI", "MODEL_KEY",
    }  # fmt: skip
    assert (environment["MODEL_KEY"], environment["ORCHESTRATOR_CALLBACK_TOKEN"]) == (KEY, TOKEN)
    assert KEY not in str(arguments)
    assert TOKEN not in str(arguments)


def test_sessions_of_tenants_are_kept_apart_and_those_of_a_tenant_are_found_again(tmp_path: Path) -> None:
    command = program(tmp_path, "print(os.environ['HOME'])")
    one, other = a_request({"command": command}), a_request({"command": command})
    homes = [run_agent(request).output.content for request in (one, other, one)]  # type: ignore[union-attr]

    assert homes[0] == homes[2] != homes[1]
    assert os.stat(str(homes[0])).st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "must be a list"),
        ({"command": ["/bin/sh", "-c", "id"]}, "not among the programs"),
        ({"command": [sys.executable, "{secret}"]}, "unknown placeholder {secret}"),
        ({"command": [sys.executable], "memory": 5}, "option memory .* is not known"),
        ({"command": [sys.executable], "limits": {"nice": -5}}, "limits.nice"),
        ({"command": [sys.executable], "output": "yaml"}, "one of text, json, stream-json"),
        ({"command": [sys.executable], "prompt": "file"}, "no argument of the command names"),
        ({"command": [sys.executable], "session_invalid": "("}, "no regular expression"),
        ({"command": [sys.executable, "{model}"]}, "which this run does not have"),
        ({"command": [sys.executable], "repository": "/"}, "not among ORCHESTRATOR_CLI_REPOSITORIES"),
    ],
)  # fmt: skip
def test_what_operators_have_set_is_read_by_the_letter(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        run_agent(a_request(options))


def test_a_program_that_is_not_installed_is_a_matter_of_configuration(settings: Any, tmp_path: Path) -> None:
    odd = tmp_path / "no-program"
    odd.write_text("#!/no/such/interpreter\n")
    odd.chmod(0o755)
    settings.ORCHESTRATOR_CLI_COMMANDS = ("no-such-program", str(odd))

    assert isinstance(failing(["no-such-program"]), ConfigurationError)
    assert isinstance(failing([str(odd)]), ConfigurationError)


# --- How its output is understood ---


def test_a_session_is_told_at_first_sight_and_usage_as_it_grows(tmp_path: Path) -> None:
    code = """
        say(type="system", session_id="s-1")
        for number in (1, 1, 2):
            say(type="assistant", message={"id": f"m{number}", "model": "m", "usage": {"input_tokens": 5, "output_tokens": 2}})
        print("no json at all")
        say(type="result", result="Done.", session_id="s-1", total_cost_usd=0.25, model="m",
            usage={"input_tokens": 10, "cache_read_input_tokens": 3, "output_tokens": 9})
    """
    link = Linked()

    result = run(program(tmp_path, code), link, **STREAM)

    total = Usage(13, 9, Decimal("0.25"), "m")
    assert result == Completed(Output("Done."), total, "s-1")
    assert link.sessions == ["s-1"]
    assert link.usages == [Usage(5, 2, None, "m"), Usage(10, 4, None, "m"), total]


def test_events_of_another_kind_of_coding_agent_are_understood() -> None:
    link = Linked()
    events = reading.Events(link, lambda reason: None)
    for event in (
        {"type": "thread.started", "thread_id": "t-1"},
        {"type": "item.completed", "item": {"type": "reasoning", "text": "hm"}},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "The answer."}},
        {"type": "turn.completed", "usage": {"input_tokens": 7, "output_tokens": 3}},
    ):
        events.feed(json.dumps(event).encode() + b"\n")

    assert events.close().result == Completed(Output("The answer."), Usage(7, 3), "t-1")
    assert link.sessions == ["t-1"]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_may_come_in_pieces_of_any_size(size: int) -> None:
    text = '{"type": "system", "session_id": "s-1"}\n{"type": "result", "result": "Grüße", "structured_output": [1]}'.encode()
    events = reading.Events(Linked(), lambda reason: None)
    for start in range(0, len(text), size):
        events.feed(text[start : start + size])

    assert events.close().result == Completed(Output("Grüße", [1]), None, "s-1")


def test_an_event_without_end_costs_no_memory_and_the_next_one_is_read() -> None:
    events = reading.Events(Linked(), lambda reason: None)
    for _ in range(100):
        events.feed(b"x" * 100_000)
    assert len(events.rest) <= reading.LONGEST_LINE
    events.feed(b'\n{"type": "result", "result": "ok"}\n')

    assert events.close().result == Completed(Output("ok"))


def test_the_closing_object_of_a_coding_agent_is_understood_as_json(tmp_path: Path) -> None:
    code = (
        "say(type='result', result='Done.', session_id='s-1', usage={'input_tokens': 1, 'output_tokens': 2})"
    )

    assert run(program(tmp_path, code), output="json") == Completed(Output("Done."), Usage(1, 2), "s-1")


@pytest.mark.parametrize(
    ("code", "options", "expected", "error_code"),
    [
        ("sys.exit(1)", {}, RetryableAgentError, "agent_failed"),
        ("sys.exit(7)", {"permanent_exit_codes": [7]}, PermanentAgentError, "agent_failed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", {}, RetryableAgentError, "agent_killed"),
        ("pass", STREAM, RetryableAgentError, "agent_failed"),
        ("print('{')", {"output": "json"}, PermanentAgentError, "invalid_agent_answer"),
        ("say(type='result', is_error=True, result='no')", STREAM, RetryableAgentError, "agent_failed"),
        ("say(type='result', subtype='error_max_turns')", STREAM, PermanentAgentError, "max_turns"),
        ("print('x' * 2_000_000)", {}, PermanentAgentError, "invalid_agent_answer"),
        ("say(type='result', output={'content': 5})", STREAM, PermanentAgentError, "invalid_agent_answer"),
    ],
)  # fmt: skip
def test_every_end_has_its_meaning(
    tmp_path: Path, code: str, options: dict[str, Any], expected: type, error_code: str
) -> None:
    error = failing(program(tmp_path, code), **options)

    assert type(error) in (expected, *expected.__subclasses__())
    assert error.retryable == (expected is RetryableAgentError)
    assert error.error_code == error_code


def test_a_conversation_that_the_program_does_not_know_is_said_to_be_invalid(tmp_path: Path) -> None:
    command, pattern = program(tmp_path, "sys.exit('No conversation found')"), "no conversation found"

    assert isinstance(
        failing(command, session_invalid=pattern, changes={"session_id": "s-1"}), SessionInvalid
    )
    assert type(failing(command, session_invalid=pattern)) is RetryableAgentError  # it was given none


def test_a_failure_is_shown_without_secrets(tmp_path: Path) -> None:
    error = failing(program(tmp_path, "sys.exit('bad key ' + os.environ['K'])"), credential_variable="K")

    assert "bad key [secret]" in str(error)


# --- How it ends ---

FAMILY = """
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], process_group=0)
    say(type="system", session_id="s-1")
"""


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_program_that_nobody_waits_for_any_more_is_ended_with_all_that_it_started(
    tmp_path: Path, stubborn: bool
) -> None:
    code = ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else "") + "time.sleep(60)"
    link = Linked()
    link.stop = lambda: "cancelled" if link.sessions else None
    request = a_request(
        {
            "command": program(tmp_path, FAMILY + "    " + code.replace("\n", "\n    ")),
            "kill_grace_seconds": 0.1,
            **STREAM,
        }
    )

    with pytest.raises(RetryableAgentError, match="cancelled"):
        run_agent(request, link=link)

    eventually(lambda: not processes_of(request.run_id))


def test_a_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()

    error = failing(program(tmp_path, "time.sleep(60)"), changes={"timeout_seconds": 0.3})

    assert (error.error_code, error.retryable) == ("agent_timeout", True)
    assert time.monotonic() - began < 5


def test_a_report_of_usage_may_be_answered_with_the_end_of_the_run(tmp_path: Path) -> None:
    code = "say(message={'id': 1, 'usage': {'output_tokens': 5}})\ntime.sleep(60)".replace("\n", "\n        ")
    link = Linked(stop_spending=lambda usage: "The budget is used up.")

    assert "budget" in str(failing(program(tmp_path, code.replace("\n        ", "\n")), link, **STREAM))


def test_what_a_program_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    code = """
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        print("done")
    """
    request, began = a_request({"command": program(tmp_path, code)}), time.monotonic()

    assert run_agent(request) == Completed(Output("done"))
    eventually(lambda: not processes_of(request.run_id))
    assert time.monotonic() - began < 5  # the child had the other end of its output


def test_who_is_in_a_session_outside_of_our_container_is_nobody_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        monkeypatch.setattr(os, "getsid", lambda pid: 0)

        assert processes.kill_all_of("11111111-0000-0000-0000-000000000000") == 0
        with pytest.raises(ValueError, match="must be named"):
            processes.kill_all_of("1", session=0)
        with pytest.raises(ValueError, match="must be named"):
            processes.kill_all_of("")

        assert bystander.poll() is None
        bystander.kill()


def test_limits_hold(tmp_path: Path) -> None:
    memory = failing(program(tmp_path, "x = bytearray(600 << 20)"), limits={"memory_mb": 400})
    processor = failing(program(tmp_path, "while True: pass"), limits={"cpu_seconds": 1})
    nice = run(program(tmp_path, "print(os.nice(0))"), limits={"nice": 7})

    assert "MemoryError" in str(memory)
    assert processor.error_code == "agent_killed"
    assert nice.output.content == "7"


def test_what_was_used_is_noted_with_the_children(tmp_path: Path) -> None:
    code = """
        child = subprocess.Popen([sys.executable, "-S", "-c", "x = b'x' * (80 << 20); import time; time.sleep(0.4)"])
        until = time.process_time() + 0.2
        while time.process_time() < until: pass
        child.wait()
    """
    link = Linked()

    run(program(tmp_path, code), link)

    used = link.progress["resources"]
    assert used["peak_rss_bytes"] > 80 << 20
    assert used["cpu_seconds"] >= 0.2
    assert used["processes"] >= 2


def test_a_flood_of_output_costs_constant_memory_and_is_kept_up_to_its_bound(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ORCHESTRATOR_TRANSCRIPT_MAX_BYTES = 10_000
    code = """
        line = json.dumps({"type": "noise", "text": "x" * 10_000}) + chr(10)
        for _ in range(2000): sys.stdout.write(line)
        say(type="result", result="ok")
    """
    request = a_request({"command": program(tmp_path, code), **STREAM})
    monkeypatch.setattr(processes, "SAMPLE_SECONDS", 60)
    tracemalloc.start()
    try:
        assert run_agent(request) == Completed(Output("ok"))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()

    kept = transcripts.path_of(request.tenant_id, request.run_id).read_bytes()
    assert len(kept) < 10_200
    assert b"more bytes were printed" in kept


def test_a_transcript_holds_what_was_printed_and_no_secret(tmp_path: Path) -> None:
    code = """
        print("one " + os.environ["K"][:8], end="", flush=True); time.sleep(0.05); print(os.environ["K"][8:])
        print("careful", file=sys.stderr)
    """
    request = a_request({"command": program(tmp_path, code), "credential_variable": "K"})

    run_agent(request)

    path = transcripts.path_of(request.tenant_id, request.run_id)
    text = path.read_text()
    assert sorted(text.splitlines()) == ["! careful", "one [secret]"]
    assert path.stat().st_mode & 0o077 == 0
    assert transcripts.forget_of(request.tenant_id, time.time() + 60, most=10) == 1
    assert transcripts.pieces(request.tenant_id, request.run_id) is None


def test_no_file_of_a_run_stays(tmp_path: Path, home: Path) -> None:
    run(program(tmp_path, "open('left', 'w').write('x'); os.mkdir('d'); os.chmod('d', 0)"))

    assert list((home / "agents" / "runs").iterdir()) == []


# --- The sample agent ---


def test_the_sample_agent_goes_on_with_its_conversation(tmp_path: Path) -> None:
    options = {
        "command": NOTE_KEEPER,
        "resume": ["--resume", "{session_id}"],
        "session_invalid": "no conversation found",
        **STREAM,
    }
    request = a_request(options)

    first = run_agent(request)
    assert isinstance(first, Completed)
    again = run_agent(type(request)(**{**_fields(request), "session_id": first.session_id}))
    assert isinstance(again, Completed)

    assert (first.output.data, again.output.data) == ({"tasks": 1, "words": 5}, {"tasks": 2, "words": 10})
    assert again.session_id == first.session_id
    with pytest.raises(SessionInvalid, match="No conversation found"):
        run_agent(a_request(options, session_id="unknown"))


def _fields(request: Any) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


def test_sweeping_leaves_runs_of_living_workers_alone(tmp_path: Path) -> None:
    code = "print(sys.stdin.read())"
    swept: list[int] = []
    link = Linked(stop=lambda: swept.append(upkeep.sweep()) and None)

    assert run(program(tmp_path, f"time.sleep(0.3); {code}"), link).output.content
    assert swept
    assert set(swept) == {0}


# --- Turns ---


def test_a_program_that_answers_too_often_is_ended(tmp_path: Path) -> None:
    code = """
        for number in range(100):
            say(type="assistant", message={"id": f"m{number // 2}", "content": []})
            time.sleep(0.05)
    """
    error = failing(program(tmp_path, code), changes={"max_turns": 2}, **STREAM)

    assert isinstance(error, PermanentAgentError)
    assert error.error_code == "max_turns"


def test_a_program_may_be_told_how_many_turns_it_has(tmp_path: Path) -> None:
    command = [*program(tmp_path, "print(sys.argv[1:])"), ["--max-turns", "{max_turns}"]]

    assert run(command, changes={"max_turns": 7}).output.content == "['--max-turns', '7']"
    assert run(command).output.content == "[]"


def test_a_program_that_says_that_it_ran_out_of_turns_has_failed_for_that(tmp_path: Path) -> None:
    code = 'say(type="result", subtype="error_max_turns", is_error=True)\nsys.exit(1)'

    assert failing(program(tmp_path, code), **STREAM).error_code == "max_turns"
