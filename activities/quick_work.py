"""Quick work: runs of agents that answer within milliseconds are claimed and recorded in groups.

For such agents, claiming and recording a run costs more than the call. So a thread claims several granted activities of one tenant and
role with one statement, calls their agents one by one, and records the results with one more statement. It never waits for a group to
fill: a group is whatever is granted at that moment, which is one run on an idle system. Only `THREADS` threads of a process do this,
because Python runs one thread at a time. Grants of messages that arrive meanwhile are queued for these threads.

A role counts as quick for a tenant if its calls took less than `QUICK_SECONDS` on average. If a call takes longer than
`PATIENCE_SECONDS`, a new thread takes over the calls and results that wait behind it. That thread is relieved in the same way, so the
runs of a role that has become slow soon run in parallel.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import connections

from activities.admission import Grant
from tenants import tracing
from tenants.identifiers import uuid7

logger = logging.getLogger(__name__)

THREADS = 2  # per process: one calls agents while the other waits for PostgreSQL
QUICK_SECONDS = 0.002  # longer than a local function takes, shorter than any call to another process
SAMPLES = 32  # calls to measure before a role can count as quick
WEIGHT = 0.05  # of the latest call in the average
PATIENCE_SECONDS = 0.05
MOST_KNOWN = 10_000  # pairs of tenant and role


@dataclass(slots=True)
class HeldGrant:
    """A grant that this process must run. `confirmed_at`: when admission was last asked to confirm the slot, by the monotonic clock."""

    grant: Grant
    confirmed_at: float
    run_id: UUID = field(default_factory=uuid7)

    @property
    def kind(self) -> tuple[UUID, str]:
        return self.grant.tenant_id, self.grant.role


@dataclass(slots=True)
class _Average:
    seconds: float = 0.0
    samples: int = 0


class CallTimes:
    """The average duration of the calls of each role for each tenant in this process."""

    def __init__(self) -> None:
        self._known: dict[tuple[UUID, str], _Average] = {}

    def note(self, kind: tuple[UUID, str], seconds: float) -> None:
        average = self._known.get(kind)
        if average is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()  # rare, and soon measured again
            average = self._known[kind] = _Average()
        average.samples += 1
        average.seconds += (seconds - average.seconds) * max(WEIGHT, 1 / average.samples)

    def are_short(self, kind: tuple[UUID, str]) -> bool:
        average = self._known.get(kind)
        return average is not None and average.samples >= SAMPLES and average.seconds < QUICK_SECONDS


class Group:
    """The claimed runs of one thread: those whose agents must be called, and those whose answers must be recorded. Thread-safe.

    Its members are opaque here; `dispatch` knows what a run is.
    """

    def __init__(self, claimed: Iterable[Any], answers: Iterable[Any] = ()) -> None:
        self._waiting = deque(claimed)
        self._answers = list(answers)
        self._lock = threading.Lock()
        self._calling_since: float | None = None
        self.holding = ExitStack()  # of a group that was taken over, until a thread runs it
        self.is_alone = len(self._waiting) == 1 and not self._answers

    def next(self) -> Any | None:
        """Return the run whose agent is called next, or None after the last one."""
        with self._lock:
            if not self._waiting:
                return None
            self._calling_since = time.monotonic()
            return self._waiting.popleft()

    def end_call(self) -> float:
        """End the call and return its duration in seconds."""
        with self._lock:
            began, self._calling_since = self._calling_since, None
        return time.monotonic() - (began or 0.0)

    def keep(self, answer: Any) -> None:
        with self._lock:
            self._answers.append(answer)

    def take_answers(self) -> list[Any]:
        """Remove and return the runs with answers. The caller must record them."""
        with self._lock:
            answers, self._answers = self._answers, []
        return answers

    def unfinished(self) -> list[Any]:
        """Return the runs that have not been called or not been recorded yet."""
        with self._lock:
            return [*self._waiting, *self._answers]

    def take_over(self, hold: Callable[[Iterable[Any]], AbstractContextManager[None]]) -> Group | None:
        """Move the runs that wait behind a slow call into a new group, for the caller to run. None if there are none.

        `hold`: keeps the lease on runs. It is entered here, because the thread of this group may end before another one runs the new group.
        """
        with self._lock:
            began = self._calling_since
            late = began is not None and time.monotonic() - began > PATIENCE_SECONDS
            if not late or not (self._waiting or self._answers):
                return None
            taken = Group(self._waiting, self._answers)
            taken.holding.enter_context(hold(taken.unfinished()))
            self._waiting, self._answers = deque(), []
        return taken


class QuickWork:
    """The quick work of this process: counts its threads and holds the grants that wait for them.

    When a call is slow, a new thread calls `begin` with a grant that waited too long, or `relieve` with the rest of a group, for whose runs
    `hold` keeps the lease.
    """

    def __init__(
        self,
        *,
        begin: Callable[[list[HeldGrant]], None],
        relieve: Callable[[Group], None],
        hold: Callable[[Iterable[Any]], AbstractContextManager[None]],
    ) -> None:
        self.times = CallTimes()
        self._begin, self._relieve, self._hold = begin, relieve, hold
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting_grants: deque[HeldGrant] = deque()
        self._groups: set[Group] = set()
        self._relief: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget_threads)

    def is_quick(self, grant: Grant) -> bool:
        # With tracing, each run has a span from claim to record, so it needs its own thread.
        return self.times.are_short((grant.tenant_id, grant.role)) and not tracing.is_on()

    def waiting(self) -> int:
        """Return the number of grants that no thread has taken yet."""
        return len(self._waiting_grants)

    @contextmanager
    def seat(self) -> Iterator[Seat]:
        """Yield a seat for the calling thread, which is left at the end of the block if it was taken."""
        seat = Seat(self)
        try:
            yield seat
        finally:
            seat.leave()

    def leave_to_others(self, held: Iterable[HeldGrant]) -> None:
        """Queue these grants for the threads that do quick work."""
        with self._lock:
            self._waiting_grants.extend(held)

    def take(self, kind: tuple[UUID, str], most: int) -> list[HeldGrant]:
        """Remove and return at most `most` waiting grants of this kind."""
        with self._lock:
            return self._take(kind, most)

    def join(self, held: Iterable[HeldGrant]) -> bool:
        """Count the calling thread. If enough threads do quick work already, queue its grants for them and return False. See `Seat`."""
        with self._lock:
            if self._threads >= THREADS:
                self._waiting_grants.extend(held)
                return False
            self._threads += 1
            self._start_relief()
            return True

    def leave(self) -> None:
        with self._lock:
            self._threads -= 1

    def take_or_leave(self, most: int) -> list[HeldGrant]:
        """Take grants of the kind that waits longest. If none wait, the thread leaves in the same atomic step. See `Seat`."""
        with self._lock:
            if self._waiting_grants:
                return self._take(self._waiting_grants[0].kind, most)
            self._threads -= 1
            return []

    def _take(self, kind: tuple[UUID, str], most: int) -> list[HeldGrant]:
        taken = [held for held in self._waiting_grants if held.kind == kind][: max(0, most)]
        for held in taken:
            self._waiting_grants.remove(held)
        return taken

    @contextmanager
    def watching(self, group: Group) -> Iterator[None]:
        """Within the block, other threads take over the runs that wait behind a slow call of this group."""
        with self._lock:
            self._groups.add(group)
            self._start_relief()
        try:
            yield
        finally:
            with self._lock:
                self._groups.discard(group)

    def _start_relief(self) -> None:
        if self._relief is None or not self._relief.is_alive():
            self._relief = threading.Thread(target=self._relieve_late, name="relief", daemon=True)
            self._relief.start()

    def _relieve_late(self) -> None:
        """Start threads for whatever waits too long, until there is no quick work left."""
        seen: set[UUID] = set()
        while True:
            time.sleep(PATIENCE_SECONDS)
            with self._lock:
                if not (self._groups or self._waiting_grants or self._threads):
                    self._relief = None
                    return
                groups = list(self._groups)
                late = [held for held in self._waiting_grants if held.run_id in seen]
                for held in late:
                    self._waiting_grants.remove(held)
                seen = {held.run_id for held in self._waiting_grants}
            for group in groups:
                if (unfinished := group.take_over(self._hold)) is not None:
                    _start("relief of a call", self._relieve, unfinished)
            for held in late:
                _start("relief of a thread", self._begin, [held])

    def _forget_threads(self) -> None:
        """Reset in a forked child, which has none of the parent's threads."""
        self._lock = threading.Lock()
        self._threads, self._relief = 0, None
        self._waiting_grants.clear()
        self._groups.clear()


