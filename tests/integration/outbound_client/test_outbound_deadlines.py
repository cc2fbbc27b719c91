"""A call ends at its deadline or when its run is cancelled, whatever the server does."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from agents.exceptions import (
    AgentError,
    RetryableAgentError,
)
from agents.outbound import budget, transport
from tests.integration.outbound_client.peers import SLOW, Serve, answering, ok, post


def _wait(event: threading.Event) -> None:
    event.wait(20)


@pytest.mark.parametrize("slow", list(SLOW))
def test_a_slow_answer_ends_at_the_deadline(slow: str, serve: Serve) -> None:
    server = serve(SLOW[slow])
    start = time.monotonic()

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url, seconds=0.4)

    assert caught.value.error_code == "agent_timeout"
    assert time.monotonic() - start < 15  # because the server waits 20


def test_a_request_that_the_server_does_not_read_ends_at_the_deadline(serve: Serve) -> None:
    hold = threading.Event()
    server = serve(lambda connection: _wait(hold))

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url, seconds=0.4, body=b"x" * 20_000_000)

    hold.set()
    assert caught.value.error_code == "agent_timeout"


def test_a_lookup_without_an_answer_ends_at_the_deadline(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = threading.Event()
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("agent.internal:80",)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *rest, **more: _wait(hold))

    start = time.monotonic()

    with pytest.raises(RetryableAgentError, match=r"agent\.internal was not resolved in time"):
        # A busy machine needs time to reach the lookup.
        post("http://agent.internal:80/", seconds=1.5)

    hold.set()
    assert time.monotonic() - start < 15  # because the server waits 20


def test_a_connection_attempt_without_a_reply_ends_at_the_deadline(serve: Serve, settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        settings.ORCHESTRATOR_EGRESS_ALLOW = (f"127.0.0.1:{port}",)
        # Because nobody accepts, the queue is full after the first.
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))

        start = time.monotonic()

        with pytest.raises(RetryableAgentError) as caught:
            post(f"http://127.0.0.1:{port}/", seconds=0.4)

        assert caught.value.error_code == "agent_timeout"
        assert time.monotonic() - start < transport.CONNECT_SECONDS
        for one in waiting:
            one.close()


def test_a_cancelled_run_ends_a_call_to_a_silent_server(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.05)
    server = serve(SLOW["silent"])
    checks: list[int] = []

    def is_cancelled() -> bool:
        checks.append(1)
        return len(checks) == 3

    with pytest.raises(AgentError) as caught:
        post(server.url, cancelled=is_cancelled)

    assert caught.value.error_code == "run_cancelled"
    assert not caught.value.retryable
    assert len(checks) == 3


def test_cancellation_is_not_checked_at_every_chunk(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.2)
    server = serve(SLOW["dripping body"])
    checks: list[int] = []

    with pytest.raises(RetryableAgentError):
        post(server.url, seconds=0.7, cancelled=lambda: bool(checks.append(1)))  # type: ignore[func-returns-value]

    assert 1 <= len(checks) <= 3


def test_cancellation_is_not_checked_during_a_quick_call(serve: Serve) -> None:
    server = serve(answering(ok(b"1")))

    assert post(server.url, cancelled=lambda: pytest.fail("checked")).body == b"1"
