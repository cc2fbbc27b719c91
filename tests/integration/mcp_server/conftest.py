"""The MCP server before the real application, asked by the official SDK's own client."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from agents.contracts import Accepted
from orchestrator.mcp import api
from tenants import tokens
from tenants.models import Tenant
from tests.engine import Engine
from tests.live import live
from tests.questions import Questions

if TYPE_CHECKING:
    from tests.integration.mcp_server.assistants import Asker

if importlib.util.find_spec("mcp") is None:
    collect_ignore_glob = ["test_*.py"]  # pip install orchestrator[mcp]; requirements/dev.txt has it


@pytest.fixture
def site(database: None) -> Iterator[str]:
    with live() as address:
        yield address


@pytest.fixture
def token_of(request: pytest.FixtureRequest, database: None) -> Callable[..., str]:
    """`token_of(role, tenant)`: a personal token; without a tenant for the fixture `tenant`."""

    def made(role: str = "admin", tenant: Tenant | None = None, **token: Any) -> str:
        owner = tenant or request.getfixturevalue("tenant")
        return tokens.create(owner, role, f"{role} of {owner.slug}", **token)[1]

    return made


@pytest.fixture
def person(site: str, token_of: Callable[..., str]) -> Callable[..., Asker]:
    """`person(role, tenant)`: an assistant with the personal token of such a person."""
    from tests.integration.mcp_server.assistants import Asker

    return lambda *which, **more: Asker(api.access_of_person(site, token_of(*which, **more)))


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


@pytest.fixture
def questions(engine: Engine, tenant: Tenant) -> Questions:
    return Questions(engine, tenant)


@pytest.fixture
def at_work(engine: Engine, acme: Tenant, site: str) -> Callable[..., tuple[Any, Asker]]:
    """`at_work(**fields)`: an activity whose agent has accepted it, and that agent with the token of the run."""

    from tests.integration.mcp_server.assistants import Asker, of_run

    def accepted(**fields: Any) -> tuple[Any, Asker]:
        (activity_id,) = engine.submit(acme, **fields)
        engine.drain()
        return activity_id, Asker(of_run(site, engine.agent.calls[-1]))

    return accepted
