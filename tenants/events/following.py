"""Following: what the hub asks the logs for, for many streams at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from django.db import connections

from tenants.context import SYSTEM, tenant_scope
from tenants.events import log
from tenants.events.stream import Stream, reset

EVENTS_AT_ONCE = 500  # for the streams of one tenant; then others get their turn

#: Those of these tenants whose log holds more than was looked at, or will as soon as somebody numbers it.
_WITH_NEWS = """
    SELECT asked.tenant_id
    FROM unnest(%s::uuid[], %s::bigint[]) AS asked (tenant_id, position)
    WHERE EXISTS (SELECT FROM tenants_eventlog l WHERE l.tenant_id = asked.tenant_id AND l.last_number > asked.position)
       OR EXISTS (SELECT FROM tenants_freshevent f WHERE f.tenant_id = asked.tenant_id)
"""

_FOLLOW = """
    UPDATE tenants_eventlog SET listened_until = now() + %s * interval '1 second'
    WHERE tenant_id IN (
        SELECT tenant_id FROM tenants_eventlog WHERE tenant_id = ANY(%s::uuid[]) ORDER BY tenant_id FOR NO KEY UPDATE)
"""


def with_news(positions: Mapping[UUID, int]) -> list[UUID]:
    """The tenants for which there is something after these positions."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_WITH_NEWS, [list(positions), list(positions.values())])
        return [tenant_id for (tenant_id,) in cursor.fetchall()]


def follow(tenants: Iterable[UUID]) -> None:
    """Let changes of these tenants ring the bell for a minute more."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_FOLLOW, [log.LISTENED.total_seconds(), list(tenants)])


def carry(tenant_id: UUID, streams: Collection[Stream]) -> bool:
    """Give each of the tenant's streams what comes next for it. Whether there was anything.

    Those that catch up do not keep the others waiting. A stream so far behind that the next event is not kept any more is told so, and
    goes on with what comes now.
    """
    log.number(tenant_id)
    with tenant_scope(tenant_id):
        oldest, last = log.standing(tenant_id)
        for stream in streams:
            if stream.position < oldest - 1:
                stream.say(reset(oldest, last))
                stream.position = last
        near = [stream for stream in streams if last - EVENTS_AT_ONCE <= stream.position < last]
        behind = [stream for stream in streams if stream.position < last - EVENTS_AT_ONCE]
        for group in filter(None, (near, behind)):
            _carry(tenant_id, group)
    return bool(near or behind)


def _carry(tenant_id: UUID, streams: Collection[Stream]) -> None:
    after = min(stream.position for stream in streams)
    for event in log.between(tenant_id, after, after + EVENTS_AT_ONCE):
        for stream in streams:
            if stream.position < event.number:
                stream.offer(event)
