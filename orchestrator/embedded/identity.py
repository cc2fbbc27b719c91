"""Which process is meant: its pid and the moment it began, so that a reused pid is not mistaken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL_SECONDS = 0.02  # shorter than a person notices, long enough not to burn a core while waiting
_ENDED_STATES = frozenset("ZX")  # a zombie has ended; only its parent has not asked for the exit code yet

#: The servers that this process started and that have not ended yet.
_children: set[int] = set()


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid and its start mark. The mark is opaque: only equality counts."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The living process with this pid, or None."""
        mark = _start_mark(pid)
        return None if mark is None else cls(pid, mark)

    def is_alive(self) -> bool:
        reap()
        return _start_mark(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Signal the process, if it is still the same one."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def adopt(child: subprocess.Popen[bytes]) -> None:
    """Take over a child that is meant to outlive us."""
    _children.add(child.pid)
    # We collect the exit code, the object must not; and its destructor complains about a child that still
    # runs.
    child.returncode = 0


def reap() -> None:
    """Collect those of our children that ended, so that none of them stays a zombie."""
    for pid in tuple(_children):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # another thread was first, or we are a fork of the starter
            ended = pid
        if ended:
            _children.discard(pid)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true within the bound."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _any_start_mark(pid: int) -> str | None:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return repr(process.create_time())
    return None


def _linux_start_mark(pid: int) -> str | None:
    # Clock ticks since boot. Unlike a time of day it does not move when the clock is set.
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the program's name, in parentheses, may hold spaces
    return None if fields[0] in _ENDED_STATES else fields[19]


_start_mark = _linux_start_mark if sys.platform == "linux" else _any_start_mark
