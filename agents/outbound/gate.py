"""How many calls a process has under way at the same time. Who comes when there is no room waits for its turn.

Waiting is part of the call: it counts into the deadline and ends when the run is cancelled. A call that never had its turn
fails with `CallsAtLimit`, which uses up no attempt: the agent was not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Protocol

from agents.contracts import HttpLimits
from agents.exceptions import CallsAtLimit, RetryableAgentError

POLL_SECONDS = 1.0  # how soon a cancelled run gives up its place in the row


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
    def passed(self, call: Patience) -> Iterator[None]:
        """A place for the call, until the end of the block. Raises `CallsAtLimit`, or that the run was cancelled."""
        self._enter(call)
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify()

    def _enter(self, call: Patience) -> None:
        while True:
            try:
                seconds = call.wait()  # may ask the database, so not while others wait for us
            except RetryableAgentError as error:
                late = CallsAtLimit(f"No more than {self.places} calls may be under way at the same time.")
                late.nothing_sent = True
                raise late from error
            with self._changed:
                if self._inside < self.places:
                    self._inside += 1
                    return
                self._changed.wait(min(seconds, POLL_SECONDS))


shared = Gate()


def forget() -> None:
    """After a fork: the calls under way are those of the parent."""
    global shared
    shared = Gate(shared.limits)
