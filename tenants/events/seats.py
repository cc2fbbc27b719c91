"""Seats: how many streams a tenant and a caller may have open, over all web processes.

They are leases in Redis that lapse by themselves, so a process that dies gives its seats back. When Redis does not answer, nobody is
refused: the limit protects the others, and each process has one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from uuid import UUID

import redis
from django.conf import settings

from tenants import redis as connections
from tenants.events import keys
from tenants.exceptions import TenantError
from tenants.identifiers import uuid7
from tenants.principals import Principal

LAPSE_SECONDS = 30  # three renewals
PATIENCE_SECONDS = 0.5  # with Redis


class TooManyStreams(TenantError):
    """The tenant, the caller or this process has as many streams open as it may. Close one, or come back later."""

    code = "too_many_streams"
    status = 429
    retry_after = 5


def take(principal: Principal) -> str:
    """A seat for one more stream. Raises `TooManyStreams`."""
    seat = str(uuid7())
    most = {
        "tenant": settings.ORCHESTRATOR_STREAMS_PER_TENANT,
        "caller": settings.ORCHESTRATOR_STREAMS_PER_CALLER,
    }
    names = [keys.of_tenant(principal.tenant_id), keys.of_caller(principal)]
    try:
        full = _script("take_seat")(names, [seat, LAPSE_SECONDS, *most.values()], client=_client())
    except redis.RedisError:
        return seat
    if full:
        whose = ("Your tenant", "You")[int(full) - 1]
        raise TooManyStreams(f"{whose} may have {list(most.values())[int(full) - 1]} streams open at once.")
    return seat


def hold(tenant_id: UUID, seats: Iterable[tuple[Principal, str]]) -> None:
    """Keep the seats of a tenant's streams for a while longer."""
    held = list(seats)
    names = [keys.of_tenant(tenant_id), *(keys.of_caller(principal) for principal, _ in held)]
    try:
        _script("hold_seats")(names, [LAPSE_SECONDS, *(seat for _, seat in held)], client=_client())
    except redis.RedisError:
        return  # they are taken again with the next renewal


def leave(principal: Principal, seat: str) -> None:
    try:
        pipeline = _client().pipeline(transaction=False)
        pipeline.zrem(keys.of_tenant(principal.tenant_id), seat)
        pipeline.zrem(keys.of_caller(principal), seat)
        pipeline.execute()
    except redis.RedisError:
        return  # it lapses


def _client() -> redis.Redis:
    return connections.client(timeout_seconds=PATIENCE_SECONDS)


@cache
def _script(name: str) -> redis.commands.core.Script:
    text = (Path(__file__).parent / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    return connections.client().register_script(text)
