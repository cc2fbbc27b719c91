"""What the tests of the client share: the server that it talks to, and clients that speak for tenants.

The fixtures `tenant`, `engine` and so on come from the repository's own conftest.py: the server is the real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from django.core.wsgi import get_wsgi_application
from django.db import connections
from tenants import tokens
from tests.engine import Engine

from orchestrator_client import Client


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Threaded(ThreadingMixIn, WSGIServer):
    """Answers several at once; its threads are waited for when it closes."""

    daemon_threads = False


def answer_and_let_go(environ: Any, start_response: Any) -> list[bytes]:
    """The application, for threads that keep no connection to the database behind the test's back."""
    try:
        return [b"".join(get_wsgi_application()(environ, start_response))]
    finally:
        connections.close_all()


@pytest.fixture
def server(database: None) -> Iterator[str]:
    """The address of the real application, on a port of its own."""
    with make_server(
        "127.0.0.1", 0, answer_and_let_go, server_class=Threaded, handler_class=Quiet
    ) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


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
    with Client(server, token_of(), max_retries=0) as made:
        yield made


@pytest.fixture
def engine(database: None) -> Iterator[Engine]:
    """Two roles, a scripted agent."""
    running = Engine(["qa", "seo"])
    yield running
    running.close()
