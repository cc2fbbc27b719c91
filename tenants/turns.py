"""Which request a web process answers next: tenants take turns, so that one with many or costly requests mostly delays its own.

Requests that wait for a thread are queued by tenant, and the queues ("lines") are served in turn. Python computes in one thread of a
process at a time, so the number of requests of a line that run at once is limited as well:

    no other tenant in this process for a minute    all threads, except a few that are spare for the next caller
    other tenants are active                        half of the threads
    the same, and this line computes much           one; if more wait, the next begins after a pause of three times what this one took

So a tenant that sends more requests than can be answered gets a quarter of the time of each process while others are active.

Which tenant sends a request is only certain after authentication, which takes time. So a process remembers the tenants of credentials.
Requests with credentials that it has not seen yet, including wrong ones, share one line, and requests without any share another. These two
lines never have more than half of the threads each, so they leave the spare ones to tenants, however long strangers take to send a body.

Nothing here is shared between processes, and nothing needs to outlive them.
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

STRANGERS, NOBODY = "strangers", "nobody"  # lines for credentials not seen yet, and for requests without any
MOST_WAITING = 100  # requests of one line; the next is refused
CREDENTIALS_REMEMBERED = 10_000
ALONE_SECONDS = 60.0  # without requests of other tenants, after which a line may use all threads
ACTIVE_SECONDS = 2.0  # since its last request, in which a tenant counts as active
HEAVY_SHARE = 0.1  # of the process's time, over about MEMORY_SECONDS
MEMORY_SECONDS = 2.0
PAUSE = 3.0  # as a multiple of the time that a request computed, until the next one of its line
LONGEST_PAUSE = 2.0  # seconds
PATIENCE_SECONDS = 0.25  # for which one request gives way to others, in total

_CREDENTIAL = re.compile(
    rb"\r\nauthorization:[ \t]*([^\r\n]+)|\r\ncookie:[^\r\n]*?sessionid=([^;\s]+)", re.IGNORECASE
)


@dataclass(slots=True)
class Turn(Generic[Item]):
    """A request, from its arrival to its end."""

    line: str
    credential: bytes | None
    item: Item
    tenant: str | None = None  # known after authentication
    began_computing: float = 0.0  # by the CPU clock of its thread
    patience: float = PATIENCE_SECONDS


@dataclass(slots=True)
class _Line(Generic[Item]):
    waiting: deque[Turn[Item]] = field(default_factory=deque)
    running: int = 0
    computed: float = 0.0  # seconds; older ones count less
    counted_at: float = 0.0
    not_before: float = 0.0


class Turns(Generic[Item]):
    """The lines of one process. All methods may be called from any thread."""

    def __init__(self, threads: int, spare: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._in_all, self._clock = threads, threads + spare, clock
        self._lines: OrderedDict[str, _Line[Item]] = OrderedDict()  # in the order of their turns
        self._seen: OrderedDict[str, float] = OrderedDict()  # time of the last request by tenant
        self._tenants: OrderedDict[bytes, str] = OrderedDict()  # by credential
        self._running = 0
        self._changed = threading.Condition()

    def wait(self, head: bytes, item: Item) -> bool:
        """Queue a request with this head. False if too many of its line wait already, and it must be refused."""
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
        """Return the next request that may begin now, or None. It runs until `end`."""
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
        """Note that the request has ended, and how many seconds of CPU time it has used."""
        with self._changed:
            now, line = self._clock(), self._lines[turn.line]
            self._running -= 1
            line.running -= 1
            if turn.tenant is not None and turn.credential is not None:
                self._tenants[turn.credential] = turn.tenant
                self._tenants.move_to_end(turn.credential)
                while len(self._tenants) > CREDENTIALS_REMEMBERED:
                    self._tenants.popitem(last=False)
            # The first request of a credential waited in another line, but its time counts for its tenant.
            owner = self._line(turn.tenant or turn.line)
            self._note(turn.tenant or turn.line)
            owner.computed, owner.counted_at = self._computing_time(owner, now) + computed, now
            is_heavy = owner.waiting and self._is_heavy(owner, now)
            if is_heavy and self._others_active(turn.tenant or turn.line, ACTIVE_SECONDS, now):
                owner.not_before = now + min(computed * PAUSE, LONGEST_PAUSE)
            self._forget(now)
            self._changed.notify_all()

    def seconds_until_next(self) -> float:
        """Return how long it takes until the next pausing line may continue; infinite if none pauses."""
        with self._changed:
            now = self._clock()
            due = (line.not_before - now for line in self._lines.values() if line.waiting)
            return max(min((each for each in due if each > 0), default=math.inf), 0.0)

    def give_way(self, turn: Turn[Item]) -> None:
        """If more requests of its line wait, let requests of lines without waiting ones run first, while it has patience left."""
        with self._changed:
            mine = self._lines[turn.line]
            if not mine.waiting:
                return
            began = time.monotonic()
            self._changed.wait_for(lambda: not self._short_line_runs(mine), turn.patience)
            turn.patience = max(turn.patience - (time.monotonic() - began), 0.0)

    def _short_line_runs(self, mine: _Line[Item]) -> bool:
        """Whether a request of another line runs, in which none waits."""
        return any(line.running and not line.waiting and line is not mine for line in self._lines.values())

    def _most_at_once(self, name: str, line: _Line[Item], now: float) -> int:
        if name not in (STRANGERS, NOBODY) and not self._others_active(name, ALONE_SECONDS, now):
            return self._most
        return 1 if self._is_heavy(line, now) else max(self._most // 2, 1)

    def _is_heavy(self, line: _Line[Item], now: float) -> bool:
        return self._computing_time(line, now) > HEAVY_SHARE * MEMORY_SECONDS

    def _computing_time(self, line: _Line[Item], now: float) -> float:
        return line.computed * math.exp((line.counted_at - now) / MEMORY_SECONDS)

    def _others_active(self, name: str, seconds: float, now: float) -> bool:
        """Whether another tenant has sent a request in the last `seconds`."""
        for other in reversed(self._seen):
            if other != name:
                return now - self._seen[other] < seconds
        return False

    def _note(self, name: str) -> None:
        if name not in (STRANGERS, NOBODY):
            self._seen[name] = self._clock()
            self._seen.move_to_end(name)

    def _line(self, name: str) -> _Line[Item]:
        return self._lines.setdefault(name, _Line())

    def _forget(self, now: float) -> None:
        """Forget tenants without requests for long. Two at a time are enough, as one request adds at most one."""
        for name in list(self._seen)[:2] if len(self._seen) > 2 else []:
            line = self._lines.get(name)
            if now - self._seen[name] > ALONE_SECONDS and not (line and (line.waiting or line.running)):
                del self._seen[name]
                self._lines.pop(name, None)


_here = threading.local()


@contextmanager
def hold_turn(turns: Turns[Item], turn: Turn[Item]) -> Iterator[None]:
    """Note that this thread answers the request of that turn within the block."""
    _here.turns, _here.turn = turns, turn
    turn.began_computing = time.thread_time()
    try:
        yield
    finally:
        _here.turns = _here.turn = None
        turns.end(turn, time.thread_time() - turn.began_computing)


def belongs_to(tenant_id: UUID) -> None:
    """Note that the request of this thread was authenticated as one of this tenant."""
    turn = getattr(_here, "turn", None)
    if turn is not None:
        turn.tenant = str(tenant_id)


def give_way() -> None:
    """Let requests of tenants with fewer requests go first. Call it in long computations, without locks or an open transaction.

    Waits for at most `PATIENCE_SECONDS` in one request, and not at all outside of web processes.
    """
    turn = getattr(_here, "turn", None)
    if turn is not None:
        _here.turns.give_way(turn)


def _credential_of(head: bytes) -> bytes | None:
    found = _CREDENTIAL.search(head)
    # Only a digest is kept, so that no secrets stay in the process's memory.
    return hashlib.blake2b(found[1] or found[2], digest_size=16).digest() if found else None
