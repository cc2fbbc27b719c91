"""Gunicorn's worker class and logger class.

A worker process answers requests in gunicorn's threads. Tenants take turns for these threads, and an event stream leaves its thread while
its connection stays open.

`/healthz` and `/readyz` have separate threads, so they are answered however many requests wait. The accept loop reads the head of a request
before it assigns a thread: an incomplete head uses no thread, must be completed within some seconds, and is refused if it is too long. Then
the request waits in the line of its tenant (`tenants.turns`). Its body must arrive within a time limit too.

If each open stream used a thread, a few hundred of them would block all requests. So a view that starts a stream takes the socket from
`environ["gunicorn.socket"]` with `hand_over`. For gunicorn the request is then finished, and it neither writes to the connection nor closes
it.
"""

from __future__ import annotations

import errno
import json
import logging.config
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ
from typing import Any

from gunicorn.glogging import Logger
from gunicorn.http.errors import LimitRequestLine
from gunicorn.workers.gthread import DEFAULT_WORKER_DATA_TIMEOUT, TConn, ThreadWorker

from orchestrator.settings.logging import LOGGING
from tenants import turns

HEALTH_THREADS = 2
CLOSING_THREADS = 4
SPARE_THREADS = 2  # that a single tenant cannot use
HEALTH = (b"GET /healthz ", b"HEAD /healthz ", b"GET /readyz ", b"HEAD /readyz ")
# In bytes. Gunicorn would wait for the rest of a longer head in a thread, without a time limit.
LONGEST_HEAD = 16_384
HEAD_SECONDS = DEFAULT_WORKER_DATA_TIMEOUT + 2.0  # time limit for the head of a request
BODY_SECONDS = 30.0  # time limit for its body
UNREAD_SECONDS = 0.01  # for the rest of a body that the application did not read; gunicorn would wait for it in the thread for seconds
# In bytes, of a body that the application did not read: of more, the connection closes.
MOST_UNREAD = 64 * 1024
# Python's switch interval, instead of 5 ms. Requests often wait for servers, and should not wait long for computing threads afterwards.
SWITCH_SECONDS = 0.0005
LONGEST_LINE = 8_190  # bytes of a request line, gunicorn's maximum; its default is too short for a filter with some hundred ids


