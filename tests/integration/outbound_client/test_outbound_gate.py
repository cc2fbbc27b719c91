"""The limit of concurrent calls and the pool of connections follow the platform's settings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agents import outbound
from agents.contracts import HttpLimits
from agents.exceptions import AgentError, CallsAtLimit
from agents.outbound import budget
from tenants import keys, redis
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Places
from tests.engine import eventually
from tests.integration.outbound_client.peers import Serve, read_request


@pytest.fixture(autouse=True)
def _own_limits(settings: Any) -> Iterator[None]:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    outbound.close_connections()
    redis.client().delete(keys.places("calls"))
    yield
    budget._pending_releases.clear()
    redis.client().delete(keys.places("calls"))
    outbound.close_connections()
    budget.shared = budget.Gate()


class GatedServer:
    """The behaviour of a server that answers when the test opens it, and counts concurrent requests."""

    def __init__(self) -> None:
        self.opened, self.now, self.most, self.lock = threading.Event(), 0, 0, threading.Lock()

    def __call__(self, connection: Any) -> None:
        while True:
            read_request(connection)
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            self.opened.wait(20)
            with self.lock:
                self.now -= 1
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def call(url: str, limits: HttpLimits | None = None, seconds: float = 20, **more: Any) -> Any:
    return outbound.send(
        "POST", url, headers={}, body=b"{}", deadline_seconds=seconds, max_bytes=1_000, limits=limits, **more
    )


def test_no_more_calls_than_the_limit_run_at_once_and_all_complete(serve: Serve) -> None:
    gate = GatedServer()
    server = serve(gate)

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=3)) for _ in range(8)]
        eventually(lambda: gate.now == 3)
        assert budget.shared._inside == 3
        gate.opened.set()
        answers = [each.result().status for each in calls]

    assert answers == [200] * 8
    assert gate.most == 3
    assert budget.shared._inside == 0


# The same limit over all processes.


def test_all_processes_together_respect_the_limit(serve: Serve) -> None:
    gate = GatedServer()
    server = serve(gate)
    other_calls = ["worker-1", "worker-2"]
    assert all(budget.ALL_PROCESSES.take(3, each) for each in other_calls)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=3)) for _ in range(3)]
        eventually(lambda: gate.now == 1)
        assert not budget.ALL_PROCESSES.take(3, "worker-3")
        budget.ALL_PROCESSES.give_back(other_calls.pop())
        eventually(lambda: gate.now == 2)
        gate.opened.set()
        assert [each.result().status for each in calls] == [200] * 3

    assert gate.most == 2
    assert redis.client().zrange(keys.places("calls"), 0, -1) == [other_calls[0].encode()]


def test_the_place_of_a_dead_process_becomes_free(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = GatedServer()
    gate.opened.set()
    server = serve(gate)
    assert Places("calls", lease_seconds=3600).take(1, "dead")

    with pytest.raises(CallsAtLimit):
        call(server.url, HttpLimits(max_concurrent=1), seconds=0.1)
    redis.client().zadd(keys.places("calls"), {"dead": 1})  # its lease has expired
    assert call(server.url, HttpLimits(max_concurrent=1)).status == 200


def test_a_call_keeps_its_place_until_it_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "KEEP_SECONDS", 0.05)
    gate = GatedServer()
    server = serve(gate)

    def expiry() -> float:
        held = redis.client().zrange(keys.places("calls"), 0, -1, withscores=True)
        return float(held[0][1]) if held else 0.0

    with ThreadPoolExecutor(1) as pool:
        running_call = pool.submit(call, server.url, HttpLimits(max_concurrent=1))
        eventually(lambda: gate.now == 1)
        first = expiry()
        eventually(lambda: expiry() > first)
        assert not budget.ALL_PROCESSES.take(1, "another")
        gate.opened.set()
        assert running_call.result().status == 200
    assert budget.ALL_PROCESSES.take(1, "another")


def test_without_redis_each_process_enforces_the_limit_alone(
    serve: Serve, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert budget.ALL_PROCESSES.take(2, "worker-1")
    monkeypatch.setattr(budget, "_breaker", Breaker(seconds=3600.0))
    working_url, settings.REDIS_URL = settings.REDIS_URL, "redis://127.0.0.1:1/0"
    gate = GatedServer()
    server = serve(gate)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=2)) for _ in range(3)]
        eventually(lambda: gate.now == 2)
        gate.opened.set()
        assert [each.result().status for each in calls] == [200] * 3
    settings.REDIS_URL = working_url
    assert gate.most == 2


def test_places_of_calls_that_ended_without_redis_become_free_later(
    serve: Serve, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_breaker", Breaker(seconds=3600.0))
    gate = GatedServer()
    server = serve(gate)
    working_url = settings.REDIS_URL
    with ThreadPoolExecutor(1) as pool:
        running_call = pool.submit(call, server.url, HttpLimits(max_concurrent=1))
        eventually(lambda: gate.now == 1)
        settings.REDIS_URL = "redis://127.0.0.1:1/0"
        gate.opened.set()
        assert running_call.result().status == 200
    settings.REDIS_URL = working_url
    assert not budget.ALL_PROCESSES.take(1, "another")
    monkeypatch.setattr(budget, "_breaker", Breaker(seconds=3600.0))

    assert call(server.url, HttpLimits(max_concurrent=1)).status == 200
    assert budget.ALL_PROCESSES.take(1, "another")


def test_a_place_whose_grant_was_lost_is_returned(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_breaker", Breaker(seconds=0.0))
    gate = GatedServer()
    gate.opened.set()
    server = serve(gate)
    take = Places.take

    def take_and_fail(places: Places, most: int, who: str) -> bool:
        take(places, most, who)
        raise LimiterUnavailable("The answer was lost.")

    with monkeypatch.context() as patched:
        patched.setattr(Places, "take", take_and_fail)
        assert call(server.url, HttpLimits(max_concurrent=1)).status == 200

    assert budget.ALL_PROCESSES.take(1, "another")


def test_calls_to_webhooks_use_no_places_of_agents(serve: Serve) -> None:
    gate = GatedServer()
    gate.opened.set()
    server = serve(gate)
    assert budget.ALL_PROCESSES.take(1, "an agent's call")

    assert call(server.url, HttpLimits(max_concurrent=1), purpose=outbound.WEBHOOKS).status == 200


def test_a_raised_limit_admits_waiting_calls(serve: Serve) -> None:
    gate = GatedServer()
    server = serve(gate)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=1)) for _ in range(2)]
        eventually(lambda: gate.now == 1)
        calls.append(pool.submit(call, server.url, HttpLimits(max_concurrent=3)))
        eventually(lambda: gate.now == 3)
        gate.opened.set()
        assert [each.result().status for each in calls] == [200] * 3


def test_waiting_counts_towards_the_deadline_and_uses_no_attempt(serve: Serve) -> None:
    gate = GatedServer()
    server = serve(gate)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, server.url, HttpLimits(max_concurrent=1))
        eventually(lambda: gate.now == 1)
        with pytest.raises(CallsAtLimit, match="No more than 1 calls") as refusal:
            call(server.url, seconds=0.1)
        gate.opened.set()
        first.result()

    assert (refusal.value.retryable, refusal.value.uses_attempt, refusal.value.nothing_sent) == (
        True,
        False,
        True,
    )
    assert server.connections == 1


def test_a_cancelled_run_stops_waiting_for_a_place(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.01)
    gate = GatedServer()
    server = serve(gate)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, server.url, HttpLimits(max_concurrent=1))
        eventually(lambda: gate.now == 1)
        with pytest.raises(AgentError) as refusal:
            call(server.url, cancelled=lambda: True)
        gate.opened.set()
        first.result()

    assert refusal.value.error_code == "run_cancelled"


def test_a_failed_call_returns_its_place(serve: Serve) -> None:
    def hang_up(connection: Any) -> None:
        read_request(connection)

    server = serve(hang_up)

    for _ in range(3):
        with pytest.raises(AgentError):
            call(server.url, HttpLimits(max_concurrent=1))

    assert budget.shared._inside == 0


def test_connections_stay_open_only_if_the_settings_say_so(serve: Serve) -> None:
    gate = GatedServer()
    gate.opened.set()
    server = serve(gate)

    for _ in range(3):
        call(server.url, HttpLimits(keep_alive=True))
    assert server.connections == 1

    for _ in range(3):
        call(server.url, HttpLimits(keep_alive=False))
    assert server.connections == 4  # because the open connection was closed, and each call opened its own


def test_open_sockets_including_idle_ones_respect_the_limit(serve: Serve) -> None:
    gate = GatedServer()
    gate.opened.set()
    servers = [serve(gate) for _ in range(5)]

    for server in servers:
        call(server.url, HttpLimits(max_sockets=2))
    assert len(outbound.get_guarded_transport()._pool.connections) == 2

    with ThreadPoolExecutor(5) as pool:
        gate.opened.clear()
        calls = [pool.submit(call, server.url, HttpLimits(max_sockets=2)) for server in servers]
        eventually(lambda: gate.now == 2)
        gate.opened.set()
        assert [each.result().status for each in calls] == [200] * 5
    assert len(outbound.get_guarded_transport()._pool.connections) <= 2


def test_lowering_the_limits_does_not_disturb_running_calls(serve: Serve) -> None:
    gate = GatedServer()
    server = serve(gate)

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=3)) for _ in range(3)]
        eventually(lambda: gate.now == 3)
        calls.append(pool.submit(call, server.url, HttpLimits(max_concurrent=1, max_sockets=1)))
        eventually(lambda: budget.shared.places == 1)
        gate.opened.set()
        assert [each.result().status for each in calls] == [200] * 4
