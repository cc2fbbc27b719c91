"""The hub: one thread per process that carries events to all of its streams.

Streams cost a socket and no thread: requests hand theirs over and are done. The thread begins with the first stream and ends with the
last. When it cannot reach the database, streams stay open and go on where they were, since each knows the last number that it was given.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any
from uuid import UUID, uuid4

import psycopg
from django.conf import settings
from django.db import DatabaseError, close_old_connections, connections

from tenants.context import SYSTEM, tenant_scope
from tenants.events import connection_limits, log
from tenants.events.announcements import Announcement, AnnouncementReceiver
from tenants.events.stream import DISPLACED, KEEPALIVE, Stream, reset, still_allowed

LOOK_SECONDS = 1.0  # between looks at every log that is followed, whether or not a notification came
AGAIN_SECONDS = 0.1  # after a find; what commits right behind it sends no notification
WELCOME_SECONDS = (
    2.0  # between checks whether the callers still may read; with all that delays it, well below 5
)
HOLD_SECONDS = (
    2.0  # between renewals of seats, and so the longest that one which was taken away elsewhere is used
)
FOLLOW_SECONDS = 10.0
TELL_SECONDS = 0.5  # between two announcements about the same; the last one tells all

logger = logging.getLogger(__name__)


class Hub:
    """`adopt`, `displace` and `size` may be called by any thread; everything else happens in the hub's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[Stream] = []
        self._displaced: set[str] = set()
        self._open: dict[UUID, set[Stream]] = defaultdict(set)
        self._due: dict[UUID, float] = {}
        self._announced: dict[UUID, dict[Any, Announcement]] = defaultdict(dict)
        self._told: dict[UUID, float] = {}
        self._hurry: socket.socket | None = None

    def adopt(self, stream: Stream) -> None:
        """Carry the stream from now on. Its socket belongs to the hub."""
        stream.socket.setblocking(False)
        with self._lock:
            self._new.append(stream)
            if self._hurry is None:
                self._hurry, hurried = socket.socketpair()
                threading.Thread(target=self._run, args=(hurried,), name="event-hub", daemon=True).start()
            self._hurry.send(b"!")

    def displace(self, seats: Collection[str]) -> None:
        """End the streams with these seats. Those that are carried elsewhere, or not yet, end with the next renewal of their seats."""
        with self._lock:
            if seats and self._hurry is not None:
                self._displaced.update(seats)
                self._hurry.send(b"!")

    def size(self) -> int:
        """How many streams there are."""
        with self._lock:
            return len(self._new) + sum(map(len, self._open.values()))

    def _run(self, hurried: socket.socket) -> None:
        listener, receiver, selector = Listener(), AnnouncementReceiver(), selectors.DefaultSelector()
        receiver_socket: socket.socket | None = None
        selector.register(hurried, selectors.EVENT_READ)
        checks = {
            self._look: LOOK_SECONDS,
            self._check_welcome: WELCOME_SECONDS,
            self._hold: HOLD_SECONDS,
            self._follow: FOLLOW_SECONDS,
            listener.prove: PROOF_SECONDS,
        }
        due = dict.fromkeys(checks, 0.0)
        while self._goes_on(selector):
            listener_socket = _watch_listener(selector, listener)
            receiver_socket = _watch_receiver(selector, receiver_socket, receiver.listen(self._open))
            self._wait(selector, listener)
            _attempt(self._note, receiver)
            now = time.monotonic()
            for check, seconds in checks.items():
                if now >= due[check]:
                    due[check] = now + seconds
                    _attempt(check)
            for tenant_id in [tenant for tenant, at in self._due.items() if at <= now]:
                _attempt(self._carry, tenant_id)
            if listener_socket is not None and not listener.is_connected:
                selector.unregister(listener_socket)  # before another connection gets the same number
            self._tell(now)
            self._keep_alive(now)
            self._flush(selector)
        listener.close()
        receiver.close()
        selector.close()
        hurried.close()
        connections.close_all()

    def _goes_on(self, selector: selectors.BaseSelector) -> bool:
        """Take up what is new. False, for good, when there is nothing at all."""
        with self._lock:
            for stream in self._new:
                self._open[stream.bearer.principal.tenant_id].add(stream)
                self._due[stream.bearer.principal.tenant_id] = 0.0
                selector.register(stream.socket, selectors.EVENT_READ, stream)
            self._new.clear()
            self._mark_displaced(self._displaced)
            self._displaced = set()
            if not self._open and self._hurry is not None:
                self._hurry.close()
                self._hurry = None
            return self._hurry is not None

    def _wait(self, selector: selectors.BaseSelector, listener: Listener) -> None:
        due_times = (self._told.get(tenant, 0.0) + TELL_SECONDS for tenant in self._announced)
        patience = min([LOOK_SECONDS, *(at - time.monotonic() for at in (*self._due.values(), *due_times))])
        for key, mask in selector.select(max(patience, 0.0)):
            if isinstance(key.fileobj, socket.socket) and key.data is None:
                key.fileobj.recv(4096)
            elif isinstance(key.data, Stream) and mask & selectors.EVENT_READ and not key.data.is_open():
                self._close(selector, key.data)
        for tenant_id in listener.receive() & self._open.keys():
            self._due[tenant_id] = 0.0

    def _look(self) -> None:
        for tenant_id in with_news(
            {tenant: min(s.position for s in of) for tenant, of in self._open.items()}
        ):
            self._due.setdefault(tenant_id, 0.0)

    def _carry(self, tenant_id: UUID) -> None:
        """Give every stream of the tenant what is new for it."""
        self._due.pop(tenant_id, None)
        ready = [stream for stream in self._open.get(tenant_id, ()) if not stream.is_full]
        if ready and carry(tenant_id, ready):
            self._due[tenant_id] = time.monotonic() + AGAIN_SECONDS

    def _note(self, receiver: AnnouncementReceiver) -> None:
        for announcement in receiver.receive():
            self._announced[announcement.tenant_id][announcement.subject] = announcement

    def _tell(self, now: float) -> None:
        """Pass on what was announced. A client that takes nothing misses it."""
        for tenant_id in [
            tenant for tenant in self._announced if now - self._told.get(tenant, 0.0) >= TELL_SECONDS
        ]:
            self._told[tenant_id] = now
            for announcement in self._announced.pop(tenant_id).values():
                frame = announcement.frame()
                for stream in self._open.get(tenant_id, ()):
                    if not stream.is_full and announcement.is_for(stream.wanted):
                        stream.say(frame)

    def _check_welcome(self) -> None:
        welcome = still_allowed(stream.bearer for stream in self._streams())
        for stream in self._streams():
            if stream.bearer not in welcome:
                stream.unwelcome = True

    def _hold(self) -> None:
        for tenant_id, streams in self._open.items():
            held = [(stream.bearer.principal, stream.seat) for stream in streams]
            self._mark_displaced(connection_limits.hold(tenant_id, held))

    def _mark_displaced(self, seats: Collection[str]) -> None:
        if seats:
            for stream in self._streams():
                stream.displaced = stream.displaced or stream.seat in seats

    def _follow(self) -> None:
        follow(self._open)

    def _keep_alive(self, now: float) -> None:
        for stream in self._streams():
            if now - stream.said_at >= settings.ORCHESTRATOR_STREAM_KEEPALIVE_SECONDS:
                stream.say(KEEPALIVE)

    def _flush(self, selector: selectors.BaseSelector) -> None:
        for stream in self._streams():
            if stream.unwelcome:
                stream.waiting.clear()
            elif stream.displaced:
                stream.say(DISPLACED)
            if stream.unwelcome or stream.displaced or not stream.flush():
                self._close(selector, stream)
                continue
            # Only what could not be handed over at once waits for the client to take more.
            interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.waiting else 0)
            if selector.get_key(stream.socket).events != interest:
                selector.modify(stream.socket, interest, stream)

    def _close(self, selector: selectors.BaseSelector, stream: Stream) -> None:
        tenant_id = stream.bearer.principal.tenant_id
        selector.unregister(stream.socket)
        stream.close()
        with self._lock:
            self._open[tenant_id].discard(stream)
            if not self._open[tenant_id]:
                del self._open[tenant_id]
                self._told.pop(tenant_id, None)
        connection_limits.leave(stream.bearer.principal, stream.seat)

    def _streams(self) -> Iterable[Stream]:
        return [stream for streams in self._open.values() for stream in streams]


