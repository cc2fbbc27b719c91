"""Figures of a scenario, and how they are calculated from samples."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

#: Name of a figure, with its unit, and its value.
Figures = dict[str, float]


def percentile(samples: Iterable[float], percent: int) -> float:
    """Return the value that `percent` of the samples do not exceed, interpolated. There must be at least two samples."""
    return statistics.quantiles(samples, n=100)[percent - 1]


def percentiles(
    name: str, milliseconds: Iterable[float], *, percents: Iterable[int] = (50, 95, 99)
) -> Figures:
    """Return figures such as "`name` p95 ms"."""
    samples = list(milliseconds)
    return {f"{name} p{percent} ms": percentile(samples, percent) for percent in percents}


def rate(moments: Iterable[float]) -> float:
    """Return events per second between the first and the last tenth of these moments (seconds), so that start and end do not count."""
    ordered = sorted(moments)
    low, high = len(ordered) // 10, len(ordered) - len(ordered) // 10 - 1
    return (high - low) / max(ordered[high] - ordered[low], 1e-9)
