"""The examples of the agent protocol run as they stand in the documentation, against a server that listens."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from django.core.wsgi import get_wsgi_application
from django.db import connections

from activities import run_logs, run_tokens
from activities.run_tokens import RunToken
from agents.contracts import Accepted
from tenants.models import Tenant
from tests.engine import Engine

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "agent-protocol.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", DOCUMENT, re.MULTILINE | re.DOTALL))
#: What becomes of the activity whose agent uses the tool.
FOLLOWS = {
    "report_blocker": "blocked",
    "create_subtask": "awaiting_subtask",
    "request_human_review": "awaiting_review",
    "create_approval": "awaiting_review",
    "reassign_task": "reassigned",
}


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def answer_and_let_go(environ: Any, start_response: Any) -> list[bytes]:
    """The application, for a thread that keeps no connection to the database behind the test's back."""
    try:
        return [b"".join(get_wsgi_application()(environ, start_response))]
    finally:
        connections.close_all()


@pytest.fixture
def listening(database: None) -> Iterator[str]:
    with make_server("127.0.0.1", 0, answer_and_let_go, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def block(section: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def preface() -> str:
    return block(DOCUMENT[DOCUMENT.index("The examples run unchanged") :], "python")


def test_every_tool_has_its_example() -> None:
    assert SECTIONS.keys() == FOLLOWS.keys()


def test_the_example_of_a_log_is_kept(engine: Engine, tenant: Tenant, listening: str) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(tenant)
    engine.drain()
    run_id = engine.agent.calls[0].run_id
    callback = run_tokens.issue(
        RunToken(tenant.pk, activity_id, run_id, engine.get(tenant, activity_id).fence)
    )
    url = listening + callback.url[callback.url.index("/api/") :]
    (section,) = re.findall(r"^## The log\n(.*?)(?=^## )", DOCUMENT, re.MULTILINE | re.DOTALL)

    done = subprocess.run(
        [sys.executable, "-c", block(section, "python")],
        env={**os.environ, "CALLBACK_URL": url, "CALLBACK_TOKEN": callback.token},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout)["accepted"] == 2
    assert [line.kind for line in run_logs.read(tenant.pk, run_id).lines] == ["text", "tool_call"]


@pytest.mark.parametrize("language", ["python", "sh"])
@pytest.mark.parametrize("tool", FOLLOWS)
def test_the_example_of_a_tool_does_what_it_says(
    engine: Engine, tenant: Tenant, listening: str, tool: str, language: str
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(tenant)
    engine.drain()
    request = engine.agent.calls[0]
    callback = run_tokens.issue(
        RunToken(tenant.pk, activity_id, request.run_id, engine.get(tenant, activity_id).fence)
    )
    path = callback.url[callback.url.index("/api/") :]
    example = block(SECTIONS[tool], language)
    command = [sys.executable, "-c", preface() + example] if language == "python" else ["sh", "-c", example]

    done = subprocess.run(
        command,
        env={**os.environ, "CALLBACK_URL": listening + path, "CALLBACK_TOKEN": callback.token},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout) if language == "sh" else ast.literal_eval(done.stdout)
    assert (answer["status"], answer["stop"]) == (FOLLOWS[tool], True)
    assert engine.get(tenant, activity_id).status == FOLLOWS[tool]