def _watch_listener(selector: selectors.BaseSelector, listener: Listener) -> int | None:
    """The socket of the listener, registered with the selector; None while it has no connection."""
    listener_socket = listener.socket()
    if listener_socket is not None and listener_socket not in selector.get_map():
        selector.register(listener_socket, selectors.EVENT_READ)
    return listener_socket


def _watch_receiver(
    selector: selectors.BaseSelector, before: socket.socket | None, now: socket.socket | None
) -> socket.socket | None:
    """The socket on which announcements come, registered with the selector; None while there is no connection."""
    if now is not before:
        if before is not None:
            selector.unregister(before)
        if now is not None:
            selector.register(now, selectors.EVENT_READ, "announcements")
    return now


def _attempt(action: Callable[..., Any], *arguments: Any) -> None:
    try:
        close_old_connections()
        action(*arguments)
    except DatabaseError as error:
        facts = {"action": "event_hub_waits", "reason": type(error).__name__}
        logger.warning("Streams wait for PostgreSQL", extra=facts)
    except Exception:
        logger.exception("A part of the event hub failed", extra={"action": "event_hub_failed"})


def here() -> Hub:
    """The hub of this process."""
    return _of_process(os.getpid())


@cache
def _of_process(pid: int) -> Hub:
    # By the process: a fork has neither the thread nor sockets of its own.
    return Hub()


