"""Switches: parameters that make an agent slow or faulty on purpose, for demonstrations and tests.

params.delay_ms   additional duration of the work
params.fail       "retryable" (503), "rate_limit" (429), "permanent" (400), or the number of calls of a job that get a 503
params.mode       "async" answers 202 and reports through the callback
"""

from __future__ import annotations

import threading
from collections import Counter

from .job import Job
from .problem import Problem, malformed

LONGEST_DELAY_MS = 3_600_000


def delay_seconds(job: Job) -> float:
    """Return the requested delay of the work."""
    return job.number("delay_ms", 0, least=0, most=LONGEST_DELAY_MS) / 1000


def heartbeat_seconds(job: Job) -> float:
    """Return the interval of an accepted job's heartbeats."""
    return job.number("heartbeat_ms", 1000, least=10, most=60_000) / 1000


def is_async(job: Job) -> bool:
    """Whether to answer 202 and report later."""
    return job.word("mode") == "async"


class Failures:
    """Failures on request. Counts per job, so a number of failures is used up over several attempts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: Counter[str] = Counter()

    def raise_if_requested(self, job: Job) -> None:
        """Raise the `Problem` that `params.fail` requests, if any."""
        wish = job.params.get("fail")
        if wish is None or wish is False:
            return
        if wish == "rate_limit":
            seconds = str(job.number("retry_after", 1, least=0, most=3600))
            raise Problem(429, "rate_limited", "Asked to refuse for now", headers=[("Retry-After", seconds)])
        if wish == "permanent":
            raise Problem(400, "refused_on_request", "Asked to refuse permanently")
        if wish == "retryable" or self._has_failures_left(job, wish):
            raise Problem(503, "failed_on_request", "Asked to fail for now")

    def _has_failures_left(self, job: Job, wish: object) -> bool:
        if isinstance(wish, bool) or not isinstance(wish, int):
            raise malformed("params.fail", 'must be "retryable", "rate_limit", "permanent" or a whole number')
        with self._lock:
            if self._failed[job.job_id] >= wish:
                return False
            self._failed[job.job_id] += 1
            return True
