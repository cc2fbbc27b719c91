"""Command-line agents of tests: small programs, written to a folder and set up as an operator would."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from agents.command_line.processes import RUN_ID
from agents.contracts import AdapterSettings, AgentRequest, Callback, ToolAnswer, ToolCall, Usage

ROOT = Path(__file__).parents[1]
NOTE_KEEPER = [
    sys.executable,
    str(ROOT / "examples" / "agents" / "note_keeper" / "note_keeper.py"),
    ["--model", "{model}"],
]
TOKEN = "callback-token-0123456789"
KEY = "model-key-0123456789"

#: What every program of a test begins with.
BEGINNING = """
    import json, os, signal, subprocess, sys, time
    def say(**event):
        print(json.dumps(event), flush=True)
"""


def program(folder: Path, text: str) -> list[Any]:
    """The command of a program with this text; `{model}` and the like can follow it."""
    file = folder / f"program_{uuid4().hex[:8]}.py"
    file.write_text(textwrap.dedent(BEGINNING) + textwrap.dedent(text))
    return [sys.executable, "-S", str(file)]


def a_request(options: dict[str, Any], **changes: Any) -> AgentRequest:
    request = AgentRequest(
        tenant_id=uuid4(), activity_id=uuid4(), run_id=uuid4(), idempotency_key="wake-1", agent_role="dev", attempt=1,
        prompt="Count the bees. Then rest.", callback=Callback("http://127.0.0.1:1/api/v1/agent-runs/1/", TOKEN), timeout_seconds=20,
        settings=AdapterSettings("cli", auth={"type": "bearer", "token": KEY}, options=options),
        deadline=datetime.now(UTC) + timedelta(seconds=20),
    )  # fmt: skip
    return replace(request, **changes)


@dataclass
class Linked:
    """A link that records its calls and answers as the test says."""

    sessions: list[str] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    progress: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    stop: Callable[[], str | None] = lambda: None
    stop_spending: Callable[[Usage], str | None] = lambda usage: None

    def stop_reason(self) -> str | None:
        return self.stop()

    def saw_session(self, session_id: str) -> None:
        self.sessions.append(session_id)

    def count_usage(self, usage: Usage) -> str | None:
        self.usages.append(usage)
        return self.stop_spending(usage)

    def note_progress(self, progress: dict[str, Any]) -> None:
        self.progress |= progress

    def log(self, kind: str, text: str) -> None:
        self.lines += [(kind, line) for line in text.split("\n")]

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        raise AssertionError("programs call tools over HTTP")


def processes_of(run_id: object) -> Sequence[psutil.Process]:
    """Every process that belongs to the run, wherever it has gone."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_ID) == str(run_id) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
