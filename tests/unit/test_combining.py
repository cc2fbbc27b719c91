"""Threads that want the same at the same moment have one of them do it for all, and none depends on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest

from activities import combining
from activities.combining import Combining

WAIT = 20.0


class Doing:
    """Doubles numbers, and remembers which it was given together. The first call waits until `go_on`."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.calls: list[list[int]] = []
        self.began, self.go_on = Event(), Event()
        self.is_broken = is_broken
        self.of = Combining(together=self.together, alone=self.alone)

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
        line = self.of._queues.get(kind)
        return len(line.waiting) if line else 0


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


def gathered(doing: Doing, pool: ThreadPoolExecutor, numbers: Sequence[int]) -> list[Future[int]]:
    """The first is at it; the others have come meanwhile."""
    first = pool.submit(doing.of.do, "a", numbers[0])
    assert doing.began.wait(WAIT)
    others = []
    for number in numbers[1:]:
        before = doing.waiting()
        others.append(pool.submit(doing.of.do, "a", number))
        until(lambda before=before: doing.waiting() > before)  # type: ignore[misc]
    return [first, *others]


def test_requests_that_arrive_during_a_batch_are_combined_in_the_next_one(pool: ThreadPoolExecutor) -> None:
    doing = Doing()
    found = gathered(doing, pool, [1, 2, 3, 4])
    doing.go_on.set()

    assert [each.result(WAIT) for each in found] == [2, 4, 6, 8]
    assert doing.calls == [[1], [2, 3, 4]]
    assert doing.of._queues == {}


def test_a_batch_is_never_larger_than_its_setting(pool: ThreadPoolExecutor, settings: Any) -> None:
    settings.ORCHESTRATOR_RUNS_TOGETHER = 4
    doing = Doing()
    found = gathered(doing, pool, range(1, 11))
    doing.go_on.set()

    assert [each.result(WAIT) for each in found] == [number * 2 for number in range(1, 11)]
    assert doing.calls[:3] == [[1], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_requests_of_different_kinds_do_not_wait_for_each_other(pool: ThreadPoolExecutor) -> None:
    doing = Doing()
    first = pool.submit(doing.of.do, "a", 1)
    assert doing.began.wait(WAIT)

    assert doing.of.do("b", 2) == 4
    doing.go_on.set()
    assert first.result(WAIT) == 2


def test_each_request_is_processed_alone_when_the_batch_fails(pool: ThreadPoolExecutor) -> None:
    doing = Doing(is_broken=True)
    found = gathered(doing, pool, [1, 2, -3, 4])
    doing.go_on.set()

    assert [each.result(WAIT) for each in (found[0], found[1], found[3])] == [2, 4, 8]
    with pytest.raises(ValueError, match="-3"):
        found[2].result(WAIT)
    assert sorted(doing.calls[2:]) == [[-3], [2], [4]]


def test_a_request_that_is_not_yet_in_a_batch_waits_only_for_a_limited_time(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combining, "PATIENCE_SECONDS", 0.01)
    doing = Doing()
    first = pool.submit(doing.of.do, "a", 1)
    assert doing.began.wait(WAIT)

    assert doing.of.do("a", 2) == 4
    assert not first.done()
    monkeypatch.setattr(combining, "PATIENCE_SECONDS", WAIT)
    third = pool.submit(doing.of.do, "a", 3)
    until(lambda: doing.waiting() > 0)
    doing.go_on.set()
    assert [first.result(WAIT), third.result(WAIT)] == [2, 6]
    assert doing.calls == [[1], [2], [3]]


def test_a_request_in_a_running_batch_waits_until_the_batch_ends(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    doing = Doing()
    is_together, end = Event(), Event()

    def together(numbers: Sequence[int]) -> list[int]:
        is_together.set()
        assert end.wait(WAIT)
        return [0 for _ in numbers]

    monkeypatch.setattr(doing.of, "_together", together)
    monkeypatch.setattr(combining, "PATIENCE_SECONDS", 1.0)
    found = gathered(doing, pool, [1, 2, 3])
    doing.go_on.set()
    assert is_together.wait(WAIT)
    sleep(1.1)  # the third has lost its patience
    assert not found[2].done()
    end.set()

    assert [each.result(WAIT) for each in found] == [2, 0, 0]
    assert doing.calls == [[1]]
