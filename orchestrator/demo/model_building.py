"""Installs what `make demo-model` needs, and prints the progress: downloading, compiling in per cent, installing.

Nearly all of the time is compilation, whose output counts the files. The remaining time is estimated from the files compiled so far on this
machine, as soon as there are enough of them.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

SECONDS_BETWEEN = 10.0  # between two lines about the same stage
ENOUGH_FILES = 10  # for an estimate
ENOUGH_SECONDS = 15.0
LINES_KEPT = 40  # of pip's output, printed if it fails

_COUNTED = re.compile(r"^\s*\[\s*(?P<done>\d+)/(?P<all>\d+)\]\s")  # as ninja counts
_PERCENT = re.compile(r"^\s*\[\s*(?P<percent>\d{1,3})%\]\s")  # as make counts
_DOWNLOADING = re.compile(r"^\s*(Collecting|Downloading)\b")
_INSTALLING = re.compile(r"^\s*Installing collected packages\b")


class Progress:
    """The progress, from the output of pip and the compiler. Times are seconds of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self.stage, self.since = "downloading", now
        self.done = self.all = 0
        self._first: tuple[float, int] | None = None  # time and value of the first count

    def read(self, line: str, now: float) -> None:
        if match := _COUNTED.match(line):
            self._set_compiled(int(match["done"]), int(match["all"]), now)
        elif match := _PERCENT.match(line):
            self._set_compiled(int(match["percent"]), 100, now)
        elif _INSTALLING.match(line):
            self._enter("installing", now)
        elif _DOWNLOADING.match(line) and self.stage != "compiling":
            self._enter("downloading", now)

    def words(self, now: float) -> str:
        """Return the current state in one line."""
        if self.stage != "compiling":
            return f"  {self.stage}, {now - self.since:.0f} s"
        # Rounded down, so that 100 % means done.
        text = f"  compiling: {100 * self.done // self.all} %"
        left = self.seconds_left(now)
        return text if left is None else f"{text}, about {_duration(left)} left"

    def seconds_left(self, now: float) -> float | None:
        """Estimate the remaining time of the compilation. None while too little is compiled."""
        if self.stage != "compiling" or self._first is None:
            return None
        began, done_before = self._first
        newly_done, seconds = self.done - done_before, now - began
        # If make counts in per cent, ten per cent are enough too.
        if newly_done < ENOUGH_FILES or seconds < ENOUGH_SECONDS:
            return None
        return seconds / newly_done * (self.all - self.done)

    def _set_compiled(self, done: int, total: int, now: float) -> None:
        if total <= 0 or done > total:
            return
        if self.stage != "compiling" or total != self.all or done < self.done:
            self._enter("compiling", now)  # also for a second build, which starts its own count
            self._first = (now, done)
        self.done, self.all = done, total

    def _enter(self, stage: str, now: float) -> None:
        if stage != self.stage:
            self.stage, self.since = stage, now


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, round(seconds / 5) * 5)} s"
    return f"{round(seconds / 60)} min"


def install(
    command: list[str], report: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> int:
    """Run pip, and return its exit status. Prints the progress regularly, and pip's last lines if it fails."""
    progress, printed_at, stage = Progress(clock()), clock(), ""
    last: deque[str] = deque(maxlen=LINES_KEPT)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            for line in pip.stdout or ():
                last.append(line.rstrip())
                progress.read(line, now := clock())
                if progress.stage != stage or now - printed_at >= SECONDS_BETWEEN:
                    report(progress.words(now))
                    printed_at, stage = now, progress.stage
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode:
        report("\n".join(last))
    return pip.returncode


def _report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = ("--disable-pip-version-check", "--no-input", "--no-compile", "--progress-bar", "off", "-v")
    try:
        sys.exit(install([sys.executable, "-m", "pip", "install", *options, "-r", sys.argv[1]], _report))
    except KeyboardInterrupt:
        sys.exit(130)
