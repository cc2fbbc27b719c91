"""The threads of quick work: how many there are, which grants wait for them, and what they take over from slow ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from activities import quick_work
from activities.admission import Grant
from activities.quick_work import CallTimes, Group, HeldGrant, QuickWork
from tenants import tracing

WAIT = 20.0
TENANT = uuid4()


def held(role: str = "qa") -> HeldGrant:
    return HeldGrant(Grant(uuid4(), TENANT, role, "1", started=True), monotonic())


def quick_work_that(begin: Callable[[list[HeldGrant]], None] = lambda held: None) -> QuickWork:
    return QuickWork(begin=begin, relieve=lambda group: None, hold=lambda runs: nullcontext())


def until(condition: Callable[[], bool]) -> None:
    end = monotonic() + WAIT
    while not condition():
        assert monotonic() < end
        sleep(0.001)


@pytest.fixture
def without_relief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuickWork, "_start_relief", lambda self: None)


@pytest.mark.usefixtures("without_relief")
def test_only_so_many_threads_do_quick_work_and_the_grants_of_others_wait_for_them() -> None:
    quick, late = quick_work_that(), held()

    assert [quick.join([held()]) for _ in range(quick_work.THREADS)] == [True] * quick_work.THREADS
    assert not quick.join([late])
    assert quick.waiting() == 1
    assert quick.take_or_leave(10) == [late]
    assert not quick.join([]), "the thread has taken the grant and stays"
    assert quick.take_or_leave(10) == []
    assert quick.join([]), "nothing waited, so the thread has left"
    assert not quick.join([])
    quick.leave()
    assert quick.join([])


@pytest.mark.usefixtures("without_relief")
def test_a_thread_takes_grants_of_one_kind_and_no_more_than_it_has_seats_for() -> None:
    quick, first, other, second = quick_work_that(), held(), held("dev"), held()
    quick.leave_to_others([first, other, second])

    assert quick.take(first.kind, -1) == []
    assert quick.take(first.kind, 1) == [first]
    assert quick.take_or_leave(10) == [other]
    assert quick.take(first.kind, 10) == [second]


@pytest.mark.parametrize("patience", [0.0, WAIT])
def test_only_runs_behind_a_slow_call_are_taken_over(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(quick_work, "PATIENCE_SECONDS", patience)
    group = Group(["one", "two"])

    before = group.take_over(lambda runs: nullcontext())
    group.next()
    taken = group.take_over(lambda runs: nullcontext())
    again = group.take_over(lambda runs: nullcontext())

    assert before is None, "no call has begun"
    assert (taken.unfinished() if taken else []) == ([] if patience else ["two"])
    assert again is None
    assert group.unfinished() == (["two"] if patience else [])


def test_nothing_is_taken_over_from_a_thread_that_calls_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_work, "PATIENCE_SECONDS", 0.0)
    group = Group(["one", "two"])
    group.next()
    group.end_call()

    assert group.take_over(lambda runs: nullcontext()) is None


def test_the_lease_of_runs_is_held_from_the_moment_when_they_are_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quick_work, "PATIENCE_SECONDS", 0.0)
    held_runs: list[Any] = []

    @contextmanager
    def hold(runs: Iterable[Any]) -> Iterator[None]:
        held_runs.extend(runs)
        yield
        held_runs.clear()

    group = Group(["one", "two"], ["answered"])
    group.next()

    taken = group.take_over(hold)

    assert held_runs == ["two", "answered"]
    assert taken is not None
    taken.holding.close()
    assert held_runs == []


def test_a_role_is_quick_only_after_enough_short_calls() -> None:
    times, kind = CallTimes(), (TENANT, "qa")
    for _ in range(quick_work.SAMPLES - 1):
        times.note(kind, 0.0)
    before = times.are_short(kind)

    times.note(kind, 0.0)
    after = times.are_short(kind)
    for _ in range(quick_work.SAMPLES):
        times.note(kind, 1.0)

    assert (before, after, times.are_short(kind)) == (False, True, False)


def test_no_role_is_quick_while_runs_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, grant = quick_work_that(), held().grant
    for _ in range(quick_work.SAMPLES):
        quick.times.note((grant.tenant_id, grant.role), 0.0)
    without = quick.is_quick(grant)

    monkeypatch.setattr(tracing, "is_on", lambda: True)

    assert (without, quick.is_quick(grant)) == (True, False)


def test_a_seat_is_left_once_even_if_it_was_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuickWork, "_start_relief", lambda self: None)
    quick = quick_work_that()
    with quick.seat():
        pass
    assert quick._threads == 0

    with quick.seat() as seat:
        assert seat.take([])
        assert seat.take([])
        assert quick._threads == 1, "a thread has one seat"
        assert seat.next_grants(1) == []
    assert quick._threads == 0


def test_a_watched_group_is_relieved_even_if_no_thread_does_quick_work() -> None:
    """The thread that watches for slow calls may have ended before a group that was taken over is run."""
    relieved: list[Group] = []
    quick = QuickWork(begin=lambda held: None, relieve=relieved.append, hold=lambda runs: nullcontext())
    group = Group(["one", "two"])
    group.next()

    with quick.watching(group):
        until(lambda: bool(relieved))

    assert relieved[0].unfinished() == ["two"]
    assert quick._groups == set()


def test_a_grant_is_given_to_a_further_thread_only_if_it_waited_for_a_whole_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[HeldGrant] = []
    begun_at_pauses: list[int] = []
    quick, grant = quick_work_that(begun.extend), held()

    def pause(seconds: float) -> None:
        begun_at_pauses.append(len(begun))
        if len(begun_at_pauses) == 1:
            quick.leave_to_others([grant])

    monkeypatch.setattr(quick_work, "time", SimpleNamespace(sleep=pause, monotonic=monotonic))
    monkeypatch.setattr(quick_work, "_start", lambda name, work, argument: work(argument))

    quick._relieve_late()

    assert (begun, begun_at_pauses) == ([grant], [0, 0, 1])


@pytest.mark.usefixtures("without_relief")
def test_a_forked_child_has_none_of_the_threads_groups_and_grants_of_its_parent() -> None:
    quick = quick_work_that()
    for _ in range(quick_work.THREADS):
        assert quick.join([])
    quick.leave_to_others([held()])
    quick._groups.add(Group(["one"]))

    with quick._lock:
        child = os.fork()
        if child == 0:
            is_empty = quick._lock.acquire(timeout=WAIT) and not (
                quick._threads or quick._waiting_grants or quick._groups
            )
            os._exit(0 if is_empty else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("waiting", "answers", "is_alone"), [(1, 0, True), (2, 0, False), (1, 1, False)])
def test_a_run_without_others_is_alone(waiting: int, answers: int, is_alone: bool) -> None:
    assert Group(range(waiting), range(answers)).is_alone is is_alone


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_relief_begins_again_after_it_could_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[HeldGrant] = []
    quick, after = quick_work_that(begun.extend), held()

    def fail(*arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(quick_work, "_start", fail)
        quick.join([])
        relief = quick._relief
        assert relief is not None
        quick.leave_to_others([held()])
        relief.join(WAIT)
    quick.join([])
    quick.leave_to_others([after])
    until(lambda: begun == [after])
    quick.leave()
    quick.leave()
