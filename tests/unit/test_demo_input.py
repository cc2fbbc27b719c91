"""The demonstration looks at its input text before it starts anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.demo.input_text import LONGEST_INPUT, InputRefused, check_argument
from tests.architecture import tree


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
def test_a_wrong_input_is_refused_before_any_server_is_started(tmp_path: Path, command: str) -> None:
    text, home = tmp_path / "none.md", tmp_path / "home"
    unset = ("DATABASE_URL", "REDIS_URL", "MONGODB_URI", "CELERY_BROKER_URL", "DJANGO_SETTINGS_MODULE")
    environment = {name: value for name, value in os.environ.items() if name not in unset}

    ended = subprocess.run(
        [sys.executable, "manage.py", command, f"--input={text}"],
        cwd=tree.ROOT,
        env={**environment, "ORCHESTRATOR_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (ended.returncode, "cannot be read" in ended.stderr, "Traceback" in ended.stderr) == (
        1,
        True,
        False,
    ), ended.stderr
    assert str(text) in ended.stderr
    assert not home.exists(), "the servers keep their files there"
