"""Identity of a process: its pid and its start time, so that a reused pid is not mistaken for it."""

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

POLL_SECONDS = 0.02  # too short for a person to notice, and long enough to save processor time
_ENDED_STATES = frozenset("ZX")  # a zombie has ended; only its exit code was not collected yet

#: Servers that this process started and that have not ended yet.
_children: set[int] = set()


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid and its start time. `started` is opaque: only compare it for equality."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the live process with this pid, or None."""
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
    """Track a child that may outlive this process."""
    _children.add(child.pid)
    # `reap` collects the exit code, so the object must not, and its destructor must not warn about a running
    # child.
    child.returncode = 0


def reap() -> None:
    """Collect the exit codes of ended children, so that none stays a zombie."""
    for pid in tuple(_children):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # another thread collected it, or this process is a fork of the starter
            ended = pid
        if ended:
            _children.discard(pid)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition is true, and return False if it is not within `seconds`."""
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
    # Clock ticks since boot, which do not change when the clock is set.
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # because the program's name, in parentheses, may contain spaces
    return None if fields[0] in _ENDED_STATES else fields[19]


_start_mark = _linux_start_mark if sys.platform == "linux" else _any_start_mark
