"""The classes that gunicorn is started with: that of its worker processes, and that of its logger.

A worker process answers requests in gunicorn's threads. Tenants take turns for these, and an answer may leave its thread while its
connection stays open.

`/healthz` and `/readyz` have threads of their own, so they are answered however many requests wait for something. The loop that takes
connections looks at what has arrived before any thread is given to it: a request whose head is not complete holds none, and has some
seconds to become so. Then it stands in the line of its tenant (`tenants.turns`). Its body has a time by which it must be there.

A thread per open stream would let a few hundred of them stop all requests. So a view that has begun a stream takes the socket out of
`environ["gunicorn.socket"]` with `hand_over`; for gunicorn the request is over, and it neither writes to that connection nor closes it.
"""

from __future__ import annotations

import errno
import logging.config
import socket
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from selectors import EVENT_READ
from typing import Any

from gunicorn.glogging import Logger
from gunicorn.workers.gthread import DEFAULT_WORKER_DATA_TIMEOUT, TConn, ThreadWorker

from orchestrator.settings.logging import LOGGING
from tenants import turns

HEALTH_THREADS = 2
CLOSING_THREADS = 4
SPARE_THREADS = 2  # above those that one tenant alone may hold
HEALTH = (b"GET /healthz ", b"HEAD /healthz ", b"GET /readyz ", b"HEAD /readyz ")
LONGEST_HEAD = 16_384  # what is looked at; a longer one goes to gunicorn, which has its own bounds
HEAD_SECONDS = DEFAULT_WORKER_DATA_TIMEOUT + 2.0  # in which the head of a request must be complete
BODY_SECONDS = 30.0  # in which its body must be read
# Requests wait for servers at every turn, and come back to computing ones: after this time they get their share, instead of after 5 ms.
SWITCH_SECONDS = 0.0005
TOO_MANY = (
    b'{"type":"about:blank","title":"Too Many Requests","status":429,"code":"throttled",'
    b'"detail":"Too many requests of yours wait already. Try again later."}'
)
REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(TOO_MANY), TOO_MANY)
)


