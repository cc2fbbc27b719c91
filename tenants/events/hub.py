"""The hub: one thread per process that sends events to all of its streams.

A stream costs a socket but no thread: requests hand their socket over and end. The thread starts with the first stream and ends with the
last. While it cannot reach the database, streams stay open. They continue where they were, because each stores the last number it has sent.
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
from contextlib import suppress
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

CHECK_SECONDS = 1.0  # between checks of every followed log, even without a notification
AGAIN_SECONDS = 0.1  # after new events, because commits right after them send no notification
PERMISSION_SECONDS = 2.0  # between checks whether the callers may still read; including delays, well below 5
# Between renewals of seats, and so the longest use of a seat that another process displaced.
HOLD_SECONDS = 2.0
FOLLOW_SECONDS = 10.0
# Between two announcements to a tenant's streams; only the last one of a subject is sent.
ANNOUNCE_SECONDS = 0.5

logger = logging.getLogger(__name__)


class Hub:
    """`adopt`, `displace` and `size` may be called by any thread; everything else runs in the hub's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[Stream] = []
        self._displaced: set[str] = set()
        self._open: dict[UUID, set[Stream]] = defaultdict(set)
        self._due: dict[UUID, float] = {}
        self._announced: dict[UUID, dict[Any, Announcement]] = defaultdict(dict)
        self._announced_at: dict[UUID, float] = {}
        self._waker: socket.socket | None = None

    def adopt(self, stream: Stream) -> None:
        """Serve the stream from now on. Its socket then belongs to the hub. If no thread can be started, the stream ends."""
        stream.socket.setblocking(False)
        with self._lock:
            try:
                waker = self._waker or self._start_thread()
            except (OSError, RuntimeError):
                logger.exception("The event hub could not start", extra={"action": "event_hub_failed"})
                stream.close()
                return
            self._new.append(stream)
            self._wake(waker)

    def _start_thread(self) -> socket.socket:
        waker, wake_socket = socket.socketpair()
        try:
            threading.Thread(
                target=self._run, args=(waker, wake_socket), name="event-hub", daemon=True
            ).start()
        except RuntimeError:
            waker.close()
            wake_socket.close()
            raise
        self._waker = waker  # set last: the streams of a thread that could not be started would wait forever
        return waker

    def displace(self, seats: Collection[str]) -> None:
        """End the streams with these seats. Streams in other processes, or not adopted yet, end with the next renewal of their seats."""
        with self._lock:
            if seats and self._waker is not None:
                self._displaced.update(seats)
                self._wake(self._waker)

    def size(self) -> int:
        with self._lock:
            return len(self._new) + sum(map(len, self._open.values()))

    @staticmethod
    def _wake(waker: socket.socket) -> None:
        # If the buffer is full, the thread is awake anyway. It needs the caller's lock to continue, so never wait for it. If it has just
        # failed, it ends this stream with the others.
        with suppress(OSError):
            waker.send(b"!", socket.MSG_DONTWAIT)

    def _run(self, waker: socket.socket, wake_socket: socket.socket) -> None:
        try:
            self._serve(wake_socket)
        except Exception:
            logger.exception("The event hub failed", extra={"action": "event_hub_failed"})
            self._give_up(waker)

    def _give_up(self, waker: socket.socket) -> None:
        """End all streams, so that their clients reconnect. The next stream starts another thread."""
        with self._lock:
            if self._waker is not waker:
                return
            streams = [*self._new, *self._streams()]
            self._new.clear()
            self._open.clear()
            self._waker = None
        waker.close()
        for stream in streams:
            stream.close()

    def _serve(self, wake_socket: socket.socket) -> None:
        listener, receiver, selector = Listener(), AnnouncementReceiver(), selectors.DefaultSelector()
        receiver_socket: socket.socket | None = None
        selector.register(wake_socket, selectors.EVENT_READ)
        checks = {
            self._check_logs: CHECK_SECONDS,
            self._check_permissions: PERMISSION_SECONDS,
            self._hold: HOLD_SECONDS,
            self._follow: FOLLOW_SECONDS,
            listener.prove: PROOF_SECONDS,
        }
        due = dict.fromkeys(checks, 0.0)
        try:
            while self._adopt_new(selector):
                listener_socket = _watch_listener(selector, listener)
                receiver_socket = _watch_receiver(selector, receiver_socket, receiver.listen(self._open))
                self._wait(selector, listener)
                _attempt(self._receive_announcements, receiver)
                if not receiver.is_connected:
                    # Before a stream is adopted whose connection has the same number.
                    receiver_socket = _watch_receiver(selector, receiver_socket, None)
                now = time.monotonic()
                for check, seconds in checks.items():
                    if now >= due[check]:
                        due[check] = now + seconds
                        _attempt(check)
                for tenant_id in [tenant for tenant, at in self._due.items() if at <= now]:
                    _attempt(self._send_events, tenant_id)
                if listener_socket is not None and not listener.is_connected:
                    selector.unregister(listener_socket)  # before another connection gets the same number
                self._send_announcements(now)
                for stream in self._streams():
                    if now - stream.queued_at >= settings.ORCHESTRATOR_STREAM_KEEPALIVE_SECONDS:
                        stream.queue(KEEPALIVE % stream.position)
                self._flush(selector)
        finally:
            listener.close()
            receiver.close()
            selector.close()
            wake_socket.close()
            connections.close_all()

    def _adopt_new(self, selector: selectors.BaseSelector) -> bool:
        """Register new streams. Return False when there are no streams at all; then the thread must end."""
        with self._lock:
            for stream in self._new:
                self._open[stream.subscriber.principal.tenant_id].add(stream)
                self._due[stream.subscriber.principal.tenant_id] = 0.0
                selector.register(stream.socket, selectors.EVENT_READ, stream)
            self._new.clear()
            self._mark_displaced(self._displaced)
            self._displaced = set()
            if not self._open and self._waker is not None:
                self._waker.close()
                self._waker = None
            return self._waker is not None

    def _wait(self, selector: selectors.BaseSelector, listener: Listener) -> None:
        due_times = (self._announced_at.get(tenant, 0.0) + ANNOUNCE_SECONDS for tenant in self._announced)
        patience = min([CHECK_SECONDS, *(at - time.monotonic() for at in (*self._due.values(), *due_times))])
        for key, mask in selector.select(max(patience, 0.0)):
            if isinstance(key.fileobj, socket.socket) and key.data is None:
                key.fileobj.recv(4096)
            elif isinstance(key.data, Stream) and mask & selectors.EVENT_READ and not key.data.is_open():
                self._close(selector, key.data)
        for tenant_id in listener.receive() & self._open.keys():
            self._due[tenant_id] = 0.0

    def _check_logs(self) -> None:
        for tenant_id in with_news(
            {tenant: min(each.position for each in streams) for tenant, streams in self._open.items()}
        ):
            self._due.setdefault(tenant_id, 0.0)

    def _send_events(self, tenant_id: UUID) -> None:
        self._due.pop(tenant_id, None)
        ready = [stream for stream in self._open.get(tenant_id, ()) if not stream.is_full]
        if ready and send_events(tenant_id, ready):
            self._due[tenant_id] = time.monotonic() + AGAIN_SECONDS

    def _receive_announcements(self, receiver: AnnouncementReceiver) -> None:
        for announcement in receiver.receive():
            self._announced[announcement.tenant_id][announcement.subject] = announcement

    def _send_announcements(self, now: float) -> None:
        """Send the announcements. A client whose buffer is full misses them."""
        for tenant_id in [
            tenant
            for tenant in self._announced
            if now - self._announced_at.get(tenant, 0.0) >= ANNOUNCE_SECONDS
        ]:
            self._announced_at[tenant_id] = now
            for announcement in self._announced.pop(tenant_id).values():
                frame = announcement.frame()
                for stream in self._open.get(tenant_id, ()):
                    if not stream.is_full and announcement.is_for(stream.event_filter):
                        stream.queue(frame)

    def _check_permissions(self) -> None:
        allowed = still_allowed(stream.subscriber for stream in self._streams())
        for stream in self._streams():
            if stream.subscriber not in allowed:
                stream.is_revoked = True

    def _hold(self) -> None:
        for tenant_id, streams in self._open.items():
            seats = [(stream.subscriber.principal, stream.seat) for stream in streams]
            self._mark_displaced(connection_limits.hold(tenant_id, seats))

    def _mark_displaced(self, seats: Collection[str]) -> None:
        if seats:
            for stream in self._streams():
                stream.displaced = stream.displaced or stream.seat in seats

    def _follow(self) -> None:
        follow(self._open)

    def _flush(self, selector: selectors.BaseSelector) -> None:
        for stream in self._streams():
            if stream.is_revoked:
                stream.waiting.clear()
            elif stream.displaced:
                stream.queue(DISPLACED)
            if stream.is_revoked or stream.displaced or not stream.flush():
                self._close(selector, stream)
                continue
            # Wait for the client to become writable only if some data could not be sent at once.
            interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.waiting else 0)
            if selector.get_key(stream.socket).events != interest:
                selector.modify(stream.socket, interest, stream)

    def _close(self, selector: selectors.BaseSelector, stream: Stream) -> None:
        tenant_id = stream.subscriber.principal.tenant_id
        selector.unregister(stream.socket)
        stream.close()
        with self._lock:
            self._open[tenant_id].discard(stream)
            if not self._open[tenant_id]:
                del self._open[tenant_id]
                self._announced_at.pop(tenant_id, None)
        connection_limits.leave(stream.subscriber.principal, stream.seat)

    def _streams(self) -> Iterable[Stream]:
        return [stream for streams in self._open.values() for stream in streams]


