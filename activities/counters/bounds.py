"""The upper bounds of the buckets. A value falls into the first bucket whose bound is not below it."""

from __future__ import annotations

INFINITY = float("inf")

#: Seconds: from inline work of milliseconds to the hours that agents take which call back.
DURATIONS = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    INFINITY,
)
#: As many attempts as policies usually allow, and more.
ATTEMPTS = (1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 13.0, INFINITY)

#: The counters that are histograms, with their bounds.
HISTOGRAMS = {"wait": DURATIONS, "run": DURATIONS, "attempts": ATTEMPTS}
