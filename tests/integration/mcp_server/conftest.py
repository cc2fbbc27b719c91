"""The MCP server in front of the real application, called by the official SDK's client."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.mcp import api
from tenants import tokens
from tenants.models import Tenant
from tests.engine import Engine
from tests.pages import serve_site
from tests.questions import Questions

if TYPE_CHECKING:
    from tests.integration.mcp_server.assistants import Assistant

if importlib.util.find_spec("mcp") is None:
    collect_ignore_glob = ["test_*.py"]  # pip install orchestrator[mcp]; requirements/dev.txt has it


@pytest.fixture
def site(database: None) -> Iterator[str]:
    with serve_site() as address:
        yield address


@pytest.fixture
def token_of(request: pytest.FixtureRequest, database: None) -> Callable[..., str]:
    """`token_of(role, tenant)` creates a personal token, by default for the fixture `tenant`."""

    def create_token(role: str = "admin", tenant: Tenant | None = None, **token: Any) -> str:
        owner = tenant or request.getfixturevalue("tenant")
        return tokens.create(owner, role, f"{role} of {owner.slug}", **token)[1]

    return create_token


@pytest.fixture
def person(site: str, token_of: Callable[..., str]) -> Callable[..., Assistant]:
    """`person(role, tenant)` returns an assistant with the personal token of such a person."""
    from tests.integration.mcp_server.assistants import Assistant

    return lambda *which, **more: Assistant(api.access_of_person(site, token_of(*which, **more)))


@pytest.fixture
def questions(engine: Engine, tenant: Tenant) -> Questions:
    return Questions(engine, tenant)


@pytest.fixture
def accept_work(
    engine: Engine, acme: Tenant, agent_accepts: None, site: str
) -> Callable[..., tuple[Any, Assistant]]:
    """`accept_work(**fields)` returns an activity that its agent has accepted, and that agent with the token of the run."""

    from tests.integration.mcp_server.assistants import Assistant, access_of_run_request

    def submit(**fields: Any) -> tuple[Any, Assistant]:
        (activity_id,) = engine.submit(acme, **fields)
        engine.drain()
        return activity_id, Assistant(access_of_run_request(site, engine.agent.calls[-1]))

    return submit
