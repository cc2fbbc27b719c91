"""Processes that do the upkeep, to be frozen and killed: `python -m tests.concurrency.leaders` forks one for each line that it is given.

Forked from a process that has loaded everything, so that one is at work a moment after it was asked for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import django


class Nursery:
    """Starts processes that do the upkeep, and ends them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.alive = process, list[int]()

    def start(self) -> int:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.alive.append(int(self.says()))
        return self.alive[-1]

    def says(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        for pid in self.alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()


@contextmanager
def nursery(environment: dict[str, str]) -> Iterator[Nursery]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.concurrency.leaders"],
        env=environment, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        started = Nursery(process)
        try:
            assert started.says() == "ready"
            yield started
        finally:
            started.end()


def _keep_up() -> None:
    from activities import maintenance

    maintenance.begin()
    while True:
        signal.pause()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that were killed
    django.setup()
    from activities import maintenance  # noqa: F401  # loaded once for all

    _say("ready")
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            _keep_up()
        _say(str(child))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
