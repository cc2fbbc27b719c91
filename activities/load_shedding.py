"""Load shedding: a worker takes no new work while processor or memory of its host are used beyond their targets.

While a figure is above its target the intake is closed; it opens when every figure is clearly below its target again. And while targets
are set, the number of runs at once grows one by one, with a pause between them: the load of a start is measured only after a while, so
many starts at once would overshoot. Runs that take the place of others that have ended do not wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from django.conf import settings

from activities import intake, leases

# How loaded this host is, or the container that we run in: processor and memory as shares of what there is.
#
# In a container with limits of its own (cgroup version 2) the larger of both shares counts: its limit may be used up on an idle host, and
# the host may be full while the container has hardly begun.


CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Load:
    """Shares from 0 to 1. A container may use a little more than its limit of processor time for a moment."""

    cpu: float
    memory: float

    def as_dict(self) -> dict[str, float]:
        return {"cpu": round(self.cpu, 3), "memory": round(self.memory, 3)}


@dataclass(slots=True)
class Meter:
    """Reads the load since its last reading; the first one says 0 for the processor."""

    root: Path = CGROUPS
    clock: Callable[[], float] = time.monotonic
    _host: tuple[float, float] | None = None  # busy and all seconds of the host
    _groups: dict[Path, tuple[float, float]] = field(default_factory=dict)  # used seconds and when

    def read(self) -> Load:
        groups = list(self._list_control_groups())
        return Load(
            cpu=max([self._cpu_of_host(), *map(self._cpu_of_group, groups)]),
            memory=max([_memory_of_host(), *map(_memory_of_group, groups)]),
        )

    def _cpu_of_host(self) -> float:
        times = psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        before, self._host = self._host, (busy, total)
        if before is None or total <= before[1]:
            return 0.0
        return max(0.0, (busy - before[0]) / (total - before[1]))

    def _cpu_of_group(self, group: Path) -> float:
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if not quota.isdigit() or not period.isdigit():
            return 0.0
        used, now = _number(group / "cpu.stat", "usage_usec") / 1e6, self.clock()
        before = self._groups.get(group)
        self._groups[group] = (used, now)
        if before is None or now <= before[1]:
            return 0.0
        return (used - before[0]) / (now - before[1]) / (int(quota) / int(period))

    def _list_control_groups(self) -> Iterator[Path]:
        """Our control group and those around it, as far as they can be seen from here."""
        own = next(
            (line[3:] for line in _text(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")),
            "/",
        )
        place = self.root / own.lstrip("/")
        for group in (place, *place.parents):
            if (group / "cpu.max").exists() or (group / "memory.max").exists():
                yield group
            if group == self.root:
                return


def _memory_of_host() -> float:
    memory = psutil.virtual_memory()
    return 1.0 - memory.available / memory.total


def _memory_of_group(group: Path) -> float:
    """Without the pages of files that nobody uses, which the kernel takes back when it needs room."""
    limit = _text(group / "memory.max")
    if not limit.isdigit() or int(limit) == 0:
        return 0.0
    used = int(_text(group / "memory.current") or 0) - _number(group / "memory.stat", "inactive_file")
    return max(0.0, used / int(limit))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path, name: str) -> int:
    """The value of a line `name value`, or 0."""
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


CLEARLY_BELOW = 0.05  # of the share, so that the intake does not open and close all the time
SMOOTH_SECONDS = 3.0  # a moment of full processors is no load
PATIENCE_SECONDS = 0.05  # between looks at the intake while a start waits for its turn


@dataclass(slots=True)
class Protection:
    """Load protection of this process. One thread calls `look` about once a second; every run is inside `turn`."""

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
        """Measure the load, and close or open the intake."""
        load = self._smooth(self.read())
        lease = leases.current()
        lease.load = load.as_dict()
        with self._lock:
            self._level = self._running
        over = [text for name, value, target in _figures(load) if (text := _beyond(name, value, target))]
        if over and not self.closed:
            self.closed = True
            intake.close(", ".join(over))
        elif self.closed and all(value < target - CLEARLY_BELOW for _, value, target in _figures(load)):
            self.closed = False
            intake.open_again()
        return load

    @contextmanager
    def turn(self, lease: leases.Lease, role: str) -> Iterator[bool]:
        """Surrounds a run: waits until one more run may begin. False when the intake has been closed, perhaps meanwhile."""
        turn = self._take_turn()
        try:
            while intake.is_open(lease, role) and (left := turn - self.clock()) > 0:
                lease.draining.wait(min(left, PATIENCE_SECONDS))
            yield intake.is_open(lease, role)
        finally:
            with self._lock:
                self._running -= 1

    def _take_turn(self) -> float:
        """When the run may begin, by our clock."""
        is_on = settings.ORCHESTRATOR_TARGET_CPU or settings.ORCHESTRATOR_TARGET_MEMORY
        pause = settings.ORCHESTRATOR_RAMP_SECONDS if is_on else 0.0
        with self._lock:
            self._running += 1
            now = self.clock()
            if not pause or self._running <= self._level:
                return now
            self._level = self._running
            turn = max(now, self._next_turn)
            self._next_turn = turn + pause
            return turn

    def _smooth(self, load: Load) -> Load:
        now = self.clock()
        share = 1.0 if self._looked is None else min(1.0, (now - self._looked) / SMOOTH_SECONDS)
        self._looked = now
        self._cpu += (load.cpu - self._cpu) * share
        return Load(self._cpu, load.memory)


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
