"""The container checks say what they could not check, and find errors of the configuration without an engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.containers import __main__ as command
from tests.containers import compose, engine
from tests.containers.engine import Results


def test_the_shipped_compose_file_passes_every_check_that_needs_no_engine() -> None:
    tell = Results()

    compose.validate(tell)

    assert tell.failures == []


@pytest.mark.parametrize(
    ("good", "bad", "seen"),
    [
        (
            "    restart: unless-stopped\n    healthcheck:",
            "    restart: unless-stopped\n    checked:",
            "health check",
        ),
        ('"127.0.0.1:${PORT:-8000}:8000"', '"${PORT:-8000}:8000"', "port"),
        ("SECRET_KEY: ${SECRET_KEY:?set it in .env}", "SECRET_KEY: short", "would start"),
    ],
    ids=["health", "port", "secret"],
)
def test_an_error_in_the_compose_file_is_reported(
    good: str, bad: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = compose.FILE.read_text(encoding="utf-8")
    assert good in text
    (tmp_path / "docker-compose.yml").write_text(text.replace(good, bad), encoding="utf-8")
    monkeypatch.setattr(compose, "FILE", tmp_path / "docker-compose.yml")
    tell = Results()

    compose.validate(tell)

    assert [failure for failure in tell.failures if seen in failure]


def test_without_an_engine_the_check_names_what_is_missing_and_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine.shutil, "which", lambda program: None)
    monkeypatch.setattr(engine, "HELPERS", ())
    monkeypatch.setattr(sys, "argv", ["containers", "compose"])

    assert command.main() == command.NOT_CHECKED
    output = capsys.readouterr().out
    assert "podman (apt install podman)" in output
    assert "Only the configuration was checked" in output


def test_variables_are_expanded_as_compose_does() -> None:
    text = compose.expand("a ${ONE:?needed} ${TWO:-two} ${THREE:-} $$HOME", {"ONE": "1", "THREE": "3"})

    assert text == "a 1 two 3 $HOME"
