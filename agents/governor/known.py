"""Which providers have been called lately, for people who look at how they stand. Nothing depends on it."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, fields
from typing import Any

import orjson
import redis

from agents.governor.profiles import Profile
from agents.governor.providers import Provider
from tenants import redis as connections
from tenants.ttl_cache import TtlCache

from . import governor

logger = logging.getLogger(__name__)

NOTED_SECONDS = 60.0  # how often a process notes a provider that it calls
KEPT_SECONDS = 2 * 86_400.0  # as long as the governor's own state

_noted: TtlCache[bool] = TtlCache(seconds=NOTED_SECONDS, entries=10_000)


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """One that was called. It has no credential in it."""

    key: str
    adapter: str
    place: str
    profile: Profile
    called_at: float  # seconds since 1970, to within a minute


def note(provider: Provider) -> None:
    """Say that this provider is called. Costs nothing but once a minute, and never fails."""
    if _noted.recall(provider.key):
        return
    _noted.keep(provider.key, True)
    row = {
        "adapter": provider.adapter,
        "place": provider.place,
        "profile": asdict(provider.profile),
        "called_at": time.time(),
    }
    try:
        connections.client().hset(governor.known_providers_key(), provider.key, orjson.dumps(row))
    except redis.RedisError:
        logger.info("Provider not noted", extra={"action": "provider_not_noted"})


def providers() -> list[KnownProvider]:
    """Those called within two days, by place. Raises `redis.RedisError`."""
    client = connections.client()
    found: Any = client.hgetall(governor.known_providers_key())
    rows = {key.decode(): orjson.loads(row) for key, row in found.items()}
    old = [key for key, row in rows.items() if row["called_at"] < time.time() - KEPT_SECONDS]
    if old:
        client.hdel(governor.known_providers_key(), *old)
    kept = [
        KnownProvider(key, row["adapter"], row["place"], _profile(row["profile"]), row["called_at"])
        for key, row in rows.items()
        if key not in old
    ]
    return sorted(kept, key=lambda each: (each.adapter, each.place, each.key))


def _profile(row: dict[str, Any]) -> Profile:
    """As another version may have noted it."""
    return Profile(**{each.name: row[each.name] for each in fields(Profile) if each.name in row})
