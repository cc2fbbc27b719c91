"""Whose request a web process answers next: tenants take turns, so that one with many or costly requests delays its own first.

Requests that wait for a thread stand in one line for each tenant, and the lines are served in turn. Python computes in one thread of a
process at a time, so a line is bounded as well in how many of its requests are under way:

    alone in this process for a minute          as many as there are threads, but for a few that are kept for the next caller
    beside other tenants                        half of the threads
    the same, and computing much                one; if more of them wait, the next begins once others had three times as long as it took

So one that sends more than is answered has a quarter of the time of each process, for as long as others ask anything at all.

Who sends a request is known for certain after it was authenticated, which costs. So a process remembers what it has learned of a
credential; requests with one that it has not seen yet stand in one line together, wrong ones among them, and those without any in another.

Nothing here is shared between processes, and nothing is lost with them.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

Item = TypeVar("Item")

STRANGERS, NOBODY = "strangers", "nobody"  # a credential that was not seen here yet, and none at all
MOST_WAITING = 100  # requests of one line; the next is refused
CREDENTIALS_REMEMBERED = 10_000
ALONE_SECONDS = 60.0  # without any request of another tenant
BESIDE_SECONDS = 2.0  # others are active now
MUCH = 0.1  # share of the process's time, over about MEMORY_SECONDS
MEMORY_SECONDS = 2.0
PAUSE = 3.0  # times what a request computed, until the next one of its line
LONGEST_PAUSE = 2.0  # seconds
PATIENCE_SECONDS = 0.25  # that one request gives way to others, all in all

_CREDENTIAL = re.compile(
    rb"\r\nauthorization:[ \t]*([^\r\n]+)|\r\ncookie:[^\r\n]*?sessionid=([^;\s]+)", re.IGNORECASE
)


@dataclass(slots=True)
class Turn(Generic[Item]):
    """One request, from its arrival until its end."""

    line: str
    credential: bytes | None
    item: Item
    tenant: str | None = None  # once it was authenticated
    began_computing: float = 0.0  # by the clock of its thread
    patience: float = PATIENCE_SECONDS


@dataclass(slots=True)
class _Line(Generic[Item]):
    waiting: deque[Turn[Item]] = field(default_factory=deque)
    running: int = 0
    computed: float = 0.0  # seconds, those long ago count less
    counted_at: float = 0.0
    not_before: float = 0.0


class Turns(Generic[Item]):
    """The lines of one process. All methods may be called from any thread."""

    def __init__(self, threads: int, spare: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._in_all, self._clock = threads, threads + spare, clock
        self._lines: OrderedDict[str, _Line[Item]] = OrderedDict()  # whose turn is next, first
        self._seen: OrderedDict[str, float] = OrderedDict()  # tenants by their last request
        self._tenants: OrderedDict[bytes, str] = OrderedDict()  # by credential
        self._running = 0
        self._changed = threading.Condition()

    def wait(self, head: bytes, item: Item) -> bool:
        """A request with this head has arrived. False when too many of its line wait already: it must be refused."""
        credential = _credential_of(head)
        with self._changed:
            name = NOBODY if credential is None else self._tenants.get(credential, STRANGERS)
            line = self._line(name)
            if len(line.waiting) >= MOST_WAITING:
                return False
            self._note(name)
            line.waiting.append(Turn(name, credential, item))
            return True

    def take(self) -> Turn[Item] | None:
        """The next request that may begin now; it runs until `end`. None when none may."""
        with self._changed:
            if self._running >= self._in_all:
                return None
            now = self._clock()
            for name, line in self._lines.items():
                if (
                    line.waiting
                    and line.running < self._most_at_once(name, line, now)
                    and line.not_before <= now
                ):
                    break
            else:
                return None
            self._lines.move_to_end(name)
            line.running += 1
            self._running += 1
            return line.waiting.popleft()

    def end(self, turn: Turn[Item], computed: float) -> None:
        """The request is over; it has taken so many seconds of the processor."""
        with self._changed:
            now, line = self._clock(), self._lines[turn.line]
            self._running -= 1
            line.running -= 1
            if turn.tenant is not None and turn.credential is not None:
                self._tenants[turn.credential] = turn.tenant
                self._tenants.move_to_end(turn.credential)
                while len(self._tenants) > CREDENTIALS_REMEMBERED:
                    self._tenants.popitem(last=False)
            # What the first request of a credential took is its tenant's, too.
            owner = self._line(turn.tenant or turn.line)
            self._note(turn.tenant or turn.line)
            owner.computed, owner.counted_at = self._computing_time(owner, now) + computed, now
            much = owner.waiting and self._is_heavy(owner, now)
            if much and self._is_beside(turn.tenant or turn.line, BESIDE_SECONDS, now):
                owner.not_before = now + min(computed * PAUSE, LONGEST_PAUSE)
            self._forget(now)
            self._changed.notify_all()

    def seconds_until_next(self) -> float:
        """How long until a line that pauses may go on; infinite when none has to."""
        with self._changed:
            now = self._clock()
            due = (line.not_before - now for line in self._lines.values() if line.waiting)
            return max(min((each for each in due if each > 0), default=math.inf), 0.0)

    def waiting(self) -> list[Item]:
        """All that have not begun, which from now on wait for nothing."""
        with self._changed:
            left = [turn.item for line in self._lines.values() for turn in line.waiting]
            for line in self._lines.values():
                line.waiting.clear()
            return left

    def give_way(self, turn: Turn[Item]) -> None:
        """If more of its line wait, let requests of lines go first in which none waits, for as long as this one has patience left."""
        with self._changed:
            mine = self._lines[turn.line]
            if not mine.waiting:
                return
            began = time.monotonic()
            self._changed.wait_for(lambda: not self._modest_one_runs(mine), turn.patience)
            turn.patience = max(turn.patience - (time.monotonic() - began), 0.0)

    def _modest_one_runs(self, mine: _Line[Item]) -> bool:
        return any(line.running and not line.waiting and line is not mine for line in self._lines.values())

    def _most_at_once(self, name: str, line: _Line[Item], now: float) -> int:
        if not self._is_beside(name, ALONE_SECONDS, now):
            return self._most
        return 1 if self._is_heavy(line, now) else max(self._most // 2, 1)

    def _is_heavy(self, line: _Line[Item], now: float) -> bool:
        return self._computing_time(line, now) > MUCH * MEMORY_SECONDS

    def _computing_time(self, line: _Line[Item], now: float) -> float:
        return line.computed * math.exp((line.counted_at - now) / MEMORY_SECONDS)

    def _is_beside(self, name: str, seconds: float, now: float) -> bool:
        """Whether another tenant has sent a request in this time."""
        for other in reversed(self._seen):
            if other != name:
                return now - self._seen[other] < seconds
        return False

    def _note(self, name: str) -> None:
        if name not in (STRANGERS, NOBODY):
            self._seen[name] = self._clock()
            self._seen.move_to_end(name)

    def _line(self, name: str) -> _Line[Item]:
        found = self._lines.get(name)
        if found is None:
            found = self._lines[name] = _Line()
        return found

    def _forget(self, now: float) -> None:
        """Tenants that have been silent for long: the oldest two, as one request brings one at most."""
        for name in list(self._seen)[:2] if len(self._seen) > 2 else []:
            line = self._lines.get(name)
            if now - self._seen[name] > ALONE_SECONDS and not (line and (line.waiting or line.running)):
                del self._seen[name]
                self._lines.pop(name, None)


_here = threading.local()


@contextmanager
def hold_turn(turns: Turns[Item], turn: Turn[Item]) -> Iterator[None]:
    """This thread answers the request of that turn."""
    _here.turns, _here.turn = turns, turn
    turn.began_computing = time.thread_time()
    try:
        yield
    finally:
        _here.turns = _here.turn = None
        turns.end(turn, time.thread_time() - turn.began_computing)


def belongs_to(tenant_id: UUID) -> None:
    """The request that this thread answers was authenticated as one of this tenant."""
    turn = getattr(_here, "turn", None)
    if turn is not None:
        turn.tenant = str(tenant_id)


def give_way() -> None:
    """A place in long computing where nothing is locked and no transaction is open: the caller that asks for less goes first.

    Waits for `PATIENCE_SECONDS` in one request at most, and outside of web processes not at all.
    """
    turn = getattr(_here, "turn", None)
    if turn is not None:
        _here.turns.give_way(turn)


def _credential_of(head: bytes) -> bytes | None:
    found = _CREDENTIAL.search(head)
    # Only a digest is kept: the process's memory is no place for secrets.
    return hashlib.blake2b(found[1] or found[2], digest_size=16).digest() if found else None
