"""Schedulers to be killed: `python -m tests.acceptance.schedulers` forks one for each line that it is given, and says its process id.

Forked from a process that has loaded everything, so that one is at work a moment after it was asked for.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import django

PAUSE_SECONDS = 0.02  # between two looks


def look_for_ever() -> None:
    from pipelines.schedules import tending

    while True:
        tending.fire()
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that were killed
    django.setup()
    from pipelines.schedules import tending  # noqa: F401  # loaded once for all

    _say("ready")
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            look_for_ever()
        _say(str(child))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
