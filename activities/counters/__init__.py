"""Counters: what happened to all activities, as numbers that only grow, kept for the metrics.

The leader reads the history behind the hot path and adds it up, each event once, so that no activity pays for its metrics and
every process answers with the same numbers. They outlive restarts, retention and tenants that leave.
"""

from activities.counters.bounds import ATTEMPTS, DURATIONS, HISTOGRAMS
from activities.counters.counting import count_fresh, note
from activities.counters.reading import Reading, read

__all__ = ("ATTEMPTS", "DURATIONS", "HISTOGRAMS", "Reading", "count_fresh", "note", "read")
