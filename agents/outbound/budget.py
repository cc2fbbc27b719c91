"""What one outbound call may cost: its turn, time, bytes, and until when anybody still wants its answer.

The budget is consulted at every single wait and read of the connection, so a peer that drips bytes, sends
endless headers or stops reading cannot hold a worker longer than the deadline. Nothing here trusts the wall
clock.

So many calls may be under way at the same time (`Gate`): of a process, and to agents of all processes together. Who comes when there is no
room waits for its turn. The places of all processes are held in Redis for as long as their holders say so. While Redis does not answer,
each process keeps to the same number by itself. Waiting is part of the call: it counts into the deadline and ends when the run is
cancelled. A call that never had its turn fails with `CallsAtLimit`, which uses up no attempt: the agent was not asked.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Condition
from typing import Protocol
from uuid import uuid4

from agents.contracts import HttpLimits
from agents.exceptions import AgentError, CallsAtLimit, PermanentAgentError, RetryableAgentError
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Places

LOOK_SECONDS = 0.1  # about how soon a place that another process gave back is seen
KEEP_SECONDS = 10.0  # how often a call says that it still holds its place
OVER_ALL = Places("calls", lease_seconds=60.0)
_breaker = Breaker(seconds=5.0)


class Patience(Protocol):
    def wait(self) -> float:
        """How long the next wait may last, in seconds. Raises when the call is over."""


class Gate:
    """Safe to share between threads."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self._changed = Condition()
        self._inside = 0
        self.limits = limits or HttpLimits()

    @property
    def places(self) -> int:
        # Each call has one connection, so with more calls than sockets some would wait where nobody looks at the clock.
        return min(self.limits.max_concurrent, self.limits.max_sockets)

    def obey(self, limits: HttpLimits) -> None:
        """Let these limits hold from now on. Calls under way are not disturbed."""
        with self._changed:
            self.limits = limits
            self._changed.notify_all()

    @contextmanager
    def pass_through(self, call: Patience, *, over_all: bool = True) -> Iterator[HeldPlace | None]:
        """A place for the call, until the end of the block; with `over_all` also among those of all processes, which is to be kept.

        Raises `CallsAtLimit`, or that the run was cancelled.
        """
        self._enter(call)
        held = HeldPlace(self) if over_all else None
        try:
            if held is not None:
                while not held.keep():
                    time.sleep(min(self._patience(call), LOOK_SECONDS * random.uniform(0.5, 1.5)))  # noqa: S311
            yield held
        finally:
            if held is not None:
                held.give_back()
            with self._changed:
                self._inside -= 1
                self._changed.notify()

    def _enter(self, call: Patience) -> None:
        while True:
            seconds = self._patience(call)  # may ask the database, so not while others wait for us
            with self._changed:
                if self._inside < self.places:
                    self._inside += 1
                    return
                self._changed.wait(min(seconds, POLL_SECONDS))

    def _patience(self, call: Patience) -> float:
        try:
            return call.wait()
        except RetryableAgentError as error:
            late = CallsAtLimit(f"No more than {self.places} calls may be under way at the same time.")
            late.nothing_sent = True
            raise late from error


class HeldPlace:
    """The place of a call among those of all processes."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._who, self._kept_at = gate, uuid4().hex, 0.0
        self._is_held = False
        self._may_be_held = False  # also where the answer was lost

    def keep(self) -> bool:
        """Say that the call goes on, if it has not said so lately. False: there is no place yet."""
        if self._is_held and time.monotonic() - self._kept_at < KEEP_SECONDS:
            return True
        if _breaker.is_open():
            return True
        try:
            _give_back_owed()
            if not OVER_ALL.take(self._gate.limits.max_concurrent, self._who):
                return self._is_held
        except LimiterUnavailable:
            self._may_be_held = True
            _breaker.trip()
            return True
        self._is_held = self._may_be_held = True
        self._kept_at = time.monotonic()
        return True

    def give_back(self) -> None:
        if not self._may_be_held:
            return
        _owed.append(self._who)
        if _breaker.is_open():
            return
        try:
            _give_back_owed()
        except LimiterUnavailable:
            _breaker.trip()


#: Places of calls that have ended, which Redis has not heard of yet. Without it they would be held until their time runs out, and after
#: an outage all processes would wait for that. Those beyond the bound are left to time.
_owed: deque[str] = deque(maxlen=10_000)


def _give_back_owed() -> None:
    """Raises `LimiterUnavailable`, and owes all of them still: giving back twice does no harm."""
    if owed := tuple(_owed):
        OVER_ALL.give_back(*owed)
        for who in owed:
            with suppress(ValueError):  # another thread was faster
                _owed.remove(who)


shared = Gate()


def forget() -> None:
    """After a fork: the calls under way are those of the parent."""
    global shared
    shared = Gate(shared.limits)


POLL_SECONDS = 1.0  # how soon a cancelled run lets go of a silent connection
WIRE_FACTOR = 4  # chunked encoding of very small chunks costs this much more than the body itself
WIRE_EXTRA_BYTES = 256 * 1024  # for headers, and for bodies that are cut anyway

_current: ContextVar[Budget] = ContextVar("outbound_budget")


class Budget:
    """Counts down during one call, in the thread that makes it."""

    __slots__ = ("_bytes_left", "_cancelled", "_ends_at", "_next_poll", "_seconds", "place", "sending")

    def __init__(self, seconds: float, max_bytes: int, cancelled: Callable[[], bool] | None = None) -> None:
        now = time.monotonic()
        self._seconds = seconds
        self._ends_at = now + seconds
        self._bytes_left = max_bytes * WIRE_FACTOR + WIRE_EXTRA_BYTES
        self._cancelled = cancelled
        self._next_poll = now + POLL_SECONDS
        self.place: HeldPlace | None = None  # among the calls of all processes
        self.sending = False  # whether a part of the request may have left

    def wait(self) -> float:
        """How long the next wait may last, in seconds. Raises when the call is over."""
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
        """Take note of bytes that arrived. Raises when the answer has become too expensive."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise too_large()

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
    """Bound all that goes through the guarded transport in this block: waiting for its turn and opening connections included.

    `counts_over_all`: whether it is a call to an agent, of which all processes together have so many under way. One call at a time.
    Raises `CallsAtLimit` when its turn never came.
    """
    budget = Budget(seconds, max_bytes, cancelled)
    with shared.pass_through(budget, over_all=counts_over_all) as budget.place:
        token = _current.set(budget)
        try:
            yield budget
        finally:
            _current.reset(token)


def current() -> Budget:
    """The budget of the call in progress. Without one, nothing goes out."""
    try:
        return _current.get()
    except LookupError as error:
        raise RuntimeError("Outbound calls must be made inside outbound.call_budget().") from error


def timed_out(seconds: float) -> RetryableAgentError:
    """The error of a call whose time is over."""
    return RetryableAgentError(f"There was no complete answer within {seconds:g} s.", code="agent_timeout")


def too_large() -> PermanentAgentError:
    """The error of an answer above the limit. Asking again would bring the same answer."""
    return PermanentAgentError("The answer is larger than the limit.", code="answer_too_large")