# Following: what the hub asks the logs for, for many streams at once.


EVENTS_AT_ONCE = 500  # for the streams of one tenant; then others get their turn

#: Those of these tenants whose log holds more than was looked at, or will as soon as it is numbered.
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
    """Have changes of these tenants notify the hub for one more minute."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_FOLLOW, [log.LISTENED.total_seconds(), list(tenants)])


def carry(tenant_id: UUID, streams: Collection[Stream]) -> bool:
    """Send each of the tenant's streams its next events. Returns whether there were any.

    Those that catch up do not keep the others waiting. A stream so far behind that the next event is not kept any more is told so, and
    goes on with what comes now.
    """
    log.number(tenant_id)
    with tenant_scope(tenant_id):
        oldest, last = log.position_of_log(tenant_id)
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


# The listener: PostgreSQL notifies this process when something has happened to a tenant whose log is followed.
#
# One connection of its own, for all streams of the process. It only saves waiting: readers of a log look once a second in any case,
# so a lost connection makes events late by a second at most. It is opened again as soon as that is possible.
#
# A silent connection may be a dead one, because something between has forgotten it. So every few seconds the listener has itself notified,
# on a channel that nobody else listens to and by way of another connection; when that notification does not come, it takes a new
# connection. Nobody ever waits for an answer on it.


CHANNEL = "orchestrator_events"  # also written in sql/record.sql
RETRY_SECONDS = 5.0
PROOF_SECONDS = 5.0  # between two notifications that prove the connection
SILENT_SECONDS = 12.0  # without a notification: more than two of these


class Listener:
    """Used by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._connection: psycopg.Connection[Any] | None = None
        self._tried = self._heard = float("-inf")
        self._own = f"{CHANNEL}_{uuid4().hex}"

    def socket(self) -> int | None:
        """The socket that becomes readable on a notification; None while there is no connection. A connection is tried again from time
        to time.
        """
        if self._connection is None and self._clock() - self._tried >= RETRY_SECONDS:
            self._tried = self._clock()
            try:
                self._connection = self._open()
                self._heard = self._clock()
            except (psycopg.Error, DatabaseError) as error:
                self._lose(error)
        return None if self._connection is None else self._connection.fileno()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def receive(self) -> set[UUID]:
        """The tenants for which a notification came since the last call. Does not wait."""
        if self._connection is None:
            return set()
        try:
            notifications = list(self._connection.notifies(timeout=0))
        except psycopg.Error as error:
            self._lose(error)
            return set()
        if notifications:
            self._heard = self._clock()
        return {UUID(one.payload) for one in notifications if one.channel == CHANNEL}

    def prove(self) -> None:
        """Send a notification to itself, which should come before the next call. A connection that was silent for too long is given up."""
        if self._connection is None:
            return
        if self._clock() - self._heard > SILENT_SECONDS:
            self._lose(TimeoutError())
            return
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [self._own])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> psycopg.Connection[Any]:
        """Made as the connections for statements are, so that it is neither tried nor waited for while PostgreSQL is silent."""
        alias = connections[SYSTEM]
        connection = alias.get_new_connection({**alias.get_connection_params(), "autocommit": True})
        try:
            for channel in (CHANNEL, self._own):
                connection.execute(f"LISTEN {channel}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _lose(self, error: Exception) -> None:
        self.close()
        facts = {"action": "event_bell_lost", "reason": type(error).__name__}
        logger.warning("The bell of events does not ring; logs are looked at once a second", extra=facts)
