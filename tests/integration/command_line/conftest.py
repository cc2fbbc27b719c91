"""A home for the files of programs, and short intervals between checks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agents.adapters import cli
from agents.command_line import processes


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.ORCHESTRATOR_HOME = tmp_path / "home"
    settings.ORCHESTRATOR_CLI_COMMANDS = (sys.executable,)
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(processes, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(processes, "SAMPLE_COST", 2)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(cli, "REPORT_SECONDS", 0.05)
