"""Quick work: for agents that answer at once, what surrounds a call costs more than the call, so several runs share it.

A thread claims several granted activities of one tenant and role with one statement, calls their agents one after the other, and records
the results with one more. Nobody waits on purpose: a group is what is granted at that moment, one on an idle system. Few threads of a
process do this, since more of them would only take turns in Python; grants that come with messages meanwhile are left to them.

What is quick is measured: the calls of the role for the tenant took less than `QUICK_SECONDS` on average. When a call takes longer after
all, another thread takes over what waits behind it, results and calls, after `PATIENCE_SECONDS`. If that thread has to wait as well it is
relieved, too, so that runs of a role that has become slow are soon called side by side.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import connections

from activities.admission import Grant
from tenants import tracing
from tenants.identifiers import uuid7

logger = logging.getLogger(__name__)

THREADS = 2  # of a process that do quick work: one calls agents while PostgreSQL is at work for the other
QUICK_SECONDS = 0.002  # more than a function needs, less than any call to another process
SAMPLES = 32  # calls that must have been measured before anything is believed
WEIGHT = 0.05  # of the latest call in the average
PATIENCE_SECONDS = 0.05
MOST_KNOWN = 10_000  # pairs of tenant and role


@dataclass(slots=True)
class HeldGrant:
    """A grant that this process is to run. `asked`: when it was last certain that admission had not yet said that the slot is held."""

    grant: Grant
    asked: float
    run_id: UUID = field(default_factory=uuid7)

    @property
    def kind(self) -> tuple[UUID, str]:
        return self.grant.tenant_id, self.grant.role


@dataclass(slots=True)
class _Average:
    seconds: float = 0.0
    samples: int = 0


class CallTimes:
    """How long the calls of each role take for each tenant, as this process has seen it."""

    def __init__(self) -> None:
        self._known: dict[tuple[UUID, str], _Average] = {}

    def note(self, kind: tuple[UUID, str], seconds: float) -> None:
        average = self._known.get(kind)
        if average is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()  # rare, and measured again soon
            average = self._known[kind] = _Average()
        average.samples += 1
        average.seconds += (seconds - average.seconds) * max(WEIGHT, 1 / average.samples)

    def are_short(self, kind: tuple[UUID, str]) -> bool:
        average = self._known.get(kind)
        return average is not None and average.samples >= SAMPLES and average.seconds < QUICK_SECONDS


class Group:
    """The claimed runs of one thread: those that wait for their call, and those whose answers wait to be recorded. Safe for threads.

    What a run is, only dispatch knows; here they are kept.
    """

    def __init__(self, claimed: Iterable[Any], answers: Iterable[Any] = ()) -> None:
        self._waiting = deque(claimed)
        self._answers = list(answers)
        self._lock = threading.Lock()
        self._calling_since: float | None = None
        self.is_alone = len(self._waiting) == 1 and not self._answers

    def next(self) -> Any | None:
        """The run whose agent is to be called next; None when all were called."""
        with self._lock:
            if not self._waiting:
                return None
            self._calling_since = time.monotonic()
            return self._waiting.popleft()

    def end_call(self) -> float:
        """Note that the call is over; returns how many seconds it took."""
        with self._lock:
            began, self._calling_since = self._calling_since, None
        return time.monotonic() - (began or 0.0)

    def keep(self, answer: Any) -> None:
        with self._lock:
            self._answers.append(answer)

    def take_answers(self) -> list[Any]:
        """The runs whose answers are to be recorded, from now on by the caller."""
        with self._lock:
            found, self._answers = self._answers, []
        return found

    def rest(self) -> list[Any]:
        """The runs that are still to be called or recorded."""
        with self._lock:
            return [*self._waiting, *self._answers]

    def take_over(self) -> Group | None:
        """The runs that wait behind a call that takes too long, from now on the caller's; None when there are none."""
        with self._lock:
            began = self._calling_since
            late = began is not None and time.monotonic() - began > PATIENCE_SECONDS
            if not late or not (self._waiting or self._answers):
                return None
            taken = Group(self._waiting, self._answers)
            self._waiting, self._answers = deque(), []
        return taken


class QuickWork:
    """The quick work of this process: how many threads do it, and the grants that wait for them.

    `begin` runs grants that waited too long, `relieve` does the rest of a group; each is called in a thread of its own when a call takes
    long.
    """

    def __init__(self, *, begin: Callable[[list[HeldGrant]], None], relieve: Callable[[Group], None]) -> None:
        self.times = CallTimes()
        self._begin, self._relieve = begin, relieve
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting_grants: deque[HeldGrant] = deque()
        self._groups: set[Group] = set()
        self._relief: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget_threads)

    def is_quick(self, grant: Grant) -> bool:
        # A run in a trace has a span from its claim to its record, and so a thread of its own.
        return self.times.are_short((grant.tenant_id, grant.role)) and not tracing.is_on()

    def waiting(self) -> int:
        """How many grants no thread has taken yet."""
        return len(self._waiting_grants)

    def join(self, held: Iterable[HeldGrant]) -> bool:
        """Whether the calling thread is to do quick work from now on; if not, its grants wait for the threads that do."""
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

    def leave_to_others(self, held: Iterable[HeldGrant]) -> None:
        with self._lock:
            self._waiting_grants.extend(held)

    def take(self, kind: tuple[UUID, str], most: int) -> list[HeldGrant]:
        """At most so many of the waiting grants of this kind."""
        with self._lock:
            return self._take(kind, most)

    def take_or_leave(self, most: int) -> list[HeldGrant]:
        """As `take`, of the kind that waits longest. A thread that gets nothing has left the quick work at the same moment."""
        with self._lock:
            if self._waiting_grants:
                return self._take(self._waiting_grants[0].kind, most)
            self._threads -= 1
            return []

    def _take(self, kind: tuple[UUID, str], most: int) -> list[HeldGrant]:
        found = [held for held in self._waiting_grants if held.kind == kind][: max(0, most)]
        for held in found:
            self._waiting_grants.remove(held)
        return found

    @contextmanager
    def watching(self, group: Group) -> Iterator[None]:
        """Within the block, other threads take over what waits behind a call of this group that takes long."""
        with self._lock:
            self._groups.add(group)
            self._start_relief()
        try:
            yield
        finally:
            with self._lock:
                self._groups.discard(group)

    def _start_relief(self) -> None:
        if self._relief is None:
            self._relief = threading.Thread(target=self._relieve_late, name="relief", daemon=True)
            self._relief.start()

    def _relieve_late(self) -> None:
        """Let other threads do what waits too long, until there is no quick work any more."""
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
                if (rest := group.take_over()) is not None:
                    _start("relief of a call", self._relieve, rest)
            for held in late:
                _start("relief of a thread", self._begin, [held])

    def _forget_threads(self) -> None:
        """A forked child has none of them."""
        self._lock = threading.Lock()
        self._threads, self._relief = 0, None
        self._waiting_grants.clear()
        self._groups.clear()


T = TypeVar("T")


def _start(name: str, work: Callable[[T], None], what: T) -> None:
    def do() -> None:
        try:
            work(what)
        except Exception:
            logger.exception("Relief failed", extra={"action": "relief_failed"})
        finally:
            connections.close_all()

    threading.Thread(target=do, name=name, daemon=True).start()


def most_together(concurrency: int) -> int:
    """How many runs one thread does together in a process with so many seats."""
    return max(1, min(settings.ORCHESTRATOR_RUNS_TOGETHER, concurrency // THREADS))
