"""Command-line agents: small programs that a test writes to a folder."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from agents.command_line.processes import RUN_ID
from agents.contracts import AdapterSettings, AgentRequest, Callback

ROOT = Path(__file__).parents[1]
NOTE_KEEPER = [
    sys.executable,
    str(ROOT / "examples" / "agents" / "note_keeper" / "note_keeper.py"),
    ["--model", "{model}"],
]
TOKEN = "callback-token-0123456789"
KEY = "model-key-0123456789"

#: The first lines of every program.
BEGINNING = """
    import json, os, signal, subprocess, sys, time
    def say(**event):
        print(json.dumps(event), flush=True)
"""


def program(folder: Path, text: str) -> list[Any]:
    """Write a program with this text and return its command, to which arguments such as `{model}` can be added."""
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


def processes_of(run_id: object) -> Sequence[psutil.Process]:
    """Return every process of the run, including detached ones."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_ID) == str(run_id) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes
