"""Bounds one outbound call: its turn, its time, its bytes, and cancellation.

The budget is checked at every wait and read of the connection, so a peer that drips bytes, sends
endless headers or stops reading cannot hold a worker longer than the deadline. Nothing here relies on the wall
clock.

The gate (`Gate`) limits concurrent calls: those of a process, and calls to agents by all processes together. A call without a place
waits for its turn. The places of all processes are leases in Redis, which their holders renew. While Redis does not answer,
each process applies the same limit alone. Waiting is part of the call: it counts towards the deadline and ends when the run is
cancelled. A call that never gets its turn fails with `CallsAtLimit`, which uses up no attempt, because the agent was not called.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Condition
from uuid import uuid4

from agents.contracts import HttpLimits
from agents.exceptions import AgentError, CallsAtLimit, PermanentAgentError, RetryableAgentError
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Places

GATE_POLL_SECONDS = 0.1  # the average time until a place that another process released is noticed
KEEP_SECONDS = 10.0  # how often a call renews its place
ALL_PROCESSES = Places("calls", lease_seconds=60.0)
_breaker = Breaker(seconds=5.0)


#: Returns how long the next wait may last, in seconds. Raises when the call is over.
Patience = Callable[[], float]


class Gate:
    """Limits concurrent calls. Safe to share between threads."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self._changed = Condition()
        self._inside = 0
        self.limits = limits or HttpLimits()

    @property
    def places(self) -> int:
        # Each call has one connection, so with more calls than sockets some would wait in the pool, without a deadline.
        return min(self.limits.max_concurrent, self.limits.max_sockets)

    def set_limits(self, limits: HttpLimits) -> None:
        """Apply these limits to new calls. Current calls are not affected."""
        with self._changed:
            self.limits = limits
            self._changed.notify_all()

    @contextmanager
    def pass_through(self, patience: Patience, *, over_all: bool = True) -> Iterator[HeldPlace | None]:
        """Hold a place for the call until the end of the block. With `over_all` it also holds one of all processes, which must be renewed.

        Raises `CallsAtLimit`, or an error if the run was cancelled.
        """
        self._enter(patience)
        held = HeldPlace(self) if over_all else None
        try:
            if held is not None:
                while not held.keep():
                    pause = GATE_POLL_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
                    time.sleep(min(self._seconds_left(patience), pause))
            yield held
        finally:
            if held is not None:
                held.release()
            with self._changed:
                self._inside -= 1
                self._changed.notify()

    def _enter(self, patience: Patience) -> None:
        while True:
            seconds = self._seconds_left(patience)  # may query the database, so not while holding the lock
            with self._changed:
                if self._inside < self.places:
                    self._inside += 1
                    return
                self._changed.wait(min(seconds, GATE_POLL_SECONDS))

    def _seconds_left(self, patience: Patience) -> float:
        try:
            return patience()
        except RetryableAgentError as error:
            late = CallsAtLimit(f"No more than {self.places} calls may be under way at the same time.")
            late.nothing_sent = True
            raise late from error


