"""What an agent and its children use of memory and processor: sampled while they run, completed by the kernel's account at the end."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

import psutil


@dataclass(frozen=True, slots=True)
class Resources:
    """`peak_rss_bytes` adds up the tree at its largest sample; pages that its processes share count for each of them."""

    peak_rss_bytes: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0

    def as_dict(self) -> dict[str, float | int]:
        return {
            "peak_rss_bytes": self.peak_rss_bytes,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "processes": self.processes,
        }


@dataclass(slots=True)
class Meter:
    """Of the tree below one process."""

    pid: int
    peak: int = 0
    most: int = 0
    _cpu: dict[tuple[int, float], float] = field(
        default_factory=dict
    )  # by process, which may end between two samples

    def sample(self) -> None:
        """Look at every process of the tree once; what has just ended is left out."""
        rss = count = 0
        for process in tree_of(self.pid):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss += process.memory_info().rss
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
                    count += 1
            except psutil.Error:
                continue
        self.peak, self.most = max(self.peak, rss), max(self.most, count)

    def so_far(self) -> Resources:
        return Resources(self.peak, sum(self._cpu.values()), self.most)

    def complete(self, used: resource.struct_rusage) -> Resources:
        """With the kernel's account of the ended process and of the children that it waited for."""
        kilobyte = 1024  # on Linux; the figure is bytes elsewhere, and then the samples are larger anyway
        return Resources(
            peak_rss_bytes=max(self.peak, used.ru_maxrss * kilobyte),
            cpu_seconds=max(sum(self._cpu.values()), used.ru_utime + used.ru_stime),
            processes=max(self.most, 1),
        )


def tree_of(pid: int) -> list[psutil.Process]:
    """The process and everything that it started and that still has it for an ancestor; nothing when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
