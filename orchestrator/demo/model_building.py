"""Installs what `make demo-model` needs and says how far it is: downloading, compiling in per cent, installing.

Nearly all of the time goes into the compiler, which counts its files. What is left is told from the time that the files so far took,
never from a machine that we have measured; and not before there are enough of them to say anything.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

SECONDS_BETWEEN = 10.0  # two lines about the same stage
ENOUGH_FILES = 10  # before them an estimate would be a guess
ENOUGH_SECONDS = 15.0
LINES_KEPT = 40  # of what was said, for when it fails

_COUNTED = re.compile(r"^\s*\[\s*(?P<done>\d+)/(?P<all>\d+)\]\s")  # as ninja counts
_PERCENT = re.compile(r"^\s*\[\s*(?P<percent>\d{1,3})%\]\s")  # as make counts
_DOWNLOADING = re.compile(r"^\s*(Collecting|Downloading)\b")
_INSTALLING = re.compile(r"^\s*Installing collected packages\b")


class Progress:
    """How far it is, by the lines that pip and the compiler write. Times are seconds of one monotonic clock."""

    def __init__(self, now: float) -> None:
        self.stage, self.since = "downloading", now
        self.done = self.all = 0
        self._first: tuple[float, int] | None = None  # when the first count was read, and how far it was

    def read(self, line: str, now: float) -> None:
        if found := _COUNTED.match(line):
            self._note_compiled(int(found["done"]), int(found["all"]), now)
        elif found := _PERCENT.match(line):
            self._note_compiled(int(found["percent"]), 100, now)
        elif _INSTALLING.match(line):
            self._enter("installing", now)
        elif _DOWNLOADING.match(line) and self.stage != "compiling":
            self._enter("downloading", now)

    def words(self, now: float) -> str:
        """One line about now."""
        if self.stage != "compiling":
            return f"  {self.stage}, {now - self.since:.0f} s"
        # Rounded down: 100 % is said when it is done.
        text = f"  compiling: {100 * self.done // self.all} %"
        left = self.seconds_left(now)
        return text if left is None else f"{text}, about {_duration(left)} left"

    def seconds_left(self, now: float) -> float | None:
        """Until the compiler is done, if the rest goes as what was done so far; None while too little is known."""
        if self.stage != "compiling" or self._first is None:
            return None
        began, already = self._first
        newly_done, seconds = self.done - already, now - began
        # Of what make counts in per cent, ten are enough as well.
        if newly_done < ENOUGH_FILES or seconds < ENOUGH_SECONDS:
            return None
        return seconds / newly_done * (self.all - self.done)

    def _note_compiled(self, done: int, everything: int, now: float) -> None:
        if everything <= 0 or done > everything:
            return
        if self.stage != "compiling" or everything != self.all or done < self.done:
            self._enter("compiling", now)  # a second build counts again
            self._first = (now, done)
        self.done, self.all = done, everything

    def _enter(self, stage: str, now: float) -> None:
        if stage != self.stage:
            self.stage, self.since = stage, now


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, round(seconds / 5) * 5)} s"
    return f"{round(seconds / 60)} min"


def install(
    command: list[str], say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> int:
    """Run pip, and say how far it is, every few seconds and at each new stage. Its exit status; when it failed, also its last lines."""
    progress, said_at, stage = Progress(clock()), clock(), ""
    last: deque[str] = deque(maxlen=LINES_KEPT)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            for line in pip.stdout or ():
                last.append(line.rstrip())
                progress.read(line, now := clock())
                if progress.stage != stage or now - said_at >= SECONDS_BETWEEN:
                    say(progress.words(now))
                    said_at, stage = now, progress.stage
        except BaseException:
            pip.terminate()  # nobody waits for it any more
            raise
    if pip.returncode:
        say("\n".join(last))
    return pip.returncode


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = ("--disable-pip-version-check", "--no-input", "--no-compile", "--progress-bar", "off", "-v")
    try:
        sys.exit(install([sys.executable, "-m", "pip", "install", *options, "-r", sys.argv[1]], _say))
    except KeyboardInterrupt:
        sys.exit(130)
