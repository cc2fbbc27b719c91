"""How many requests a tenant, and each of its callers, may send: token buckets shared by all web processes.

The limit of a tenant protects the other tenants, that of a caller (a token, or a person who signed in) protects its own tenant from one
program that runs wild. As requests differ in what they cost, a third bucket holds milliseconds of computing: what the requests of a tenant
have taken in a process is charged before its next one there, once it is worth a question.

They give way before they harm: when Redis does not answer within 50 ms, requests pass unmeasured, and for five seconds the process does
not ask again. Who cannot say who they are is counted elsewhere, by address.
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
CHARGED_FROM_MS = 20.0  # less is carried forward, so that cheap requests ask Redis no more than before
breaker = Breaker(seconds=5.0)

_lock = threading.Lock()
_work: dict[UUID, float] = {}  # milliseconds of each tenant that this process has not charged yet


class TenantThrottle(BaseThrottle):
    """Answers 429 with Retry-After; tells the state of the buckets in RateLimit headers of every answer.

    A view that costs more than one unit says so with `throttle_cost`.
    """

    def __init__(self) -> None:
        self._wait: float | None = None

    def allow_request(self, request: Request, view: Any) -> bool:
        principal = caller_of(request)
        if principal is None or breaker.is_open():
            return True
        cost, found = getattr(view, "throttle_cost", 1.0), {}
        # The narrow one first: what it refuses costs the tenant nothing.
        for name, bucket in (
            ("caller", bucket_of_caller(principal)),
            ("tenant", bucket_of_tenant(principal)),
        ):
            try:
                found[name] = (bucket, bucket.take(cost))
            except LimiterUnavailable:
                breaker.trip()
                return True
            if not found[name][1].allowed:
                self._wait = found[name][1].retry_after
                break
        if self._wait is None:
            self._wait = self._charge_work(principal, found)
        view.headers.update(headers_of(found))
        return self._wait is None

    def _charge_work(self, principal: Principal, found: dict[str, tuple[Bucket, Decision]]) -> float | None:
        """Pay for what the tenant's requests have taken here; how long to wait when it cannot be paid yet."""
        seconds = _work.pop(principal.tenant_id, 0.0)
        if seconds < CHARGED_FROM_MS:
            _add_work(principal.tenant_id, seconds)
            return None
        bucket = bucket_of_work(principal)
        try:
            decision = bucket.take(seconds)
        except LimiterUnavailable:
            breaker.trip()
            return None
        if decision.allowed:
            return None
        _add_work(principal.tenant_id, seconds)
        found["work"] = (bucket, decision)
        return decision.retry_after

    def wait(self) -> float | None:
        return self._wait


def note_work(principal: Principal | None, seconds: float) -> None:
    """A request of this caller has taken so much of the processor."""
    if principal is not None:
        _add_work(principal.tenant_id, seconds * 1000)


def _add_work(tenant_id: UUID, milliseconds: float) -> None:
    with _lock:
        _work[tenant_id] = _work.get(tenant_id, 0.0) + milliseconds


def bucket_of_work(principal: Principal) -> Bucket:
    return _bucket(
        f"work:{principal.tenant_id}",
        settings.ORCHESTRATOR_API_WORK_MS_RATE,
        settings.ORCHESTRATOR_API_WORK_MS_BURST,
    )


def bucket_of_tenant(principal: Principal) -> Bucket:
    return _bucket(
        f"api:{principal.tenant_id}", settings.ORCHESTRATOR_API_RATE, settings.ORCHESTRATOR_API_BURST
    )


def bucket_of_caller(principal: Principal) -> Bucket:
    name = f"api:{principal.tenant_id}:{principal.credential}"
    return _bucket(name, settings.ORCHESTRATOR_API_CALLER_RATE, settings.ORCHESTRATOR_API_CALLER_BURST)


def _bucket(name: str, rate: float, burst: float) -> Bucket:
    return Bucket(name=name, rate=rate, burst=burst, timeout_seconds=PATIENCE_SECONDS)


def headers_of(found: Mapping[str, tuple[Bucket, Decision]]) -> dict[str, str]:
    """As draft-ietf-httpapi-ratelimit-headers has it: q units in w seconds, r of them left, full in t."""
    return {
        "RateLimit-Policy": ", ".join(_policy(name, bucket) for name, (bucket, _) in found.items()),
        "RateLimit": ", ".join(
            _format_remaining(name, bucket, decision) for name, (bucket, decision) in found.items()
        ),
    }


def _policy(name: str, bucket: Bucket) -> str:
    return f'"{name}";q={math.floor(bucket.burst)};w={math.ceil(bucket.burst / bucket.rate)}'


def _format_remaining(name: str, bucket: Bucket, decision: Decision) -> str:
    full_in = math.ceil((bucket.burst - decision.remaining) / bucket.rate)
    return f'"{name}";r={max(0, math.floor(decision.remaining))};t={full_in}'
