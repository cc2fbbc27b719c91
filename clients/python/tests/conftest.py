"""What the tests of the client share: the server that it talks to, and clients that speak for tenants.

The fixtures `tenant`, `engine` and so on come from the repository's own conftest.py: the server is the real one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tenants import tokens
from tests.engine import Engine
from tests.pages import serve_site

from orchestrator_client import Client


@pytest.fixture
def server(database: None) -> Iterator[str]:
    """The address of the real application, on a port of its own."""
    with serve_site() as address:
        yield address


@pytest.fixture
def token_of(request: pytest.FixtureRequest, database: None) -> Callable[..., str]:
    """`token_of(role, tenant)`: a bearer token; without a tenant for the fixture `tenant`."""

    def made(role: str = "admin", tenant: Any = None) -> str:
        owner = tenant or request.getfixturevalue("tenant")
        return tokens.create(owner, role, f"{role} of {owner.slug}")[1]

    return made


@pytest.fixture
def client(server: str, token_of: Callable[..., str]) -> Iterator[Client]:
    """For an admin of the fixture `tenant`."""
    # Nobody's certificate is looked at here, and reading those of the machine takes longer than most of these tests.
    with Client(server, token_of(), max_retries=0, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as made:
        yield made


@pytest.fixture
def engine(database: None) -> Iterator[Engine]:
    """Two roles, a scripted agent."""
    running = Engine(["qa", "seo"])
    yield running
    running.close()
