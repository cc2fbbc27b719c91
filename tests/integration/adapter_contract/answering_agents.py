"""Agents behind three adapters that do what a test says and remember the request they received."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from agents.contracts import (
    AdapterSettings,
    AgentRequest,
    Callback,
)
from tests.programs import program

TOKEN = "callback-token-0123456789"
MAX_BYTES = 20_000


def a_request(settings: AdapterSettings, **changes: Any) -> AgentRequest:
    request = AgentRequest(
        tenant_id=uuid4(),
        activity_id=uuid4(),
        run_id=uuid4(),
        idempotency_key="wake-1",
        agent_role="seo",
        attempt=2,
        prompt="Write a title.\nKeep it short.",
        settings=settings,
        callback=Callback("https://orchestrator.example/api/v1/agent-runs/1/", TOKEN),
        timeout_seconds=20,
        deadline=datetime.now(UTC) + timedelta(seconds=20),
        params={"keyword": "tea"},
    )
    return replace(request, **changes)


@dataclass
class Behaviour:
    """What an agent does: the response of an HTTP server or a program, and what a function returns or raises."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    returns: Any = None
    raises: Exception | None = None


class Agent(Protocol):
    """A running agent. `behave` scripts it and returns the settings that reach it; `received` is its last request."""

    def behave(self, behaviour: Behaviour) -> AdapterSettings: ...

    def received(self) -> dict[str, Any]: ...


class HttpAgent:
    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self._jobs: list[dict[str, Any]] = []

    def behave(self, behaviour: Behaviour) -> AdapterSettings:
        def answer(request: Request) -> Response:
            self._jobs.append(json.loads(request.data))
            body = behaviour.body if isinstance(behaviour.body, str | bytes) else json.dumps(behaviour.body)
            return Response(body, status=behaviour.status, headers=behaviour.headers)

        self._server.expect_request("/run").respond_with_handler(answer)
        return AdapterSettings("http", self._server.url_for("/run"))

    def received(self) -> dict[str, Any]:
        job = self._jobs[-1]
        return {
            "role": job["agent"],
            "params": job["params"],
            "prompt": job["prompt"],
            "run": UUID(job["execution_id"]),
        }


class InlineAgent:
    def __init__(self) -> None:
        self._requests: list[AgentRequest] = []

    def behave(self, behaviour: Behaviour) -> AdapterSettings:
        def run(request: AgentRequest) -> Any:
            self._requests.append(request)
            if behaviour.raises is not None:
                raise behaviour.raises
            return behaviour.returns

        return AdapterSettings("inline", place_function(run))

    def received(self) -> dict[str, Any]:
        request = self._requests[-1]
        return {
            "role": request.agent_role,
            "params": request.params,
            "prompt": request.prompt,
            "run": request.run_id,
        }


class CliAgent:
    """A program that copies its job to a file, prints the body of an answer, and has exit codes for statuses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def behave(self, behaviour: Behaviour) -> AdapterSettings:
        if behaviour.status == 202:
            pytest.skip("the worker waits for a program, so none accepts work to do it later")
        body = behaviour.body if isinstance(behaviour.body, str) else json.dumps(behaviour.body)
        (self._folder / "body").write_text(body)
        slow = isinstance(behaviour.raises, TimeoutError)
        code = f"""
            import shutil
            shutil.copy(sys.argv[1], {str(self._folder / "job")!r})
            time.sleep({10 if slow else 0})
            failed = {behaviour.status} != 200
            (sys.stderr if failed else sys.stdout).write(open({str(self._folder / "body")!r}).read())
            sys.exit({behaviour.status} // 100 if failed else 0)
        """
        options = {
            "command": [*program(self._folder, code), "{job_file}"],
            "output": "json",
            "permanent_exit_codes": [4],
            "session_invalid": "session_invalid",
            "rate_limited": "null" if behaviour.status == 429 else "no such text",
            "retry_after_seconds": 7,
        }
        return AdapterSettings("cli", options=options)

    def received(self) -> dict[str, Any]:
        job = json.loads((self._folder / "job").read_text())
        return {
            "role": job["agent"],
            "params": job["params"],
            "prompt": job["prompt"],
            "run": UUID(job["execution_id"]),
        }


def place_function(function: Callable[..., Any], module: str = "inline_agents.placed") -> str:
    """Make the function importable under a new name and return its endpoint."""
    name = f"run_{uuid4().hex}"
    home = sys.modules.setdefault(module, ModuleType(module))
    function.__module__ = module
    setattr(home, name, function)
    return f"{module}:{name}"
