"""Processes that look after batches, to be killed: `python -m tests.acceptance.batch_keepers` forks one for each line that it is given.

A line is the number of answers after which the process stops in the middle of what it does, says so and waits to be killed; 0: never.
Forked from a process that has loaded everything, so that one is at work a moment after it was asked for.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import count

import django

PAUSE_SECONDS = 0.05  # between two looks


def look_for_ever(stop_after: int) -> None:
    from activities.batches import gathering, leaving, settling, tending

    if stop_after:
        _stop_after(stop_after, settling)
    while True:
        leaving.leave()
        gathering.gather()
        tending.tend()
        time.sleep(PAUSE_SECONDS)


def _stop_after(answers: int, settling: object) -> None:
    settle, numbers = settling.settle, count(1)  # type: ignore[attr-defined]

    def counted(*arguments: object) -> None:
        settle(*arguments)
        if next(numbers) == answers:
            _say("stopped")
            signal.pause()

    settling.settle = counted  # type: ignore[attr-defined]


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that were killed
    django.setup()
    from activities.batches import gathering, leaving, tending  # noqa: F401  # loaded once for all

    _say("ready")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            look_for_ever(int(line))
        _say(str(child))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
