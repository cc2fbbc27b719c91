"""How loaded this host is, or the container that we run in: processor and memory as shares of what there is.

In a container with limits of its own (cgroup version 2) the larger of both shares counts: its limit may be used up on an idle host, and the
host may be full while the container has hardly begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

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
        groups = list(self._limited())
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

    def _limited(self) -> Iterator[Path]:
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
