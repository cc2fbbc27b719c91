"""Processes to be frozen and killed, each doing one kind of background work for ever.

They are forked from a process that has loaded everything, so that one is at work a moment after it was asked for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from activities import maintenance, provider_batches
from pipelines.schedules import system_jobs as schedules

#: Models can be imported only after Django was set up, and this module imports some.
_PROGRAM = "import sys, django; django.setup(); from tests import forking; forking.serve(sys.argv[1])"


class Forks:
    """Starts processes that do the same work, and ends them."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        self.parent, self.alive = parent, list[int]()

    def start(self, argument: int = 0) -> int:
        """The id of one more process. What the argument means is said at the work."""
        assert self.parent.stdin
        self.parent.stdin.write(f"{argument}\n")
        self.parent.stdin.flush()
        self.alive.append(int(self.says()))
        return self.alive[-1]

    def says(self) -> str:
        """The next line that one of them says, waited for."""
        assert self.parent.stdout
        return self.parent.stdout.readline().strip()

    def kill(self, pid: int) -> None:
        self.alive.remove(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def forks(work: str, environment: dict[str, str]) -> Iterator[Forks]:
    """Lets the block start processes that do the work of this name, in this environment. None outlives it."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, work],
        env=environment, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        started = Forks(parent)
        try:
            assert started.says() == "ready"
            yield started
        finally:
            parent.kill()
            for pid in list(started.alive):
                started.kill(pid)


def lead(_: int) -> None:
    """Do the upkeep of an installation, or stand by for it."""
    maintenance.begin()
    while True:
        signal.pause()


def fire_schedules(_: int) -> None:
    while True:
        schedules.fire()
        time.sleep(0.02)


def look_after_batches(stop_after: int) -> None:
    """After so many answers the process stops in the middle of what it does, says so and waits to be killed; 0: never."""
    if stop_after:
        _stop_after(stop_after)
    while True:
        provider_batches.move_leaving()
        provider_batches.bind_items()
        provider_batches.advance_due()
        time.sleep(0.05)


def _stop_after(answers: int) -> None:
    settle, numbers = provider_batches.settle_item, count(1)

    def counted(*arguments: object) -> None:
        settle(*arguments)  # type: ignore[arg-type]
        if next(numbers) == answers:
            _say("stopped")
            signal.pause()

    provider_batches.settle_item = counted  # type: ignore[assignment]


WORK: dict[str, Callable[[int], None]] = {
    work.__name__: work for work in (lead, fire_schedules, look_after_batches)
}


def serve(work: str) -> None:
    """Fork a process that does the work for each line that comes in: the argument that it is given."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that were killed
    _say("ready")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            WORK[work](int(line))
        _say(str(child))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
