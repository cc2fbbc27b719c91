"""Switches: parameters that make an agent slow or faulty on purpose, for demonstrations and tests.

params.delay_ms   how much longer the work takes
params.fail       "retryable" (503), "rate_limit" (429), "permanent" (400), or how many times a job gets a 503
params.mode       "async" answers 202 and reports through the callback
"""

from __future__ import annotations

import threading
from collections import Counter

from .job import Job
from .problem import Problem, malformed

LONGEST_DELAY_MS = 3_600_000


def delay_seconds(job: Job) -> float:
    """How long to wait before the work."""
    return job.number("delay_ms", 0, least=0, most=LONGEST_DELAY_MS) / 1000


def heartbeat_seconds(job: Job) -> float:
    """How long an accepted job may work before it reports again."""
    return job.number("heartbeat_ms", 1000, least=10, most=60_000) / 1000


def is_async(job: Job) -> bool:
    """Whether to answer 202 now and report later."""
    return job.word("mode") == "async"


class Failures:
    """Fails when told to. Counts per job, so a number of failures is used up over several attempts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: Counter[str] = Counter()

    def raise_if_wanted(self, job: Job) -> None:
        """Raise the `Problem` that `params.fail` asks for, if it asks for one now."""
        wish = job.params.get("fail")
        if wish is None or wish is False:
            return
        if wish == "rate_limit":
            seconds = str(job.number("retry_after", 1, least=0, most=3600))
            raise Problem(429, "rate_limited", "Asked to refuse for now", headers=[("Retry-After", seconds)])
        if wish == "permanent":
            raise Problem(400, "refused_on_request", "Asked to refuse for good")
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
