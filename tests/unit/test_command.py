"""The command line of the project."""

from __future__ import annotations

import os
import sys

import pytest

from orchestrator import command


def test_a_command_whose_output_nobody_reads_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "argv", ["manage.py", "version"])
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))

    with pytest.raises(SystemExit) as ended:
        command.main()

    assert ended.value.code == 1
    sys.stdout.close()  # writes what is left, as Python does at the end


def test_an_interrupted_command_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "execute_from_command_line", interrupted)
    monkeypatch.setattr(sys, "argv", ["manage.py", "replay", "failures", "--all"])

    with pytest.raises(SystemExit) as ended:
        command.main()

    assert ended.value.code == 130


def test_another_broken_pipe_is_not_taken_for_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(command, "execute_from_command_line", fail)
    monkeypatch.setattr(sys, "argv", ["manage.py", "version"])

    with pytest.raises(BrokenPipeError):
        command.main()
