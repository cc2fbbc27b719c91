"""No address may be called. Names resolve as the test says, and no internal listener may be reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import outbound
from agents.outbound import policy
from tests.hostile_addresses import HOSTILE_URLS, Listener, Names, controlled_names


@pytest.fixture(autouse=True)
def no_outside_world(settings: Any) -> Iterator[None]:
    settings.ORCHESTRATOR_EGRESS_ALLOW = settings.ORCHESTRATOR_EGRESS_DENY = ()
    settings.ORCHESTRATOR_EGRESS_CA_FILE = None
    yield
    outbound.close_connections()


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    with controlled_names(monkeypatch) as controlled:
        yield controlled


@pytest.fixture(autouse=True)
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """An internal server at an allowed port. No test may connect to it."""
    listening = Listener()
    monkeypatch.setattr(policy, "PORTS", policy.PORTS | {listening.port})
    yield listening
    listening.close()
    assert listening.connections == 0


@pytest.fixture
def hostile(listener: Listener) -> tuple[str, ...]:
    own = [f"{host}:{listener.port}/run" for host in ("127.0.0.1", "[::1]", "localhost", "loop.example")]
    return (*HOSTILE_URLS, *(f"{scheme}://{place}" for place in own for scheme in ("http", "https")))
