"""The cap of concurrent calls, and the pool of connections, as the platform's settings have them."""

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


class Doors:
    """A server that answers when the test says so, and counts who is there."""

    def __init__(self) -> None:
        self.open, self.now, self.most, self.lock = threading.Event(), 0, 0, threading.Lock()

    def __call__(self, connection: Any) -> None:
        while True:
            read_request(connection)
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            self.open.wait(20)
            with self.lock:
                self.now -= 1
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def call(url: str, limits: HttpLimits | None = None, seconds: float = 20, **more: Any) -> Any:
    return outbound.send(
        "POST", url, headers={}, body=b"{}", deadline_seconds=seconds, max_bytes=1_000, limits=limits, **more
    )


def test_no_more_calls_than_the_cap_are_under_way_and_all_have_their_turn(serve: Serve) -> None:
    doors = Doors()
    server = serve(doors)

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=3)) for _ in range(8)]
        eventually(lambda: doors.now == 3)
        assert budget.shared._inside == 3
        doors.open.set()
        answers = [each.result().status for each in calls]

    assert answers == [200] * 8
    assert doors.most == 3
    assert budget.shared._inside == 0


# The same cap over all processes.


def test_all_processes_together_have_no_more_calls_under_way_than_the_cap(serve: Serve) -> None:
    doors = Doors()
    server = serve(doors)
    elsewhere = ["worker-1", "worker-2"]
    assert all(budget.ALL_PROCESSES.take(3, each) for each in elsewhere)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=3)) for _ in range(3)]
        eventually(lambda: doors.now == 1)
        assert not budget.ALL_PROCESSES.take(3, "worker-3")
        budget.ALL_PROCESSES.give_back(elsewhere.pop())
        eventually(lambda: doors.now == 2)
        doors.open.set()
        assert [each.result().status for each in calls] == [200] * 3

    assert doors.most == 2
    assert redis.client().zrange(keys.places("calls"), 0, -1) == [elsewhere[0].encode()]


def test_a_process_that_died_during_its_calls_keeps_no_place(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors = Doors()
    doors.open.set()
    server = serve(doors)
    dead = Places("calls", lease_seconds=0.3)
    assert dead.take(1, "dead")

    with pytest.raises(CallsAtLimit):
        call(server.url, HttpLimits(max_concurrent=1), seconds=0.1)
    assert call(server.url, HttpLimits(max_concurrent=1)).status == 200


def test_a_call_keeps_its_place_for_as_long_as_it_lasts(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "KEEP_SECONDS", 0.05)
    monkeypatch.setattr(budget, "ALL_PROCESSES", Places("calls", lease_seconds=0.4))
    doors = Doors()
    server = serve(doors)

    def until() -> float:
        held = redis.client().zrange(keys.places("calls"), 0, -1, withscores=True)
        return float(held[0][1]) if held else 0.0

    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(call, server.url, HttpLimits(max_concurrent=1))
        eventually(lambda: doors.now == 1)
        first = until()
        eventually(lambda: until() > first + 400)  # it would have ended by now
        assert not budget.ALL_PROCESSES.take(1, "another")
        doors.open.set()
        assert under_way.result().status == 200
    assert budget.ALL_PROCESSES.take(1, "another")


def test_while_redis_is_away_each_process_keeps_to_the_cap_by_itself(
    serve: Serve, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert budget.ALL_PROCESSES.take(2, "worker-1")
    monkeypatch.setattr(budget, "_breaker", Breaker(seconds=5.0))
    there, settings.REDIS_URL = settings.REDIS_URL, "redis://127.0.0.1:1/0"
    doors = Doors()
    server = serve(doors)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=2)) for _ in range(3)]
        eventually(lambda: doors.now == 2)
        doors.open.set()
        assert [each.result().status for each in calls] == [200] * 3
    settings.REDIS_URL = there
    assert doors.most == 2