class HeldPlace:
    """A call's place among the calls of all processes."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._who, self._kept_at = gate, uuid4().hex, 0.0
        self._is_held = False
        self._may_be_held = False  # also true if the answer of Redis was lost

    def keep(self) -> bool:
        """Take the place or renew it, unless that was done recently. Return False if there is no place yet."""
        if self._is_held and time.monotonic() - self._kept_at < KEEP_SECONDS:
            return True
        if _breaker.is_open():
            return True
        try:
            _release_pending()
            if not ALL_PROCESSES.take(self._gate.limits.max_concurrent, self._who):
                return self._is_held
        except LimiterUnavailable:
            self._may_be_held = True
            _breaker.trip()
            return True
        self._is_held = self._may_be_held = True
        self._kept_at = time.monotonic()
        return True

    def release(self) -> None:
        if not self._may_be_held:
            return
        _pending_releases.append(self._who)
        if _breaker.is_open():
            return
        try:
            _release_pending()
        except LimiterUnavailable:
            _breaker.trip()


#: Places of ended calls that Redis could not release yet. Without this list they would be held until their leases expire, and after
#: an outage all processes would wait for that. Places beyond the bound expire.
_pending_releases: deque[str] = deque(maxlen=10_000)


def _release_pending() -> None:
    """Release the places of ended calls. Raises `LimiterUnavailable` and keeps all of them, because releasing twice does no harm."""
    if pending := tuple(_pending_releases):
        ALL_PROCESSES.give_back(*pending)
        for who in pending:
            with suppress(ValueError):  # another thread has released it
                _pending_releases.remove(who)


shared = Gate()


def reset_after_fork() -> None:
    """Start with an empty gate after a fork, because the current calls are those of the parent."""
    global shared
    shared = Gate(shared.limits)


POLL_SECONDS = 1.0  # how soon a cancelled run closes a silent connection
WIRE_FACTOR = 4  # the overhead of very small chunks in chunked encoding
WIRE_EXTRA_BYTES = 256 * 1024  # for headers, and for bodies that are truncated anyway

_current: ContextVar[Budget] = ContextVar("outbound_budget")


class Budget:
    """The remaining time and bytes of one call, in the thread that makes it."""

    __slots__ = (
        "_bytes_left",
        "_cancelled",
        "_ends_at",
        "_max_bytes",
        "_next_poll",
        "_seconds",
        "place",
        "sending",
    )

    def __init__(self, seconds: float, max_bytes: int, cancelled: Callable[[], bool] | None = None) -> None:
        now = time.monotonic()
        self._seconds = seconds
        self._ends_at = now + seconds
        self._max_bytes = max_bytes
        self._bytes_left = max_bytes * WIRE_FACTOR + WIRE_EXTRA_BYTES
        self._cancelled = cancelled
        self._next_poll = now + POLL_SECONDS
        self.place: HeldPlace | None = None  # among the calls of all processes
        self.sending = False  # whether part of the request may have been sent

    def wait(self) -> float:
        """Return how long the next wait may last, in seconds. Raises when the call is over."""
        now = time.monotonic()
        left = self._ends_at - now
        if left <= 0:
            raise timed_out(self._seconds)
        if self.place is not None:
            self.place.keep()
        if self._cancelled is None:
            return left if self.place is None else min(left, KEEP_SECONDS)
        if now >= self._next_poll:
            self._next_poll = now + POLL_SECONDS
            if self._cancelled():
                raise AgentError("The run was cancelled during the call.", code="run_cancelled")
        return min(left, POLL_SECONDS)

    def receive(self, count: int) -> None:
        """Count bytes that arrived. Raises when the answer is too large."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise too_large(self._max_bytes)

    def shorten(self, seconds: float) -> None:
        """Let the call last at most this much longer."""
        self._ends_at = min(self._ends_at, time.monotonic() + seconds)


@contextmanager
def call_budget(
    seconds: float,
    max_bytes: int,
    cancelled: Callable[[], bool] | None = None,
    *,
    counts_over_all: bool = True,
) -> Iterator[Budget]:
    """Bound all use of the guarded transport in this block, including the wait for its turn and opening connections. One call at a time.

    `counts_over_all`: whether it is a call to an agent, which counts against the limit over all processes.
    Raises `CallsAtLimit` when the call never got its turn.
    """
    budget = Budget(seconds, max_bytes, cancelled)
    with shared.pass_through(budget.wait, over_all=counts_over_all) as budget.place:
        token = _current.set(budget)
        try:
            yield budget
        finally:
            _current.reset(token)


def current() -> Budget:
    """Return the budget of the current call. Raises `RuntimeError` without one, so nothing is sent."""
    try:
        return _current.get()
    except LookupError as error:
        raise RuntimeError("Outbound calls must be made inside outbound.call_budget().") from error


def timed_out(seconds: float) -> RetryableAgentError:
    return RetryableAgentError(f"There was no complete answer within {seconds:g} s.", code="agent_timeout")


def too_large(max_bytes: int) -> PermanentAgentError:
    """Return the error of an answer above the limit. It is permanent, because a retry would get the same answer."""
    return PermanentAgentError(f"The answer is larger than {max_bytes} bytes.", code="answer_too_large")
