"""The demonstration looks at its input text before it starts anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator import command as command_line
from orchestrator.demo.input_text import LONGEST_INPUT, InputRefused, check_argument


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.md", None, "cannot be read"),
        ("empty.md", b" \n", "is empty"),
        ("latin.md", "é".encode("latin-1"), "is not UTF-8 text"),
        ("long.md", b"x" * (LONGEST_INPUT + 1), "takes at most"),
    ],
)
def test_a_wrong_input_is_refused_with_its_name(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    text = tmp_path / name
    if content is not None:
        text.write_bytes(content)

    with pytest.raises(InputRefused, match=says) as refused:
        check_argument([f"--input={text}"])

    assert str(text) in str(refused.value)


@pytest.mark.parametrize("command", ["demo", "demo_model"])
def test_a_wrong_input_is_refused_before_any_server_is_started(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "none.md"
    monkeypatch.setattr(sys, "argv", ["manage.py", command, f"--input={text}"])
    monkeypatch.setattr(command_line, "execute_from_command_line", lambda argv: pytest.fail("it was started"))

    with pytest.raises(SystemExit, match="cannot be read") as ended:
        command_line.main()

    assert str(text) in str(ended.value)
