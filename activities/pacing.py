"""Pacing: how often a tenant's agents of a role may be started, where the tenant has set a rate.

Concurrency is admission's; this is about starts per second. A granted activity that comes too early gives its slots back and is due
again when the bucket has a token for it, so nobody waits for it in the meantime.
"""

from __future__ import annotations

from datetime import timedelta

from activities.admission import Grant
from activities.models import Wake
from agents import configuration
from tenants import clock
from tenants.context import tenant_scope
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Bucket

UNKNOWN_SECONDS = 1.0  # How long to wait when Redis cannot tell: fails closed, like admission.


def may_start(grant: Grant) -> bool:
    """Take a token for the start; if there is none, postpone the activity until there will be."""
    rate = configuration.settings_for(grant.tenant_id, grant.role).rate
    if not rate:
        return True
    bucket = Bucket(f"starts:{grant.tenant_id}:{grant.role}", rate=rate["per_second"], burst=rate["capacity"])
    try:
        # Named by the grant, so that a second delivery of the message takes no second token.
        decision = bucket.take(take_id=grant.grant)
        wait = decision.retry_after
        if decision.allowed:
            return True
    except LimiterUnavailable:
        wait = UNKNOWN_SECONDS
    due_at = clock.now() + timedelta(seconds=wait)
    with tenant_scope(grant.tenant_id):
        pending = Wake.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, state="pending", due_at=None
        )
        pending.update(due_at=due_at, cause="rate")
    return False
