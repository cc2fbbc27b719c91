"""Limits the requests of a tenant, and of each of its callers, with token buckets that all web processes share.

The limit of a tenant protects the other tenants. The limit of a caller (a token, or a person who signed in) protects its own tenant from a
single runaway program. Because requests differ in cost, a third bucket counts milliseconds of computing: each process charges a tenant's
use before the tenant's next request there, once it exceeds a minimum.

The limits must not cause outages: when Redis does not answer within 50 ms, requests pass unmeasured, and the process does not try
again for five seconds. Unauthenticated requests are counted elsewhere, by address.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Bucket, Decision
from tenants.principals import Principal, caller_of

PATIENCE_SECONDS = 0.05
CHARGED_FROM_MS = 20.0  # less is carried forward, so that cheap requests cause no additional calls to Redis
breaker = Breaker(seconds=5.0)

_lock = threading.Lock()
_work: dict[UUID, float] = {}  # milliseconds of each tenant that this process has not charged yet


class TenantThrottle(BaseThrottle):
    """Answers 429 with Retry-After, and adds the state of the buckets to every answer in RateLimit headers.

    A view that costs more than one unit sets `throttle_cost`.
    """

    def __init__(self) -> None:
        self._wait: float | None = None

    def allow_request(self, request: Request, view: Any) -> bool:
        principal = caller_of(request)
        if principal is None or breaker.is_open():
            return True
        cost, decisions = getattr(view, "throttle_cost", 1.0), {}
        # The caller's bucket first, so that its refusals cost the tenant nothing.
        for name, bucket in (
            ("caller", bucket_of_caller(principal)),
            ("tenant", bucket_of_tenant(principal)),
        ):
            try:
                decisions[name] = (bucket, bucket.take(cost))
            except LimiterUnavailable:
                breaker.trip()
                return True
            if not decisions[name][1].allowed:
                self._wait = decisions[name][1].retry_after
                break
        if self._wait is None:
            self._wait = self._charge_work(principal, decisions)
        view.headers.update(headers_of(decisions))
        return self._wait is None

    def _charge_work(
        self, principal: Principal, decisions: dict[str, tuple[Bucket, Decision]]
    ) -> float | None:
        """Charge the computing time of the tenant's requests in this process. Return how long to wait if the bucket is too empty."""
        milliseconds = _work.pop(principal.tenant_id, 0.0)
        if milliseconds < CHARGED_FROM_MS:
            _add_work(principal.tenant_id, milliseconds)
            return None
        bucket = _bucket(
            f"work:{principal.tenant_id}",
            settings.ORCHESTRATOR_API_WORK_MS_RATE,
            settings.ORCHESTRATOR_API_WORK_MS_BURST,
        )
        try:
            decision = bucket.take(milliseconds)
        except LimiterUnavailable:
            breaker.trip()
            return None
        if decision.allowed:
            return None
        _add_work(principal.tenant_id, milliseconds)
        decisions["work"] = (bucket, decision)
        return decision.retry_after

    def wait(self) -> float | None:
        return self._wait


def note_work(principal: Principal | None, seconds: float) -> None:
    """Record the processor time of a request of this caller."""
    if principal is not None:
        _add_work(principal.tenant_id, seconds * 1000)


def _add_work(tenant_id: UUID, milliseconds: float) -> None:
    with _lock:
        _work[tenant_id] = _work.get(tenant_id, 0.0) + milliseconds


def bucket_of_tenant(principal: Principal) -> Bucket:
    return _bucket(
        f"api:{principal.tenant_id}", settings.ORCHESTRATOR_API_RATE, settings.ORCHESTRATOR_API_BURST
    )


def bucket_of_caller(principal: Principal) -> Bucket:
    name = f"api:{principal.tenant_id}:{principal.credential}"
    return _bucket(name, settings.ORCHESTRATOR_API_CALLER_RATE, settings.ORCHESTRATOR_API_CALLER_BURST)


def _bucket(name: str, rate: float, burst: float) -> Bucket:
    return Bucket(name=name, rate=rate, burst=burst, timeout_seconds=PATIENCE_SECONDS)


def headers_of(decisions: Mapping[str, tuple[Bucket, Decision]]) -> dict[str, str]:
    """Return the headers of draft-ietf-httpapi-ratelimit-headers: q units in w seconds, r of them left, full in t."""
    return {
        "RateLimit-Policy": ", ".join(
            f'"{name}";q={math.floor(bucket.burst)};w={math.ceil(bucket.burst / bucket.rate)}'
            for name, (bucket, _) in decisions.items()
        ),
        "RateLimit": ", ".join(
            _format_remaining(name, bucket, decision) for name, (bucket, decision) in decisions.items()
        ),
    }


def _format_remaining(name: str, bucket: Bucket, decision: Decision) -> str:
    full_in = math.ceil((bucket.burst - decision.remaining) / bucket.rate)
    return f'"{name}";r={max(0, math.floor(decision.remaining))};t={full_in}'
