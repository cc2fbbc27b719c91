"""One stream of server-sent events: its filter, its position, and the bytes that wait for its client.

Writes to sockets do not block. For a client that reads nothing, no more events are read; after a minute its stream is closed.

A stream outlives the request that opened it, so its permissions are checked periodically, for all streams of the process together.
Any difference ends the stream; when the client reconnects, its permissions are checked again.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.contrib.auth import HASH_SESSION_KEY, get_user_model
from django.contrib.sessions.models import Session
from django.db.models import Q

from tenants import clock
from tenants.context import system_scope
from tenants.events.log import EventFilter, render_event
from tenants.models import ApiToken, Membership, Tenant
from tenants.models.audit import BreakGlass
from tenants.models.events import Event
from tenants.principals import Principal
from tenants.tokens import role_of
from tenants.wire_json import dumps

FULL_BYTES = 256 * 1024  # of waiting data, above which no more events are read for this client
PATIENCE_SECONDS = 60.0
RETRY_MILLISECONDS = 2_000  # after which a disconnected client reconnects

_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(eq=False, slots=True)
class Stream:
    """One client's stream. `position` is the number of the last event that was sent or filtered out."""

    subscriber: Subscriber
    event_filter: EventFilter
    position: int
    seat: str
    socket: Any = None  # of the client, once the answer has begun
    chunked: bool = False  # whether the answer uses HTTP's chunked encoding
    waiting: bytearray = field(default_factory=bytearray)
    queued_at: float = field(default_factory=time.monotonic)
    taken_at: float = field(default_factory=time.monotonic)
    is_revoked: bool = False  # the caller may not read any more
    displaced: bool = False  # a newer stream of the same caller has its seat

    def offer(self, event: Event) -> None:
        """Queue the event if it matches the filter, and move the position to it."""
        if self.event_filter.fits(event):
            self.queue(frame(event))
        self.position = event.number

    def queue(self, text: bytes) -> None:
        self.queued_at = time.monotonic()
        self.waiting += b"%x\r\n%b\r\n" % (len(text), text) if self.chunked else text

    def flush(self) -> bool:
        """Send as much as the client accepts without waiting. Return False when the client is gone."""
        now = time.monotonic()
        if not self.waiting:
            self.taken_at = now
            return True
        try:
            while self.waiting and (sent := self.socket.send(self.waiting)):
                del self.waiting[:sent]
                self.taken_at = now
        except _NOT_NOW:
            return now - self.taken_at < PATIENCE_SECONDS
        except OSError:
            return False
        return True

    def is_open(self) -> bool:
        """Whether the client is still connected. Call it when the socket is readable; received data is ignored."""
        try:
            return self.socket.recv(4096) != b""
        except _NOT_NOW:
            return True
        except OSError:
            return False

    @property
    def is_full(self) -> bool:
        return len(self.waiting) > FULL_BYTES

    def close(self) -> None:
        """End the answer properly, if the client still reads."""
        if self.chunked:
            self.waiting += b"0\r\n\r\n"
        self.flush()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            self.socket.close()


def frame(event: Event) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (
        event.number,
        event.kind.encode(),
        dumps(render_event(event)),
    )


def opening(position: int) -> bytes:
    """Return the first frame of a stream, which sends the client its position, even if nothing happens."""
    return b"retry: %d\nid: %d\n\n" % (RETRY_MILLISECONDS, position)


def reset(oldest: int, last: int) -> bytes:
    """Return the frame that tells a client that the events it has missed are no longer stored."""
    return b"id: %d\nevent: reset\ndata: %b\n\n" % (last, dumps({"oldest": oldest, "last": last}))


#: The last event of a stream that a newer one of the same person has displaced. If its client reconnected, it would displace another.
DISPLACED = b"event: displaced\ndata: {}\n\n"

#: Names the position, so that a client whose filter matches nothing for days does not come back with an id that is no longer stored.
KEEPALIVE = b": still here\nid: %d\n\n"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """The principal at the time when the stream was opened, and a person's session."""

    principal: Principal
    session: str | None = None


def still_allowed(subscribers: Iterable[Subscriber]) -> set[Subscriber]:
    """Return the subscribers whose token, or session and membership or break-glass session, are unchanged. Must not run in a transaction
    of a tenant.
    """
    remaining = set(subscribers)
    tokens = {subscriber for subscriber in remaining if subscriber.principal.token_id}
    with system_scope():
        return _allowed_tokens(tokens) | _allowed_people(remaining - tokens)


def _allowed_tokens(subscribers: Collection[Subscriber]) -> set[Subscriber]:
    if not subscribers:
        return set()
    valid = Q(expires_at=None) | Q(expires_at__gt=clock.now())
    rows = ApiToken.objects.filter(
        valid,
        pk__in={each.principal.token_id for each in subscribers},
        revoked_at=None,
        tenant__is_active=True,
    )
    people = {each.principal.person_id for each in subscribers if each.principal.person_id}
    active = Membership.objects.select_related("user").filter(user_id__in=people, user__is_active=True)
    members = {(member.user_id, member.tenant_id): member for member in active}
    known = {
        row.pk: (role_of(row, members.get((row.user_id or 0, row.tenant_id))), tuple(row.scopes))
        for row in rows
    }
    return {
        each
        for each in subscribers
        if (who := each.principal).token_id and known.get(who.token_id) == (who.role, who.scopes)
    }


def _allowed_people(subscribers: Collection[Subscriber]) -> set[Subscriber]:
    if not subscribers:
        return set()
    people = {each.principal.user_id for each in subscribers if each.principal.user_id}
    active = get_user_model().objects.filter(is_active=True).in_bulk(people)
    sessions = Session.objects.filter(expire_date__gt=clock.now()).in_bulk(
        {each.session for each in subscribers} - {None}
    )
    concerned = {each.principal.tenant_id for each in subscribers}
    tenants = set(Tenant.objects.filter(pk__in=concerned, is_active=True).values_list("pk", flat=True))
    rows = Membership.objects.filter(user_id__in=people).values_list("user_id", "tenant_id", "role")
    roles = {(user, tenant): role for user, tenant, role in rows}
    open_sessions = _find_open_break_glass(each.principal.break_glass_id for each in subscribers)

    def is_allowed(subscriber: Subscriber) -> bool:
        who = subscriber.principal
        person, session = active.get(who.user_id or 0), sessions.get(subscriber.session or "")
        if person is None or session is None or who.tenant_id not in tenants:
            return False
        # A changed password ends the sessions of a person, but does not delete their rows.
        if session.get_decoded().get(HASH_SESSION_KEY) != person.get_session_auth_hash():
            return False
        if person.is_superuser != who.is_platform_admin:
            return False
        if who.break_glass_id is not None:
            return who.break_glass_id in open_sessions
        role = roles.get((person.pk, who.tenant_id))
        # Superusers are admins in all tenants of which they are members.
        return role is not None if who.is_platform_admin else role == who.role

    return {subscriber for subscriber in subscribers if is_allowed(subscriber)}


def _find_open_break_glass(ids: Iterable[UUID | None]) -> set[UUID]:
    """Return the break-glass sessions that are still open."""
    break_glass_ids = {glass for glass in ids if glass is not None}
    if not break_glass_ids:
        return set()
    rows = BreakGlass.objects.filter(pk__in=break_glass_ids, ended_at=None, expires_at__gt=clock.now())
    return set(rows.values_list("pk", flat=True))
