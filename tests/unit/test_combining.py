"""Concurrent requests of one kind are combined into batches, and no request depends on another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock
from time import monotonic, sleep
from typing import Any

import pytest

from activities import combining
from activities.combining import Combining

WAIT = 60.0


class Doubler:
    """Doubles numbers and records each batch. The first call waits until `go_on` is set."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.calls: list[list[int]] = []
        self.began, self.go_on = Event(), Event()
        self.is_broken = is_broken
        self.combining = Combining(together=self.together, alone=self.alone)

    def alone(self, number: int) -> int:
        self.calls.append([number])
        if not self.began.is_set():
            self.began.set()
            assert self.go_on.wait(WAIT)
        if number < 0:
            raise ValueError(number)
        return number * 2

    def together(self, numbers: Sequence[int]) -> list[int]:
        self.calls.append(list(numbers))
        if self.is_broken:
            raise ZeroDivisionError
        return [number * 2 for number in numbers]

    def waiting(self, kind: str = "a") -> int:
        queue = self.combining._queues.get(kind)
        return len(queue.waiting) if queue else 0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "PATIENCE_SECONDS", WAIT)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(40) as threads:
        yield threads


def until(condition: Callable[[], bool]) -> None:
    end = monotonic() + WAIT
    while not condition():
        assert monotonic() < end
        sleep(0.001)


def submit_all(doubler: Doubler, pool: ThreadPoolExecutor, numbers: Sequence[int]) -> list[Future[int]]:
    """Submit the first number and, while it is in progress, the others."""
    first = pool.submit(doubler.combining.do, "a", numbers[0])
    assert doubler.began.wait(WAIT)
    others = []
    for number in numbers[1:]:
        before = doubler.waiting()
        others.append(pool.submit(doubler.combining.do, "a", number))
        until(lambda before=before: doubler.waiting() > before)  # type: ignore[misc]
    return [first, *others]


def test_requests_that_arrive_during_a_batch_are_combined_in_the_next_one(pool: ThreadPoolExecutor) -> None:
    doubler = Doubler()
    futures = submit_all(doubler, pool, [1, 2, 3, 4])
    doubler.go_on.set()

    assert [each.result(WAIT) for each in futures] == [2, 4, 6, 8]
    assert doubler.calls == [[1], [2, 3, 4]]
    assert doubler.combining._queues == {}


def test_a_batch_is_never_larger_than_its_setting(pool: ThreadPoolExecutor, settings: Any) -> None:
    settings.ORCHESTRATOR_RUNS_TOGETHER = 4
    doubler = Doubler()
    futures = submit_all(doubler, pool, range(1, 11))
    doubler.go_on.set()

    assert [each.result(WAIT) for each in futures] == [number * 2 for number in range(1, 11)]
    assert doubler.calls[:3] == [[1], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_without_combining_no_request_waits_for_another(pool: ThreadPoolExecutor, settings: Any) -> None:
    settings.ORCHESTRATOR_RUNS_TOGETHER = 1
    doubler = Doubler()
    first = pool.submit(doubler.combining.do, "a", 1)
    assert doubler.began.wait(WAIT)

    second = pool.submit(doubler.combining.do, "a", 2)
    until(lambda: second.done() or doubler.waiting() > 0)

    assert second.done()
    doubler.go_on.set()
    assert [first.result(WAIT), second.result(WAIT)] == [2, 4]


def test_a_thread_executes_batches_until_its_own_request_is_among_them(settings: Any) -> None:
    settings.ORCHESTRATOR_RUNS_TOGETHER = 2
    doubler, queue = Doubler(), combining._Queue()
    doubler.go_on.set()
    items = [combining._Item(number) for number in (1, 2, 3, 4, 5)]
    queue.waiting.extend(items)

    assert doubler.combining._execute(queue, items[2]) == 6

    assert doubler.calls == [[1, 2], [3, 4]]
    assert list(queue.waiting) == [items[4]], "each request is executed once"


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent() -> None:
    doubler = Doubler()

    with doubler.combining._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if doubler.combining._lock.acquire(timeout=WAIT) else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_requests_of_different_kinds_do_not_wait_for_each_other(pool: ThreadPoolExecutor) -> None:
    doubler = Doubler()
    first = pool.submit(doubler.combining.do, "a", 1)
    assert doubler.began.wait(WAIT)

    assert doubler.combining.do("b", 2) == 4
    doubler.go_on.set()
    assert first.result(WAIT) == 2


def test_each_request_is_processed_alone_when_the_batch_fails(pool: ThreadPoolExecutor) -> None:
    doubler = Doubler(is_broken=True)
    futures = submit_all(doubler, pool, [1, 2, -3, 4])
    doubler.go_on.set()

    assert [each.result(WAIT) for each in (futures[0], futures[1], futures[3])] == [2, 4, 8]
    with pytest.raises(ValueError, match="-3"):
        futures[2].result(WAIT)
    assert sorted(doubler.calls[2:]) == [[-3], [2], [4]]


def test_a_request_that_is_not_yet_in_a_batch_waits_only_for_a_limited_time(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combining, "PATIENCE_SECONDS", 0.01)
    doubler = Doubler()
    first = pool.submit(doubler.combining.do, "a", 1)
    assert doubler.began.wait(WAIT)

    assert doubler.combining.do("a", 2) == 4
    assert not first.done()
    monkeypatch.setattr(combining, "PATIENCE_SECONDS", WAIT)
    third = pool.submit(doubler.combining.do, "a", 3)
    until(lambda: doubler.waiting() > 0)
    doubler.go_on.set()
    assert [first.result(WAIT), third.result(WAIT)] == [2, 6]
    assert doubler.calls == [[1], [2], [3]]


class Turn:
    """The lock of a queue. Threads that wait for it lose their patience when the test says so."""

    def __init__(self, lock: Lock) -> None:
        self.lock, self.lose_patience, self.is_awaited = lock, Event(), Event()

    def acquire(self, timeout: float) -> bool:
        while not self.lose_patience.is_set():
            if self.lock.acquire(timeout=0.01):
                return True
        return False

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.is_awaited.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_request_in_a_running_batch_waits_until_the_batch_ends(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubler = Doubler()
    is_together, end = Event(), Event()

    def together(numbers: Sequence[int]) -> list[int]:
        is_together.set()
        assert end.wait(WAIT)
        return [0 for _ in numbers]

    monkeypatch.setattr(doubler.combining, "_together", together)
    first = pool.submit(doubler.combining.do, "a", 1)
    assert doubler.began.wait(WAIT)
    queue = doubler.combining._queues["a"]
    turn = Turn(queue.turn)
    monkeypatch.setattr(queue, "turn", turn)
    others = [pool.submit(doubler.combining.do, "a", number) for number in (2, 3)]
    until(lambda: doubler.waiting() == 2)
    doubler.go_on.set()
    assert is_together.wait(WAIT)

    turn.lose_patience.set()
    assert turn.is_awaited.wait(WAIT)
    assert not any(each.done() for each in others)
    end.set()

    assert [each.result(WAIT) for each in (first, *others)] == [2, 0, 0]
    assert doubler.calls == [[1]]
