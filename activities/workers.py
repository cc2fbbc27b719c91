"""A worker process comes up and goes away."""

from __future__ import annotations

import logging

import redis

from activities import leases, relay
from activities.admission import Closed, Exchange, limits
from tenants import row_security
from tenants.checks import tenant_tables

logger = logging.getLogger(__name__)


def begin(*, roles: list[str], concurrency: int) -> None:
    """Take up work: refuse a database that does not keep tenants apart, register, and let admission know the new seats."""
    row_security.refuse_unsafe_database(tenant_tables())
    leases.begin(roles=roles, concurrency=concurrency)
    _tell_admission()


def end() -> None:
    """Stop: no further grants for this process. What it still runs ends or is taken over."""
    leases.end()
    _tell_admission()
    relay.flush()


def _tell_admission() -> None:
    try:
        if limits.refresh():
            relay.turn_over(Exchange(), go_on=False)
    except (Closed, redis.RedisError) as error:
        # The keeper does it at its next tick.
        logger.warning("Admission not told", extra={"action": "limits_wait", "reason": type(error).__name__})
