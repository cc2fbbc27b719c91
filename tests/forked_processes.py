"""Processes that tests freeze and kill, each doing one kind of background work for ever.

They are forked from a process that has loaded everything, so that they start at once.
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
from tests.quick_python import Program

#: Models can be imported only after Django was set up, and this module imports some.
_PROGRAM = "import sys, django; django.setup(); from tests import forked_processes; forked_processes.serve(sys.argv[1])"


class Forks:
    """Starts and kills processes that do the same work."""

    def __init__(self, parent: Program) -> None:
        self.parent, self.alive = parent, list[int]()

    def start(self, argument: int = 0) -> int:
        """Start a process and return its id. The meaning of the argument depends on the work."""
        assert self.parent.stdin
        self.parent.stdin.write(f"{argument}\n")
        self.parent.stdin.flush()
        self.alive.append(int(self.read_line()))
        return self.alive[-1]

    def read_line(self) -> str:
        """Wait for the next line that one of the processes prints."""
        assert self.parent.stdout
        return self.parent.stdout.readline().strip()

    def kill(self, pid: int) -> None:
        self.alive.remove(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def forks(work: str, environment: dict[str, str]) -> Iterator[Forks]:
    """Yield a starter of processes that do the work of this name, in this environment. All are killed at the end."""
    with Program(
        [sys.executable, "-c", _PROGRAM, work],
        env=environment, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        started = Forks(parent)
        try:
            assert started.read_line() == "ready"
            yield started
        finally:
            parent.kill()
            for pid in list(started.alive):
                started.kill(pid)


def lead(_: int) -> None:
    """Lead the upkeep of an installation, or campaign for it."""
    maintenance.begin()
    while True:
        signal.pause()


def fire_schedules(_: int) -> None:
    while True:
        schedules.fire()
        time.sleep(0.05)


def process_batches(stop_after: int) -> None:
    """Process provider batches. After this many answers print "stopped" and wait to be killed; 0: never."""
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
            _print("stopped")
            signal.pause()

    provider_batches.settle_item = counted  # type: ignore[assignment]


WORK: dict[str, Callable[[int], None]] = {
    work.__name__: work for work in (lead, fire_schedules, process_batches)
}


def serve(work: str) -> None:
    """Fork a process that does the work for each line of the input, which is its argument."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that killed processes leave no zombies
    _print("ready")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            WORK[work](int(line))
        _print(str(child))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
