"""Protection of the host: a worker takes no new work while processor or memory are used beyond their targets, and goes on by itself.

Two rules. Above a target the doors close; they open when every figure is clearly below its target again. And while targets are set, the
number of runs at once grows one by one, with a pause between them: what starts shows in the figures only after a while, so that many starts
at once would overshoot. Runs that take the place of others that have ended wait for nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.conf import settings

from activities import doors, leases
from activities.host_load import Load, Meter

CLEARLY_BELOW = 0.05  # of the share, so that the doors do not swing
SMOOTH_SECONDS = 3.0  # a moment of full processors is no load
PATIENCE_SECONDS = 0.05  # between looks at the doors while a start waits for its turn


@dataclass(slots=True)
class Protection:
    """Of this process. `look` is called about once a second by one thread, `turn` stands around every run."""

    read: Callable[[], Load] = field(default_factory=lambda: Meter().read)
    clock: Callable[[], float] = time.monotonic
    closed: bool = False
    _cpu: float = 0.0
    _looked: float | None = None
    _level: int = 0  # so many runs at once have shown in the figures
    _running: int = 0
    _next_turn: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> Load:
        """Read the figures, and close or open the doors."""
        load = self._smoothed(self.read())
        lease = leases.current()
        lease.load = load.as_dict()
        with self._lock:
            self._level = self._running
        over = [text for name, value, target in _figures(load) if (text := _beyond(name, value, target))]
        if over and not self.closed:
            self.closed = True
            doors.close(", ".join(over))
        elif self.closed and all(value < target - CLEARLY_BELOW for _, value, target in _figures(load)):
            self.closed = False
            doors.open_again()
        return load

    @contextmanager
    def turn(self, lease: leases.Lease, role: str) -> Iterator[bool]:
        """Around a run: it begins when one more at once may; False when the door has closed, perhaps meanwhile."""
        turn = self._take_turn()
        try:
            while doors.is_open(lease, role) and (left := turn - self.clock()) > 0:
                lease.draining.wait(min(left, PATIENCE_SECONDS))
            yield doors.is_open(lease, role)
        finally:
            with self._lock:
                self._running -= 1

    def _take_turn(self) -> float:
        """When the run may begin, by our clock."""
        pause = settings.ORCHESTRATOR_RAMP_SECONDS if _is_on() else 0.0
        with self._lock:
            self._running += 1
            now = self.clock()
            if not pause or self._running <= self._level:
                return now
            self._level = self._running
            turn = max(now, self._next_turn)
            self._next_turn = turn + pause
            return turn

    def _smoothed(self, load: Load) -> Load:
        now = self.clock()
        share = 1.0 if self._looked is None else min(1.0, (now - self._looked) / SMOOTH_SECONDS)
        self._looked = now
        self._cpu += (load.cpu - self._cpu) * share
        return Load(self._cpu, load.memory)


def _is_on() -> bool:
    return bool(settings.ORCHESTRATOR_TARGET_CPU or settings.ORCHESTRATOR_TARGET_MEMORY)


def _figures(load: Load) -> list[tuple[str, float, float]]:
    """Those that have a target."""
    found = (
        ("processor", load.cpu, settings.ORCHESTRATOR_TARGET_CPU),
        ("memory", load.memory, settings.ORCHESTRATOR_TARGET_MEMORY),
    )
    return [figure for figure in found if figure[2]]


def _beyond(name: str, value: float, target: float) -> str | None:
    return f"{name} at {value:.0%}, target {target:.0%}" if value > target else None


#: The one of this process.
PROTECTION = Protection()
