"""A call ends at its deadline or when its run is cancelled, whatever the server does."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from agents.exceptions import (
    AgentError,
    RetryableAgentError,
)
from agents.outbound import budget, policy, transport
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

    with pytest.raises(RetryableAgentError, match=r"agent\.internal was not resolved in time"):
        transport.resolve_permitted(policy.current(), "agent.internal", 80, seconds=0.1)
    with pytest.raises(RetryableAgentError):
        post("http://agent.internal:80/", seconds=0.4)

    assert not hold.is_set()
    hold.set()


def test_a_connection_attempt_without_a_reply_ends_at_the_deadline(
    serve: Serve, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 3600.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        settings.ORCHESTRATOR_EGRESS_ALLOW = (f"127.0.0.1:{port}",)
        # Because nobody accepts, the queue is full after the first.
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))

        with pytest.raises(RetryableAgentError) as caught:
            post(f"http://127.0.0.1:{port}/", seconds=0.4)

        assert caught.value.error_code == "agent_timeout"
        for one in waiting:
            one.close()


@pytest.mark.parametrize("slow", ["silent", "dripping body"])
def test_a_cancelled_run_ends_a_call_to_a_slow_server(
    slow: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.05)
    server = serve(SLOW[slow])
    checks: list[int] = []

    def is_cancelled() -> bool:
        checks.append(1)
        return len(checks) == 3

    with pytest.raises(AgentError) as caught:
        post(server.url, cancelled=is_cancelled)

    assert caught.value.error_code == "run_cancelled"
    assert not caught.value.retryable
    assert len(checks) == 3


def test_cancellation_is_checked_once_a_second_and_not_at_every_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, checks = [100.0], list[float]()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now[0]))
    call = budget.Budget(60.0, 1_000, lambda: bool(checks.append(now[0])))  # type: ignore[func-returns-value]

    for _ in range(350):  # chunks, of which a hundred arrive in a second
        now[0] += 0.01
        call.wait()

    assert len(checks) == 3


def test_cancellation_is_not_checked_during_a_quick_call(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 3600.0)
    server = serve(answering(ok(b"1")))

    assert post(server.url, cancelled=lambda: pytest.fail("checked")).body == b"1"