def test_places_of_calls_that_ended_while_redis_was_away_are_free_when_it_is_back(
    serve: Serve, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_breaker", Breaker(seconds=5.0))
    doors = Doors()
    server = serve(doors)
    there = settings.REDIS_URL
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(call, server.url, HttpLimits(max_concurrent=1))
        eventually(lambda: doors.now == 1)
        settings.REDIS_URL = "redis://127.0.0.1:1/0"
        doors.open.set()
        assert under_way.result().status == 200
    settings.REDIS_URL = there
    assert not budget.ALL_PROCESSES.take(1, "another")
    monkeypatch.setattr(budget, "_breaker", Breaker(seconds=5.0))

    assert call(server.url, HttpLimits(max_concurrent=1), seconds=2.0).status == 200
    assert budget.ALL_PROCESSES.take(1, "another")


def test_a_place_that_was_given_without_an_answer_is_given_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_breaker", Breaker(seconds=0.0))
    doors = Doors()
    doors.open.set()
    server = serve(doors)
    take = Places.take

    def lost(places: Places, most: int, who: str) -> bool:
        take(places, most, who)
        raise LimiterUnavailable("The answer was lost.")

    with monkeypatch.context() as patched:
        patched.setattr(Places, "take", lost)
        assert call(server.url, HttpLimits(max_concurrent=1)).status == 200

    assert budget.ALL_PROCESSES.take(1, "another")


def test_calls_to_webhooks_take_no_places_of_agents(serve: Serve) -> None:
    doors = Doors()
    doors.open.set()
    server = serve(doors)
    assert budget.ALL_PROCESSES.take(1, "an agent's call")

    assert call(server.url, HttpLimits(max_concurrent=1), purpose=outbound.WEBHOOKS).status == 200


def test_a_cap_that_is_raised_lets_those_in_who_wait(serve: Serve) -> None:
    doors = Doors()
    server = serve(doors)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=1)) for _ in range(2)]
        eventually(lambda: doors.now == 1)
        calls.append(pool.submit(call, server.url, HttpLimits(max_concurrent=3)))
        eventually(lambda: doors.now == 3)
        doors.open.set()
        assert [each.result().status for each in calls] == [200] * 3


def test_waiting_counts_into_the_deadline_and_uses_up_no_attempt(serve: Serve) -> None:
    doors = Doors()
    server = serve(doors)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, server.url, HttpLimits(max_concurrent=1))
        eventually(lambda: doors.now == 1)
        with pytest.raises(CallsAtLimit, match="No more than 1 calls") as refusal:
            call(server.url, seconds=0.1)
        doors.open.set()
        first.result()

    assert (refusal.value.retryable, refusal.value.uses_attempt, refusal.value.nothing_sent) == (
        True,
        False,
        True,
    )
    assert server.connections == 1


def test_a_run_that_is_cancelled_stops_waiting(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.outbound.budget.POLL_SECONDS", 0.01)
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.01)
    doors = Doors()
    server = serve(doors)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(call, server.url, HttpLimits(max_concurrent=1))
        eventually(lambda: doors.now == 1)
        with pytest.raises(AgentError) as refusal:
            call(server.url, cancelled=lambda: True)
        doors.open.set()
        first.result()

    assert refusal.value.error_code == "run_cancelled"


def test_a_call_that_fails_gives_its_place_back(serve: Serve) -> None:
    def hang_up(connection: Any) -> None:
        read_request(connection)

    server = serve(hang_up)

    for _ in range(3):
        with pytest.raises(AgentError):
            call(server.url, HttpLimits(max_concurrent=1))

    assert budget.shared._inside == 0


def test_connections_are_kept_only_if_the_settings_say_so(serve: Serve) -> None:
    doors = Doors()
    doors.open.set()
    server = serve(doors)

    for _ in range(3):
        call(server.url, HttpLimits(keep_alive=True))
    assert server.connections == 1

    for _ in range(3):
        call(server.url, HttpLimits(keep_alive=False))
    assert server.connections == 4  # the kept one was closed, and each call had its own


def test_no_more_sockets_are_open_than_the_pool_may_have_idle_ones_included(serve: Serve) -> None:
    doors = Doors()
    doors.open.set()
    servers = [serve(doors) for _ in range(5)]

    for server in servers:
        call(server.url, HttpLimits(max_sockets=2))
    assert len(outbound.get_guarded_transport()._pool.connections) == 2

    with ThreadPoolExecutor(5) as pool:
        doors.open.clear()
        calls = [pool.submit(call, server.url, HttpLimits(max_sockets=2)) for server in servers]
        eventually(lambda: doors.now == 2)
        doors.open.set()
        assert [each.result().status for each in calls] == [200] * 5
    assert len(outbound.get_guarded_transport()._pool.connections) <= 2


def test_lowering_the_limits_disturbs_no_call_that_is_under_way(serve: Serve) -> None:
    doors = Doors()
    server = serve(doors)

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call, server.url, HttpLimits(max_concurrent=3)) for _ in range(3)]
        eventually(lambda: doors.now == 3)
        calls.append(pool.submit(call, server.url, HttpLimits(max_concurrent=1, max_sockets=1)))
        eventually(lambda: budget.shared.places == 1)
        doors.open.set()
        assert [each.result().status for each in calls] == [200] * 4
