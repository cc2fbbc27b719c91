"""How a program ends, with all that it has started; what stays of it."""

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
from tests.integration.command_line.calls import STREAM, failing, run
from tests.programs import NOTE_KEEPER, Linked, a_request, processes_of, program

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
    assert time.monotonic() - began < 30  # of its 60


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
    assert time.monotonic() - began < 30  # of 60: the child had the other end of its output


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
    assert nice.output.content == str(os.nice(0) + 7)  # beyond our own


def peak_of(link: Linked) -> int:
    """The memory measured so far."""
    peak: int = link.progress.get("resources", {}).get("peak_rss_bytes", 0)
    return peak


def test_what_was_used_is_noted_with_the_children(tmp_path: Path) -> None:
    measured = tmp_path / "measured"
    child = f"x = b'x' * (80 << 20); import os, time\nwhile not os.path.exists({str(measured)!r}): time.sleep(0.01)"
    code = f"""
        child = subprocess.Popen([sys.executable, "-S", "-c", {child!r}])
        until = time.process_time() + 0.2
        while time.process_time() < until: pass
        child.wait()
    """
    link = Linked()
    link.stop = lambda: measured.touch() if peak_of(link) > 80 << 20 else None

    run(program(tmp_path, code), link)

    used = link.progress["resources"]
    assert used["peak_rss_bytes"] > 80 << 20
    assert used["cpu_seconds"] >= 0.2
    assert used["processes"] >= 2


def test_a_small_program_is_not_told_to_have_had_the_memory_of_its_worker(tmp_path: Path) -> None:
    """The kernel's own account of a program begins with the fork, when it is as large as who started it."""
    ballast = b"x" * (200 << 20)
    link = Linked()

    measured = tmp_path / "measured"
    link.stop = lambda: measured.touch() if peak_of(link) > 2 << 20 else None

    run(program(tmp_path, f"while not os.path.exists({str(measured)!r}): time.sleep(0.01)"), link)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > len(ballast)
    assert 2 << 20 < link.progress["resources"]["peak_rss_bytes"] < 100 << 20


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
    assert transcripts.delete_before(request.tenant_id, time.time() + 60, most=10) == 1
    assert transcripts.read(request.tenant_id, request.run_id) is None


def test_no_file_of_a_run_stays(tmp_path: Path, home: Path) -> None:
    run(program(tmp_path, "open('left', 'w').write('x'); os.mkdir('d'); os.chmod('d', 0)"))

    assert list((home / "agents" / "runs").iterdir()) == []


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
    swept = tmp_path / "swept"
    numbers: list[int] = []

    def sweep() -> None:
        numbers.append(workspaces.sweep())
        swept.touch()

    code = f"""
        while not os.path.exists({str(swept)!r}): time.sleep(0.01)
        print(sys.stdin.read())
    """
    assert run(program(tmp_path, code), Linked(stop=sweep)).output.content
    assert set(numbers) == {0}


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
