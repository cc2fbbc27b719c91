"""How many requests a tenant may send: one token bucket per tenant, shared by all web processes.

The limit protects the others, so it gives way before it harms: when Redis does not answer within 50 ms,
requests pass unmeasured, and for five seconds the process does not ask again.
"""

from __future__ import annotations

import math
from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Bucket, Decision
from tenants.principals import Principal, caller_of

PATIENCE_SECONDS = 0.05
breaker = Breaker(seconds=5.0)


class TenantThrottle(BaseThrottle):
    """Answers 429 with Retry-After; tells the state of the bucket in RateLimit headers of every answer.

    A view that costs more than one unit says so with `throttle_cost`.
    """

    def __init__(self) -> None:
        self._decision: Decision | None = None

    def allow_request(self, request: Request, view: Any) -> bool:
        principal = caller_of(request)
        if principal is None or breaker.is_open():
            return True
        bucket = bucket_of(principal)
        try:
            self._decision = bucket.take(getattr(view, "throttle_cost", 1.0))
        except LimiterUnavailable:
            breaker.trip()
            return True
        view.headers.update(headers_of(bucket, self._decision))
        return self._decision.allowed

    def wait(self) -> float | None:
        return self._decision.retry_after if self._decision else None


def bucket_of(principal: Principal) -> Bucket:
    return Bucket(
        name=f"api:{principal.tenant_id}",
        rate=settings.ORCHESTRATOR_API_RATE,
        burst=settings.ORCHESTRATOR_API_BURST,
        timeout_seconds=PATIENCE_SECONDS,
    )


def headers_of(bucket: Bucket, decision: Decision) -> dict[str, str]:
    """As draft-ietf-httpapi-ratelimit-headers has it: q units in w seconds, r of them left, full in t."""
    window = math.ceil(bucket.burst / bucket.rate)
    full_in = math.ceil((bucket.burst - decision.remaining) / bucket.rate)
    return {
        "RateLimit-Policy": f'"tenant";q={math.floor(bucket.burst)};w={window}',
        "RateLimit": f'"tenant";r={max(0, math.floor(decision.remaining))};t={full_in}',
    }
