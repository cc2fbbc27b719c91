"""Seats: limit how many streams a tenant and a caller may have open, over all web processes.

Seats are leases in Redis that expire, so the seats of a dead process become free. A program that uses all of its seats
is refused. A person is not refused: their newest page replaces their oldest stream, in whatever process that is.
When Redis does not answer, nobody is refused, because each process has its own limit as well. Then it is not asked for some seconds,
because the thread that serves all streams would wait each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
from django.conf import settings

from tenants import keys
from tenants import redis as connections
from tenants.exceptions import TenantError
from tenants.identifiers import uuid7
from tenants.limiter import Breaker
from tenants.principals import Principal
from tenants.redis import Script

LAPSE_SECONDS = 30  # three renewals
PATIENCE_SECONDS = 0.5  # with Redis

_breaker = Breaker(seconds=5.0)  # shorter than the leases of the seats

_FOLDER = Path(__file__).resolve().parents[1] / "lua" / "events"
_TAKE, _HOLD = (Script.load(_FOLDER, name) for name in ("take_seat", "hold_seats"))


class TooManyStreams(TenantError):
    """The tenant, the caller or this process has as many streams open as allowed. Close one, or try again later."""

    code = "too_many_streams"
    status = 429
    retry_after = 5


@dataclass(frozen=True, slots=True)
class TakenSeat:
    """A seat for a stream, and the seats of the same caller that it displaced."""

    seat: str
    displaced: frozenset[str] = frozenset()


def take(principal: Principal, *, displacing: bool = False) -> TakenSeat:
    """Take a seat for one more stream. With `displacing`, it replaces the caller's oldest if none is free. Raises `TooManyStreams`."""
    seat = str(uuid7())
    most = (settings.ORCHESTRATOR_STREAMS_PER_TENANT, settings.ORCHESTRATOR_STREAMS_PER_CALLER)
    tenant_id = principal.tenant_id
    names = [
        keys.seats_of_tenant(tenant_id),
        keys.seats_of_caller(principal),
        keys.displaced_seats(tenant_id),
    ]
    answer = _ask(lambda: _TAKE.run(_client(), names, [seat, LAPSE_SECONDS, *most, int(displacing)]))
    if answer is None:
        return TakenSeat(seat)
    full, *displaced = answer
    if full:
        whose = ("Your tenant", "You")[int(full) - 1]
        raise TooManyStreams(f"{whose} may have {most[int(full) - 1]} streams open at once.")
    return TakenSeat(seat, _read(displaced))


def hold(tenant_id: UUID, seats: Iterable[tuple[Principal, str]]) -> frozenset[str]:
    """Renew the seats of a tenant's streams. Return the displaced ones, whose streams must end."""
    renewed = list(seats)
    callers = [keys.seats_of_caller(principal) for principal, _ in renewed]
    names = [keys.seats_of_tenant(tenant_id), keys.displaced_seats(tenant_id), *callers]
    arguments: list[str | int] = [LAPSE_SECONDS, *(seat for _, seat in renewed)]
    # Seats that are not renewed are taken again with a later renewal.
    return _read(_ask(lambda: _HOLD.run(_client(), names, arguments)) or ())


def leave(principal: Principal, seat: str) -> None:
    def release() -> None:
        pipeline = _client().pipeline(transaction=False)
        pipeline.zrem(keys.seats_of_tenant(principal.tenant_id), seat)
        pipeline.zrem(keys.seats_of_caller(principal), seat)
        pipeline.execute()

    _ask(release)  # without an answer, the lease expires


def _ask(question: Callable[[], Any]) -> Any:
    """Return the answer of Redis, or None without one."""
    if _breaker.is_open():
        return None
    try:
        return question()
    except redis.RedisError:
        _breaker.trip()
        return None


def _read(seats: Iterable[bytes]) -> frozenset[str]:
    return frozenset(seat.decode() for seat in seats)


def _client() -> redis.Redis:
    return connections.client(timeout_seconds=PATIENCE_SECONDS)
