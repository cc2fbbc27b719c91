"""How a program ends with all its processes, and what remains of it."""

from __future__ import annotations

import os
import resource
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agents.command_line import processes, transcripts, workspaces
from agents.contracts import Completed, Output
from agents.exceptions import (
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from agents.runner import run_agent
from tests.engine import eventually
from tests.integration.command_line.calls import STREAM, run, run_and_fail
from tests.programs import NOTE_KEEPER, a_request, processes_of, program
from tests.recording_link import RecordingLink

FAMILY = """
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], process_group=0)
    say(type="system", session_id="s-1")
"""


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_cancelled_run_ends_its_program_with_all_its_processes(tmp_path: Path, stubborn: bool) -> None:
    code = ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else "") + "time.sleep(60)"
    link = RecordingLink()
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


def test_a_program_that_exceeds_its_timeout_is_ended(tmp_path: Path) -> None:
    start = time.monotonic()

    error = run_and_fail(program(tmp_path, "time.sleep(60)"), changes={"timeout_seconds": 0.3})

    assert (error.error_code, error.retryable) == ("agent_timeout", True)
    assert time.monotonic() - start < 30  # because the program sleeps 60


def test_a_usage_report_over_budget_ends_the_run(tmp_path: Path) -> None:
    code = "say(message={'id': 1, 'usage': {'output_tokens': 5}})\ntime.sleep(60)".replace("\n", "\n        ")
    link = RecordingLink(stop_spending=lambda usage: "The budget is used up.")

    assert "budget" in str(run_and_fail(program(tmp_path, code.replace("\n        ", "\n")), link, **STREAM))


def test_processes_that_a_program_leaves_running_are_ended(tmp_path: Path) -> None:
    code = """
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        print("done")
    """
    request, start = a_request({"command": program(tmp_path, code)}), time.monotonic()

    assert run_agent(request) == Completed(Output("done"))
    eventually(lambda: not processes_of(request.run_id))
    # The child, which has the other end of the output, sleeps 60.
    assert time.monotonic() - start < 30


def test_processes_in_an_unknown_session_are_not_killed(
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


def test_limits_apply(tmp_path: Path) -> None:
    memory = run_and_fail(program(tmp_path, "x = bytearray(600 << 20)"), limits={"memory_mb": 400})
    processor = run_and_fail(program(tmp_path, "while True: pass"), limits={"cpu_seconds": 1})
    nice = run(program(tmp_path, "print(os.nice(0))"), limits={"nice": 7})

    assert str(memory).endswith("MemoryError"), "the end of a long traceback"
    assert processor.error_code == "agent_killed"
    assert nice.output.content == str(os.nice(0) + 7)  # relative to our own


def peak_of(link: RecordingLink) -> int:
    """The memory measured so far."""
    peak: int = link.progress.get("resources", {}).get("peak_rss_bytes", 0)
    return peak


def test_resources_include_those_of_children(tmp_path: Path) -> None:
    measured = tmp_path / "measured"
    child = f"x = b'x' * (80 << 20); import os, time\nwhile not os.path.exists({str(measured)!r}): time.sleep(0.01)"
    code = f"""
        child = subprocess.Popen([sys.executable, "-S", "-c", {child!r}])
        until = time.process_time() + 0.2
        while time.process_time() < until: pass
        child.wait()
    """
    link = RecordingLink()
    link.stop = lambda: measured.touch() if peak_of(link) > 80 << 20 else None

    run(program(tmp_path, code), link)

    resources = link.progress["resources"]
    assert resources["peak_rss_bytes"] > 80 << 20
    assert resources["cpu_seconds"] >= 0.2
    assert resources["processes"] >= 2


def test_the_memory_of_a_small_program_excludes_that_of_its_worker(tmp_path: Path) -> None:
    """The kernel counts from the fork, when a program is as large as its parent."""
    ballast = b"x" * (200 << 20)
    link = RecordingLink()

    measured = tmp_path / "measured"
    link.stop = lambda: measured.touch() if peak_of(link) > 2 << 20 else None

    run(program(tmp_path, f"while not os.path.exists({str(measured)!r}): time.sleep(0.01)"), link)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > len(ballast)
    assert 2 << 20 < link.progress["resources"]["peak_rss_bytes"] < 100 << 20


def test_a_flood_of_output_takes_constant_memory_and_is_truncated_in_the_transcript(
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

    transcript = transcripts.path_of(request.tenant_id, request.run_id).read_bytes()
    assert len(transcript) < 10_200
    assert b"more bytes were printed" in transcript


def test_a_transcript_contains_the_output_without_secrets(tmp_path: Path) -> None:
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
    assert transcripts.delete_before(request.tenant_id, time.time() + 60, most=10) == 1
    assert transcripts.read(request.tenant_id, request.run_id) is None


def test_all_files_of_a_run_are_removed(tmp_path: Path, home: Path) -> None:
    run(program(tmp_path, "open('left', 'w').write('x'); os.mkdir('d'); os.chmod('d', 0)"))

    assert list((home / "agents" / "runs").iterdir()) == []


def test_the_sample_agent_continues_its_session(tmp_path: Path) -> None:
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


def test_sweeping_does_not_touch_runs_of_living_workers(tmp_path: Path) -> None:
    swept = tmp_path / "swept"
    numbers: list[int] = []

    def sweep() -> None:
        numbers.append(workspaces.sweep())
        swept.touch()

    code = f"""
        while not os.path.exists({str(swept)!r}): time.sleep(0.01)
        print(sys.stdin.read())
    """
    assert run(program(tmp_path, code), RecordingLink(stop=sweep)).output.content
    assert set(numbers) == {0}


def test_a_program_that_exceeds_its_turns_is_ended(tmp_path: Path) -> None:
    code = """
        for number in range(100):
            say(type="assistant", message={"id": f"m{number // 2}", "content": []})
            time.sleep(0.05)
    """
    error = run_and_fail(program(tmp_path, code), changes={"max_turns": 2}, **STREAM)

    assert isinstance(error, PermanentAgentError)
    assert error.error_code == "max_turns"


def test_the_command_may_contain_the_number_of_turns(tmp_path: Path) -> None:
    command = [*program(tmp_path, "print(sys.argv[1:])"), ["--max-turns", "{max_turns}"]]

    assert run(command, changes={"max_turns": 7}).output.content == "['--max-turns', '7']"
    assert run(command).output.content == "[]"


def test_a_program_that_reports_exhausted_turns_fails_with_that_code(tmp_path: Path) -> None:
    code = 'say(type="result", subtype="error_max_turns", is_error=True)\nsys.exit(1)'

    assert run_and_fail(program(tmp_path, code), **STREAM).error_code == "max_turns"
