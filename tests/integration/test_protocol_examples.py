"""The examples of the agent protocol run unchanged from the documentation, against a real server."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from activities import run_logs, run_tokens
from activities.run_tokens import RunToken
from agents.contracts import Accepted
from tenants.models import Tenant
from tests.engine import Engine
from tests.pages import serve_site

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "agent-protocol.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", DOCUMENT, re.MULTILINE | re.DOTALL))
#: The status of the activity after its agent has used the tool.
STATUS_AFTER = {
    "report_blocker": "blocked",
    "create_subtask": "awaiting_subtask",
    "request_human_review": "awaiting_review",
    "create_approval": "awaiting_review",
    "reassign_task": "reassigned",
}


@pytest.fixture
def run(engine: Engine, tenant: Tenant) -> RunToken:
    """A run that its agent has accepted."""
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(tenant)
    engine.drain()
    fence = engine.get(tenant, activity_id).fence
    return RunToken(tenant.pk, activity_id, engine.agent.calls[0].run_id, fence)


def output_of(command: list[str], run: RunToken) -> str:
    """Run an example as the agent of this run; return what it prints."""
    callback = run_tokens.issuing(run)()
    with serve_site() as address:
        url = address + callback.url[callback.url.index("/api/") :]
        process = subprocess.run(
            command,
            env={**os.environ, "CALLBACK_URL": url, "CALLBACK_TOKEN": callback.token},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert process.returncode == 0, process.stderr
    return process.stdout


def block(section: str, language: str) -> str:
    match = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert match is not None
    return match[1]


def test_every_tool_has_an_example() -> None:
    assert SECTIONS.keys() == STATUS_AFTER.keys()


def test_the_example_of_a_log_stores_its_lines(run: RunToken) -> None:
    (section,) = re.findall(r"^## The log\n(.*?)(?=^## )", DOCUMENT, re.MULTILINE | re.DOTALL)

    output = output_of([sys.executable, "-c", block(section, "python")], run)

    assert ast.literal_eval(output)["accepted"] == 2
    assert [line.kind for line in run_logs.read(run.tenant_id, run.run_id).lines] == ["text", "tool_call"]


@pytest.mark.parametrize("language", ["python", "sh"])
@pytest.mark.parametrize("tool", STATUS_AFTER)
def test_the_example_of_a_tool_leads_to_its_documented_status(
    engine: Engine, tenant: Tenant, run: RunToken, tool: str, language: str
) -> None:
    example = block(SECTIONS[tool], language)
    preface = block(DOCUMENT[DOCUMENT.index("The examples run unchanged") :], "python")
    command = [sys.executable, "-c", preface + example] if language == "python" else ["sh", "-c", example]

    output = output_of(command, run)

    answer = json.loads(output) if language == "sh" else ast.literal_eval(output)
    assert (answer["status"], answer["stop"]) == (STATUS_AFTER[tool], True)
    assert engine.get(tenant, run.activity_id).status == STATUS_AFTER[tool]