def _watch_listener(selector: selectors.BaseSelector, listener: Listener) -> int | None:
    """Return the listener's socket, registered with the selector, or None while it has no connection."""
    listener_socket = listener.socket()
    if listener_socket is not None and listener_socket not in selector.get_map():
        selector.register(listener_socket, selectors.EVENT_READ)
    return listener_socket


def _watch_receiver(
    selector: selectors.BaseSelector, before: socket.socket | None, now: socket.socket | None
) -> socket.socket | None:
    """Return the socket of announcements, registered with the selector, or None while there is no connection."""
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
    return _of_process(os.getpid())


@cache
def _of_process(pid: int) -> Hub:
    # By process, because a fork has neither the thread nor its own sockets.
    return Hub()


# The hub's queries of the logs, for many streams at once.


EVENTS_AT_ONCE = 500  # for the streams of one tenant, before others get their turn

#: Selects those of these tenants whose log has newer events, numbered or not.
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
    """Return the tenants with events after these positions."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_WITH_NEWS, [list(positions), list(positions.values())])
        return [tenant_id for (tenant_id,) in cursor.fetchall()]


def follow(tenants: Iterable[UUID]) -> None:
    """Let changes of these tenants notify the hub for one more minute."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(_FOLLOW, [log.LISTENED.total_seconds(), list(tenants)])