class HandOver:
    """A socket as gunicorn uses it, until somebody takes it over; after that it takes everything and does nothing."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def hand_over(self) -> Any:
        """The socket itself, for good."""
        own_socket, self._socket = self._socket, _NOWHERE
        return own_socket

    @property
    def is_handed_over(self) -> bool:
        return self._socket is _NOWHERE

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _Nowhere:
    """What is left behind: gunicorn may write the end of the answer and close, and nothing happens."""

    def __getattr__(self, name: str) -> Any:
        return self._nothing

    def _nothing(self, *arguments: Any, **options: Any) -> None:
        return None

    def recv(self, *arguments: Any) -> bytes:
        return b""


_NOWHERE = _Nowhere()


class Connection(TConn):
    """One whose end nobody waits for: gunicorn gives the other side two seconds to close first, in the loop that takes connections."""

    closing: ThreadPoolExecutor  # of the process
    head_until: float | None = None  # by which the head must be complete
    head_size = -1  # of its part that has come

    def close(self, graceful: bool = False) -> None:
        if graceful:
            self.closing.submit(super().close, True)
        else:
            super().close()


class _Timely:
    """A socket for reading a body, which must have come by `until`; after that it is as if the client had gone."""

    def __init__(self, connection: Any, until: float) -> None:
        self._connection, self._until = connection, until

    def recv(self, size: int) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the body did not come in time")
        self._connection.settimeout(left)
        try:
            data: bytes = self._connection.recv(size)
        finally:
            self._connection.settimeout(None)
        return data


class StreamingWorker(ThreadWorker):
    """`--worker-class=orchestrator.web_worker.StreamingWorker`."""

    def init_process(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self.health_threads = ThreadPoolExecutor(HEALTH_THREADS, thread_name_prefix="health")
        self.turns: turns.Turns[Any] = turns.Turns(self.cfg.threads, SPARE_THREADS)
        Connection.closing = ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing")
        super().init_process()

    def get_thread_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.cfg.threads + SPARE_THREADS)

    def accept(self, listener: Any) -> None:
        """As gunicorn does it, but without a thread for a connection that has not said anything yet."""
        try:
            accepted, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ECONNABORTED):
                return  # gone already, or another process was faster
            raise
        self.nr_conns += 1
        if len(self.pending_conns) > self.worker_connections // 2:
            self._drop(self.pending_conns[0])  # the connection that has been silent for longest makes room
        self.enqueue_req(Connection(self.cfg, accepted, address, listener.getsockname()))

    def enqueue_req(self, conn: Any) -> None:
        """To the line of its tenant, once its head is there. Called by the loop alone."""
        if self.cfg.is_ssl:  # nothing can be seen from outside
            super().enqueue_req(conn)
            return
        head = _head_of(conn)
        if head is None:
            self._wait_for_more(conn)
            return
        if not head:  # the client has gone
            self.nr_conns -= 1
            conn.close()
            return
        conn.data_ready, conn.head_until, conn.head_size = True, None, -1
        if head.startswith(HEALTH):
            self._finish_later(self.health_threads.submit(self.handle, conn), conn)
        elif not self.turns.wait(head, conn):
            self._refuse(conn)
        else:
            self._begin_turns()

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        super().wait_for_and_dispatch_events(min(timeout, self.turns.seconds_until_next()))
        self._begin_turns()

    def handle_request(self, req: Any, conn: Any) -> Any:
        connection, conn.sock = conn.sock, HandOver(conn.sock)
        conn.parser.unreader.sock = _Timely(connection, time.monotonic() + BODY_SECONDS)
        try:
            kept = super().handle_request(req, conn)
        finally:
            conn.parser.unreader.sock = connection
            if not conn.sock.is_handed_over:
                conn.sock = connection
        return kept and conn.sock is connection

    def _wait_for_more(self, conn: Any) -> None:
        """Back to the loop until more has come than is there already."""
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
        self.pending_conns.remove(conn)
        self.poller.unregister(conn.sock)
        self.nr_conns -= 1
        conn.close()

    def _refuse(self, conn: Any) -> None:
        """Without a thread, as all that its line may hold are waited for."""
        try:
            conn.sock.setblocking(False)
            conn.sock.send(REFUSAL)
        except OSError:
            pass  # a client that does not read will see that the connection is closed
        self.nr_conns -= 1
        conn.close(graceful=True)

    def _begin_turns(self) -> None:
        """Threads for those whose turn it is. Called by the loop, and by threads that have become free."""
        while (turn := self.turns.take()) is not None:
            try:
                begun = self.tpool.submit(self._in_turn, turn)
            except RuntimeError:  # the process ends
                self.turns.end(turn, 0.0)
                turn.item.close()
                continue
            begun.add_done_callback(lambda _: self._begin_turns())
            self._finish_later(begun, turn.item)

    def _in_turn(self, turn: turns.Turn[Any]) -> Any:
        with turns.hold_turn(self.turns, turn):
            return self.handle(turn.item)

    def _finish_later(self, begun: Future[Any], conn: Any) -> None:
        begun.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))


def _head_of(conn: Any) -> bytes | None:
    """The head of the request that comes next, or what may be seen of a long one; None while it is not complete.

    Leaves everything where it is. A connection that is broken or at its end has a head of nothing.
    """
    # A body may have been read together with the request after it.
    read = conn.parser.unreader.buf.getvalue() if conn.parser else b""
    try:
        received = conn.sock.recv(LONGEST_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        received = None
    except OSError:
        return b""
    if received == b"" and b"\r\n\r\n" not in read:
        return b""
    head: bytes = read + (received or b"")
    is_complete = b"\r\n\r\n" in head or len(head) >= LONGEST_HEAD
    if not is_complete and len(head) == conn.head_size:
        return b""  # woken, and nothing more is there: it was the end
    # Readable means that more has come than was there: else the loop would turn for as long as half a head is.
    conn.head_size = len(head)
    lowest = 1 if is_complete else len(received or b"") + 1
    conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowest)
    return head if is_complete else None


class OneFormat(Logger):
    """What gunicorn says goes the way of all other lines, instead of having a format of its own."""

    def setup(self, cfg: Any) -> None:
        """Before any worker is there, and without Django: the parent process has lines to write as well."""
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            logger.handlers.clear()
            logger.propagate = True
        self.access_log.disabled = not cfg.accesslog
        logging.config.dictConfig(LOGGING)
