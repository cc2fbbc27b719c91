"""A model provider, and an agent behind each adapter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pytest_httpserver import HTTPServer

from agents import outbound
from agents.governor import providers
from agents.outbound import budget
from benchmarks.fake_provider import FakeProvider
from tests import cleaning
from tests.subjects import KEY, SUBJECTS, Subject, make_subject

if TYPE_CHECKING:
    from tests.a2a_agent import A2AAgent


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    """A fake provider that accepts calls with its key."""
    with FakeProvider(key=KEY) as running:
        yield running


@pytest.fixture(autouse=True)
def reachable(
    settings: Any, monkeypatch: pytest.MonkeyPatch, httpserver: HTTPServer, provider: FakeProvider
) -> Iterator[None]:
    """Allow calls to the two test servers, and notice a cancelled call soon. Redis is emptied afterwards."""
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"{httpserver.host}:{httpserver.port}", provider.place)
    settings.ORCHESTRATOR_INLINE_CALLABLES = ("tests",)
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.05)
    providers._noted.clear()
    yield
    outbound.close_connections()
    cleaning.empty_redis()


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    """An agent behind each adapter in turn."""
    return make_subject(request.param, request)


@pytest.fixture
def a2a_agent(settings: Any) -> Iterator[A2AAgent]:
    """An agent of the Agent2Agent protocol on its own server."""
    from tests.a2a_agent import A2AAgent

    with A2AAgent() as agent:
        settings.ORCHESTRATOR_EGRESS_ALLOW += (agent.place,)
        yield agent


@pytest.fixture(params=["anthropic", "openai"])
def model(request: pytest.FixtureRequest) -> Subject:
    """An agent behind each adapter for models in turn."""
    return make_subject(request.param, request)
