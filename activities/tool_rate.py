"""How often the agent of one run may knock at the door of the tools, refused calls included.

A quota counts what came of calls; a call that is refused costs statements all the same. This bound is asked of Redis alone, before anything
else, so that an agent that repeats what is refused keeps nobody waiting. Where Redis does not answer at once, calls pass unmeasured.
"""

from __future__ import annotations

from uuid import UUID

from django.conf import settings

from activities.exceptions import QuotaExceeded
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Bucket

PATIENCE_SECONDS = 0.05
_breaker = Breaker(seconds=5.0)


def refuse_hammering(run_id: UUID) -> None:
    """Raise `QuotaExceeded` when the run has called more often than anybody can mean."""
    if _breaker.is_open():
        return
    bucket = Bucket(
        name=f"tools:{run_id}",
        rate=settings.ORCHESTRATOR_TOOL_RATE,
        burst=settings.ORCHESTRATOR_TOOL_BURST,
        timeout_seconds=PATIENCE_SECONDS,
    )
    try:
        decision = bucket.take()
    except LimiterUnavailable:
        _breaker.trip()
        return
    if not decision.allowed:
        raise QuotaExceeded("rate", "This run calls tools faster than anybody answers. Slow down.")
