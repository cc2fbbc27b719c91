"""Load shedding: a worker takes no new work while the processor or memory load of its host is above its target.

The intake closes while one value is above its target, and opens when every value is clearly below. If targets are set, additional
concurrent runs start one by one, with a pause between them: the load of a start shows only after a while, so many starts at once would
overshoot. Runs that replace ended ones do not wait.
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

# Processor and memory load of this host and of the container around this process.
#
# In a container with its own limits (cgroup version 2) the larger of both loads counts: a container can reach its limit on an idle host,
# and the host can be full while the container is idle.

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Load:
    """Load as shares from 0 to 1. A container may exceed its processor limit for a moment."""

    cpu: float
    memory: float

    def as_dict(self) -> dict[str, float]:
        return {"cpu": round(self.cpu, 3), "memory": round(self.memory, 3)}


@dataclass(slots=True)
class Meter:
    """Measures the load since its last reading; the first reading returns 0 for the processor."""

    root: Path = CGROUPS
    clock: Callable[[], float] = time.monotonic
    _host: tuple[float, float] | None = None  # busy and total seconds of the host
    # Used seconds, and the time of the reading.
    _groups: dict[Path, tuple[float, float]] = field(default_factory=dict)

    def read(self) -> Load:
        groups = list(self._list_control_groups())
        memory = psutil.virtual_memory()
        return Load(
            cpu=max([self._cpu_of_host(), *map(self._cpu_of_group, groups)]),
            memory=max([(1.0 - memory.available / memory.total), *map(_memory_of_group, groups)]),
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
        """Yield our control group and its parents, as far as this process can see them."""
        own = next(
            (line[3:] for line in _text(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")),
            "/",
        )
        own_group = self.root / own.lstrip("/")
        for group in (own_group, *own_group.parents):
            if (group / "cpu.max").exists() or (group / "memory.max").exists():
                yield group
            if group == self.root:
                return


def _memory_of_group(group: Path) -> float:
    """Return the used share, without inactive file pages, because the kernel reclaims them when it needs memory."""
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
    """Return the value of a line `name value`, or 0."""
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


CLEARLY_BELOW = 0.05  # below the target, so that the intake does not open and close all the time
SMOOTH_SECONDS = 3.0  # averages out short peaks of the processor
PATIENCE_SECONDS = 0.05  # between checks of the intake while a start waits for its turn


@dataclass(slots=True)
class Protection:
    """Load protection of this process. One thread calls `measure` about once a second; every run happens inside `turn`."""

    read: Callable[[], Load] = field(default_factory=lambda: Meter().read)
    clock: Callable[[], float] = time.monotonic
    closed: bool = False
    _cpu: float = 0.0
    _measured_at: float | None = None
    _level: int = 0  # the number of concurrent runs that the measured load includes
    _running: int = 0
    _next_turn: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def measure(self) -> Load:
        """Measure the load, and close or open the intake."""
        load = self._smooth(self.read())
        lease = leases.current()
        lease.load = load.as_dict()
        with self._lock:
            self._level = self._running
        loads = _loads_with_target(load)
        too_high = [
            f"{name} at {value:.0%}, target {target:.0%}" for name, value, target in loads if value > target
        ]
        if too_high and not self.closed:
            self.closed = True
            intake.close(", ".join(too_high))
        elif self.closed and all(value < target - CLEARLY_BELOW for _, value, target in loads):
            self.closed = False
            intake.open_again()
        return load

    @contextmanager
    def turn(self, lease: leases.Lease) -> Iterator[bool]:
        """Surround a run: wait until it may begin, and yield whether the intake is still open."""
        turn = self._take_turn()
        try:
            while not lease.closed and (remaining := turn - self.clock()) > 0:
                lease.draining.wait(min(remaining, PATIENCE_SECONDS))
            yield not lease.closed
        finally:
            with self._lock:
                self._running -= 1

    def _take_turn(self) -> float:
        """Return when the run may begin, by `clock`."""
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
        share = 1.0 if self._measured_at is None else min(1.0, (now - self._measured_at) / SMOOTH_SECONDS)
        self._measured_at = now
        self._cpu += (load.cpu - self._cpu) * share
        return Load(self._cpu, load.memory)


def _loads_with_target(load: Load) -> list[tuple[str, float, float]]:
    """Return name, value and target of the loads that have a target."""
    loads = (
        ("processor", load.cpu, settings.ORCHESTRATOR_TARGET_CPU),
        ("memory", load.memory, settings.ORCHESTRATOR_TARGET_MEMORY),
    )
    return [each for each in loads if each[2]]


#: The instance of this process.
PROTECTION = Protection()