class Seat:
    """The place of a thread among the `THREADS` that do quick work."""

    def __init__(self, work: QuickWork) -> None:
        self._work = work
        self._is_taken = False

    def take(self, held: Iterable[HeldGrant]) -> bool:
        """Take the seat. If none is free, the other threads get the grants, and the result is False."""
        self._is_taken = self._is_taken or self._work.join(held)
        return self._is_taken

    def next_grants(self, most: int) -> list[HeldGrant]:
        """Return grants that no thread has taken yet, if the seat is taken. If none wait, the seat is left."""
        held = self._work.take_or_leave(most) if self._is_taken else []
        self._is_taken = bool(held)
        return held

    def leave(self) -> None:
        if self._is_taken:
            self._work.leave()
        self._is_taken = False


T = TypeVar("T")


def _start(name: str, work: Callable[[T], None], argument: T) -> None:
    def call() -> None:
        try:
            work(argument)
        except Exception:
            logger.exception("Relief failed", extra={"action": "relief_failed"})
        finally:
            connections.close_all()

    threading.Thread(target=call, name=name, daemon=True).start()


def most_together(concurrency: int) -> int:
    """Return how many runs one thread may group in a process with `concurrency` seats."""
    return max(1, min(settings.ORCHESTRATOR_RUNS_TOGETHER, concurrency // THREADS))
