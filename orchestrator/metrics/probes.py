"""What a scrape asks, all at once, each in a thread of its own: what hangs behind one question keeps the others from nothing."""

from __future__ import annotations

from collections import Counter

from activities import job_records, queue_stats
from activities.dead_letters import operations
from activities.maintenance import counters, invariants
from activities.queue_stats import QueueStats
from agents.governor import overview
from agents.models import Agent
from agents.routing import SYSTEM_QUEUES, queue_of
from console.dependencies import Probe
from tenants import redis
from tenants.context import system_scope


def _standing_of_all() -> QueueStats:
    with system_scope():
        return queue_stats.stats_of_queues()


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


def _dead_letters() -> dict[tuple[str, str, str], int]:
    with system_scope():
        return operations.open_letters()


def _providers() -> dict[tuple[str, str], int]:
    """How many model providers are in which state, by adapter and state. Their addresses may tell of a tenant, so they are left out."""
    return dict(Counter((shown.adapter, shown.state) for shown in overview.of_platform()))


PROBES = (
    Probe("standing", _standing_of_all),
    Probe("counters", counters.read_counters),
    Probe("granted", queue_stats.granted),
    Probe("messages", _messages),
    Probe("providers", _providers),
    Probe("dead-letters", _dead_letters),
    Probe("admission-open", queue_stats.admission_is_open),
    Probe("invariants", invariants.last_known),
    Probe("upkeep", job_records.read),
)
