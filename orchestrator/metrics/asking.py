"""What a scrape asks, all at once, each in a thread of its own: what hangs behind one question keeps the others from nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from activities import counters, invariants, standing
from activities.admission import scripts
from activities.standing import Standing
from agents.governor import overview
from agents.models import Agent
from agents.routing import SYSTEM_QUEUES, queue_of
from console.probes import Probe
from tenants import redis
from tenants.context import system_scope


@dataclass(frozen=True, slots=True)
class Granted:
    """What was granted to workers of one role and not taken up yet."""

    count: int
    oldest_seconds: float


def _standing_of_all() -> Standing:
    with system_scope():
        return standing.standing()


def _granted() -> dict[str, Granted]:
    """By role. Raises `RedisError`, `scripts.Closed`."""
    ages: dict[str, list[float]] = {}
    for grant in scripts.unstarted():
        ages.setdefault(grant.role, []).append(grant.age_seconds)
    return {role: Granted(len(found), max(found)) for role, found in ages.items()}


def _messages() -> dict[str, int]:
    """How many messages lie in each of Celery's queues. Nothing where the broker is no Redis. Raises `RedisError`."""
    client = redis.broker()
    if client is None:
        return {}
    with system_scope():
        roles = Agent.objects.order_by("role").values_list("role", flat=True)
        names = [*map(queue_of, roles), *SYSTEM_QUEUES]
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.llen(name)
    return dict(zip(names, pipeline.execute(), strict=True))


def _providers() -> dict[tuple[str, str], int]:
    """How many model providers are in which state, by adapter and state. Their addresses may tell of a tenant, so they are left out."""
    return dict(Counter((shown.adapter, shown.state) for shown in overview.of_platform()))


PROBES = (
    Probe("standing", _standing_of_all),
    Probe("counters", counters.read),
    Probe("granted", _granted),
    Probe("messages", _messages),
    Probe("providers", _providers),
    Probe("admission-open", standing.admission_is_open),
    Probe("invariants", invariants.last_known),
)