def _problem(status: int, title: str, code: str, detail: str, *headers: str) -> bytes:
    """Return an answer to a request that does not reach Django, in the format of the API's errors."""
    members = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail}
    body = json.dumps(members).encode()
    lines = (
        f"HTTP/1.1 {status} {title}",
        "Content-Type: application/problem+json",
        *headers,
        "Connection: close",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


TOO_MANY = _problem(
    429,
    "Too Many Requests",
    "throttled",
    "Too many requests of yours wait already. Try again later.",
    "Retry-After: 1",
)
TOO_LONG = _problem(
    414,
    "URI Too Long",
    "uri_too_long",
    f"The address with its query string may have some {LONGEST_LINE:,} bytes. Send fewer filters or ids at once.",
)
HEAD_TOO_LONG = _problem(
    431,
    "Request Header Fields Too Large",
    "head_too_long",
    f"The head of a request may have {LONGEST_HEAD:,} bytes at most.",
)


class HandOver:
    """The socket that gunicorn uses. After `hand_over` it ignores all calls."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def hand_over(self) -> Any:
        """Return the real socket, which gunicorn then no longer uses."""
        real_socket, self._socket = self._socket, _NULL_SOCKET
        return real_socket

    @property
    def is_handed_over(self) -> bool:
        return self._socket is _NULL_SOCKET

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _NullSocket:
    """Replaces a socket that was handed over, so that gunicorn's writes and its close have no effect."""

    def __getattr__(self, name: str) -> Any:
        return self._do_nothing

    def _do_nothing(self, *arguments: Any, **options: Any) -> None:
        return None

    def recv(self, *arguments: Any) -> bytes:
        return b""


_NULL_SOCKET = _NullSocket()


class Connection(TConn):
    """A connection that is closed in the background. Gunicorn would wait up to two seconds for the client, in the accept loop."""

    closing: ThreadPoolExecutor  # one per process
    head_until: float | None = None  # deadline of the head
    head_size = -1  # bytes of the head received so far

    def close(self, graceful: bool = False) -> None:
        if graceful:
            self.closing.submit(super().close, True)
        else:
            super().close()


class _DeadlineSocket:
    """A socket to read a body. After `until` it raises `TimeoutError`, as if the client had disconnected."""

    def __init__(self, connection: Any, until: float) -> None:
        self._connection, self._until = connection, until

    def recv(self, size: int) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the body did not arrive in time")
        self._connection.settimeout(left)
        try:
            data: bytes = self._connection.recv(size)
        finally:
            self._connection.settimeout(None)
        return data


class StreamingWorker(ThreadWorker):
    """Gunicorn's thread worker with turns of tenants, separate health checks and event streams."""

    def init_process(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self.health_threads = ThreadPoolExecutor(HEALTH_THREADS, thread_name_prefix="health")
        self.turns: turns.Turns[Any] = turns.Turns(self.cfg.threads, SPARE_THREADS)
        Connection.closing = ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing")
        self.cfg.set("limit_request_line", LONGEST_LINE)
        super().init_process()

    def get_thread_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.cfg.threads + SPARE_THREADS)

    def accept(self, listener: Any) -> None:
        """Accept a connection like gunicorn, but use no thread before it has sent something."""
        try:
            accepted, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ECONNABORTED):
                return  # closed already, or accepted by another process
            raise
        self.nr_conns += 1
        self.enqueue_req(Connection(self.cfg, accepted, address, listener.getsockname()))

    def enqueue_req(self, conn: Any) -> None:
        """Add the request to the line of its tenant, when its head is complete. Called only by the accept loop."""
        if self.cfg.is_ssl:  # the head cannot be read
            super().enqueue_req(conn)
            return
        head = _head_of(conn)
        if head is None:
            self._wait_for_more(conn)
            return
        if not head:  # the client has disconnected
            self.nr_conns -= 1
            conn.close()
            return
        if b"\r\n\r\n" not in head:
            self._refuse(conn, HEAD_TOO_LONG if b"\r\n" in head[:LONGEST_LINE] else TOO_LONG)
            return
        conn.data_ready, conn.head_until, conn.head_size = True, None, -1
        if head.startswith(HEALTH):
            self._finish_when_done(self.health_threads.submit(self.handle, conn), conn)
        elif not self.turns.wait(head, conn):
            self._refuse(conn, TOO_MANY)
        else:
            self._start_turns()

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        super().wait_for_and_dispatch_events(min(timeout, self.turns.seconds_until_next()))
        # Not while events are dispatched, because one of them may be of a connection that is dropped.
        for silent in (self.pending_conns, self.keepalived_conns):
            while len(silent) > self.worker_connections // 2:
                self._drop(silent.popleft())  # silent for the longest time
        self._start_turns()

    def handle_request(self, req: Any, conn: Any) -> Any:
        req.should_close = partial(_closes_after, req, req.should_close)
        connection, conn.sock = conn.sock, HandOver(conn.sock)
        conn.parser.unreader.sock = _DeadlineSocket(connection, time.monotonic() + BODY_SECONDS)
        try:
            keep_alive = super().handle_request(req, conn)
        finally:
            conn.parser.unreader.sock = connection
            if not conn.sock.is_handed_over:
                conn.sock = connection
        return keep_alive and conn.sock is connection

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Exception) -> None:
        """Answer a request line that is too long like the API, and other errors like gunicorn, with an HTML page."""
        if not isinstance(exc, LimitRequestLine):
            super().handle_error(req, client, addr, exc)
            return
        self.log.warning("Request line too long")
        with suppress(OSError):  # the client may have disconnected
            client.sendall(TOO_LONG)

    def _wait_for_more(self, conn: Any) -> None:
        """Return the connection to the loop until it has received more, or until its deadline."""
        until = conn.head_until or time.monotonic() + HEAD_SECONDS
        conn.head_until = conn.timeout = until
        if time.monotonic() > until:
            self.nr_conns -= 1
            conn.close()
            return
        conn.sock.setblocking(False)
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def _drop(self, conn: Any) -> None:
        self.poller.unregister(conn.sock)
        self.nr_conns -= 1
        conn.close()

    def _keepalive_after(self, conn: Any, keepalive: bool) -> bool:
        """Whether the connection can be used again. Otherwise it is closed in the background, so that the client can read the answer."""
        until = time.monotonic() + UNREAD_SECONDS
        return keepalive and bool(conn.parser.finish_body(deadline=until, max_bytes=MOST_UNREAD))

    def _refuse(self, conn: Any, answer: bytes) -> None:
        """Send a refusal without using a thread."""
        try:
            conn.sock.setblocking(False)
            conn.sock.send(answer)
        except OSError:
            pass  # a client that does not read notices that the connection is closed
        self.nr_conns -= 1
        conn.close(graceful=True)

    def _start_turns(self) -> None:
        """Start the requests whose turn it is. Called by the loop, and by threads that have become free."""
        while (turn := self.turns.take()) is not None:
            try:
                future = self.tpool.submit(self._handle_turn, turn)
            except RuntimeError:  # the process is ending
                self.turns.end(turn, 0.0)
                turn.item.close()
                continue
            future.add_done_callback(lambda _: self._start_turns())
            self._finish_when_done(future, turn.item)

    def _handle_turn(self, turn: turns.Turn[Any]) -> Any:
        with turns.hold_turn(self.turns, turn):
            return self.handle(turn.item)

    def _finish_when_done(self, future: Future[Any], conn: Any) -> None:
        future.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))


def _closes_after(req: Any, closes: Callable[[], bool]) -> bool:
    """Whether the connection closes after this request. Its answer says so, otherwise the client would send its next request there."""
    return closes() or getattr(req.body.reader, "length", 0) > MOST_UNREAD


def _head_of(conn: Any) -> bytes | None:
    """Return the head of the next request, or the beginning of one that is too long, without consuming it.

    None: it is not complete. Empty: the connection is broken or closed.
    """
    # The beginning of this request may have been read together with the previous body.
    buffered = conn.parser.unreader.buf.getvalue() if conn.parser else b""
    try:
        received = conn.sock.recv(LONGEST_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        received = None
    except OSError:
        return b""
    if received == b"" and b"\r\n\r\n" not in buffered:
        return b""
    head: bytes = buffered + (received or b"")
    is_complete = b"\r\n\r\n" in head or len(head) >= LONGEST_HEAD
    if not is_complete and len(head) == conn.head_size:
        return b""  # readable without new data: the client has closed the connection
    # Make the socket readable only when more data has arrived. Otherwise the loop would spin on an incomplete head.
    conn.head_size = len(head)
    low_water_mark = 1 if is_complete else len(received or b"") + 1
    conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_mark)
    return head if is_complete else None


class StructuredLogger(Logger):
    """Sends gunicorn's log lines through the project's logging configuration."""

    def setup(self, cfg: Any) -> None:
        """Configure logging without Django, because the parent process logs too."""
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            logger.handlers.clear()
            logger.propagate = True
        self.access_log.disabled = not cfg.accesslog
        logging.config.dictConfig(LOGGING)
