"""What Redis holds of a tenant: found by the tenant's id, in names of keys and in whatever they hold. Redis is never the truth, so
nothing is lost if a key of several tenants goes; but members of shared keys are taken out one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import redis
from django.conf import settings

from tenants import redis as connections

PAGE = 1_000


def forget(tenant_id: UUID) -> int:
    """Delete them; returns how many keys and members went. Raises `redis.RedisError`."""
    servers = [connections.client()]
    if settings.CELERY_BROKER_URL.startswith("redis") and settings.CELERY_BROKER_URL != settings.REDIS_URL:
        servers.append(redis.Redis.from_url(settings.CELERY_BROKER_URL, protocol=2))
    mark = str(tenant_id).encode()
    return sum(
        _forget_in(server, key, mark) for server in servers for key in server.scan_iter(match="*", count=PAGE)
    )


def _forget_in(server: Any, key: bytes, mark: bytes) -> int:
    if mark in key:
        return int(server.delete(key))
    forget = _BY_TYPE.get(server.type(key))
    return 0 if forget is None else forget(server, key, mark)


def _from_text(server: Any, key: bytes, mark: bytes) -> int:
    return int(server.delete(key)) if mark in (server.get(key) or b"") else 0


def _from_list(server: Any, key: bytes, mark: bytes) -> int:
    return sum(int(server.lrem(key, 0, each)) for each in server.lrange(key, 0, -1) if mark in each)


def _from_hash(server: Any, key: bytes, mark: bytes) -> int:
    found = [name for name, value in server.hscan_iter(key, count=PAGE) if mark in name or mark in value]
    return _in_pages(found, lambda page: server.hdel(key, *page))


def _from_set(server: Any, key: bytes, mark: bytes) -> int:
    found = [each for each in server.sscan_iter(key, count=PAGE) if mark in each]
    return _in_pages(found, lambda page: server.srem(key, *page))


def _from_sorted_set(server: Any, key: bytes, mark: bytes) -> int:
    found = [each for each, _ in server.zscan_iter(key, count=PAGE) if mark in each]
    return _in_pages(found, lambda page: server.zrem(key, *page))


def _in_pages(found: Iterable[bytes], forget: Callable[[list[bytes]], Any]) -> int:
    members = list(found)
    return sum(int(forget(members[start : start + PAGE])) for start in range(0, len(members), PAGE))


_BY_TYPE: dict[bytes, Callable[[Any, bytes, bytes], int]] = {
    b"string": _from_text,
    b"list": _from_list,
    b"hash": _from_hash,
    b"set": _from_set,
    b"zset": _from_sorted_set,
}