def send_events(tenant_id: UUID, streams: Collection[Stream]) -> bool:
    """Send each of the tenant's streams its next events. Return whether there were any.

    Streams that are far behind do not delay the others. A stream whose next event is no longer stored, or whose last one does not exist
    after a restore from a backup, gets a notice, and continues with new events.
    """
    log.number(tenant_id)
    with tenant_scope(tenant_id):
        oldest, last = log.position_of_log(tenant_id)
        for stream in streams:
            if not oldest - 1 <= stream.position <= last:
                stream.queue(reset(oldest, last))
                stream.position = last
        near = [stream for stream in streams if last - EVENTS_AT_ONCE <= stream.position < last]
        behind = [stream for stream in streams if stream.position < last - EVENTS_AT_ONCE]
        for group in filter(None, (near, behind)):
            _send_to_group(tenant_id, group)
    return bool(near or behind)


def _send_to_group(tenant_id: UUID, streams: Collection[Stream]) -> None:
    after = min(stream.position for stream in streams)
    for event in log.between(tenant_id, after, after + EVENTS_AT_ONCE):
        for stream in streams:
            if stream.position < event.number:
                stream.offer(event)


# The listener receives PostgreSQL's notifications about tenants whose logs are followed.
#
# It has one connection for all streams of the process. It only saves waiting: logs are checked once a second in any case,
# so a lost connection delays events by at most a second. It is opened again as soon as possible.
#
# A silent connection may be dead without notice, for example because a firewall has dropped it. So every few seconds the listener notifies
# itself, on a private channel and through another connection. When that notification does not arrive, it opens a new
# connection. It never waits for an answer.


CHANNEL = "orchestrator_events"  # also written in sql/record.sql
RETRY_SECONDS = 5.0
PROOF_SECONDS = 5.0  # between two notifications that test the connection
SILENT_SECONDS = 12.0  # without a notification, which is more than two of these


class Listener:
    """Receives notifications. Used by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._connection: psycopg.Connection[Any] | None = None
        self._tried = self._heard = float("-inf")
        self._own = f"{CHANNEL}_{uuid4().hex}"

    def socket(self) -> int | None:
        """Return the socket that becomes readable on a notification, or None without a connection. Reconnects from time to time."""
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
        """Return the tenants with a notification since the last call. Does not wait."""
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
        """Send a notification to itself, which should arrive before the next call. Drop a connection that was silent for too long."""
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
        """Open it like the connections for statements, which are neither opened nor waited for while PostgreSQL is silent."""
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
        logger.warning("No notifications of events; logs are checked once a second", extra=facts)
