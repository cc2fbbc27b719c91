"""What one outbound call may cost: time, bytes, and until when anybody still wants its answer.

The budget is consulted at every single wait and read of the connection, so a peer that drips bytes, sends
endless headers or stops reading cannot hold a worker longer than the deadline. Nothing here trusts the wall
clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agents.exceptions import AgentError, PermanentAgentError, RetryableAgentError
from agents.outbound import gate

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
        self.place: gate.Held | None = None  # among the calls of all processes
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
            return left if self.place is None else min(left, gate.KEEP_SECONDS)
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
    with gate.shared.passed(budget, over_all=counts_over_all) as budget.place:
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
