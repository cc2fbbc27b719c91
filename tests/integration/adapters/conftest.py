"""A model provider, and an agent behind each adapter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from agents import outbound
from agents.governor import providers
from agents.outbound import budget
from benchmarks.fake_provider import FakeProvider
from tests import cleaning
from tests.subjects import (
    ADAPTERS,
    KEY,
    A2ASubject,
    AnthropicSubject,
    BatchSubject,
    HttpSubject,
    InlineSubject,
    ModelSubject,
    OpenAISubject,
    Subject,
)


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


@pytest.fixture(params=ADAPTERS)
def subject(request: pytest.FixtureRequest, httpserver: HTTPServer, provider: FakeProvider) -> Subject:
    """An agent behind each adapter in turn."""
    if request.param == "a2a":
        pytest.importorskip("a2a", reason="pip install orchestrator[a2a] for the adapter a2a")
        return request.getfixturevalue("a2a_subject")  # type: ignore[no-any-return]
    if request.param == "batch":
        pytest.importorskip("anthropic", reason="pip install orchestrator[llm] for the adapter batch")
        return BatchSubject(provider)
    if request.param in ("anthropic", "openai"):
        return model_subject(request.param, provider)
    return HttpSubject(httpserver) if request.param == "http" else InlineSubject()


@pytest.fixture
def a2a_subject(settings: Any) -> Iterator[A2ASubject]:
    """An agent of the Agent2Agent protocol on its own server."""
    from tests.a2a_agent import A2AAgent

    with A2AAgent() as agent:
        settings.ORCHESTRATOR_EGRESS_ALLOW += (agent.place,)
        yield A2ASubject(agent)


@pytest.fixture(params=["anthropic", "openai"])
def model(request: pytest.FixtureRequest, provider: FakeProvider) -> ModelSubject:
    """An agent behind each adapter for models in turn."""
    return model_subject(request.param, provider)


def model_subject(name: str, provider: FakeProvider) -> ModelSubject:
    pytest.importorskip(name, reason=f"pip install orchestrator[llm] for the adapter {name}")
    return AnthropicSubject(provider) if name == "anthropic" else OpenAISubject(provider)
