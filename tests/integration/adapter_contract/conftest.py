"""Agents behind the adapters, and limits that tests can reach."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from agents import outbound
from tests.integration.adapter_contract.answering_agents import (
    MAX_BYTES,
    Agent,
    CliAgent,
    HttpAgent,
    InlineAgent,
)


@pytest.fixture(autouse=True)
def limits(settings: Any) -> Iterator[None]:
    settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES = MAX_BYTES
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("agents.samples",)
    yield
    outbound.close_connections()


@pytest.fixture
def http_agent(httpserver: HTTPServer, settings: Any) -> HttpAgent:
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"{httpserver.host}:{httpserver.port}",)
    return HttpAgent(httpserver)


@pytest.fixture
def inline_agent(settings: Any) -> InlineAgent:
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("agents.samples", "inline_agents")
    return InlineAgent()


@pytest.fixture
def cli_agent(settings: Any, tmp_path: Path) -> CliAgent:
    settings.ORCHESTRATOR_HOME = tmp_path / "home"
    settings.ORCHESTRATOR_CLI_COMMANDS = (sys.executable,)
    return CliAgent(tmp_path)


@pytest.fixture(params=["http", "inline", "cli"])
def agent(request: pytest.FixtureRequest) -> Agent:
    agent_of_kind: Agent = request.getfixturevalue(f"{request.param}_agent")
    return agent_of_kind
