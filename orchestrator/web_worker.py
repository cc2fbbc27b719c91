"""The class of the web's worker processes: gunicorn's threads, which an answer may leave while its connection stays open.

`/healthz` and `/readyz` have threads of their own, so they are answered however many requests wait for something. The loop that takes
connections looks at what has arrived before any thread is given to it: a connection that has not said anything yet holds none.

A thread per open stream would let a few hundred of them stop all requests. So a view that has begun a stream takes the socket out of
`environ["gunicorn.socket"]` with `hand_over`; for gunicorn the request is over, and it neither writes to that connection nor closes it.
"""

from __future__ import annotations

import errno
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from selectors import EVENT_READ
from typing import Any

from gunicorn.workers.gthread import DEFAULT_WORKER_DATA_TIMEOUT, TConn, ThreadWorker

HEALTH_THREADS = 2
CLOSING_THREADS = 4
HEALTH = (b"GET /healthz ", b"HEAD /healthz ", b"GET /readyz ", b"HEAD /readyz ")
LONGEST_HEAD = 4096  # of a request for health; a longer one waits for a thread like any other


class HandOver:
    """A socket as gunicorn uses it, until somebody takes it over; after that it takes everything and does nothing."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def hand_over(self) -> Any:
        """The socket itself, for good."""
        taken, self._socket = self._socket, _NOWHERE
        return taken

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

    def close(self, graceful: bool = False) -> None:
        if graceful:
            self.closing.submit(super().close, True)
        else:
            super().close()


class StreamingWorker(ThreadWorker):
    """`--worker-class=orchestrator.web_worker.StreamingWorker`."""

    def init_process(self) -> None:
        self.health_threads = ThreadPoolExecutor(HEALTH_THREADS, thread_name_prefix="health")
        Connection.closing = ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="closing")
        super().init_process()

    def accept(self, listener: Any) -> None:
        """As gunicorn does it, but without a thread for a connection that has not said anything yet."""
        try:
            accepted, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ECONNABORTED):
                return  # gone already, or another process was faster
            raise
        self.nr_conns += 1
        conn = Connection(self.cfg, accepted, address, listener.getsockname())
        if self.cfg.is_ssl or _said(conn.sock) is not None:
            self.enqueue_req(conn)
            return
        conn.timeout = time.monotonic() + DEFAULT_WORKER_DATA_TIMEOUT + self.cfg.keepalive
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def enqueue_req(self, conn: Any) -> None:
        threads = self.health_threads if not self.cfg.is_ssl and _asks_for_health(conn.sock) else self.tpool
        threads.submit(self.handle, conn).add_done_callback(
            lambda done: self.method_queue.defer(self.finish_request, conn, done)
        )

    def handle_request(self, req: Any, conn: Any) -> Any:
        socket, conn.sock = conn.sock, HandOver(conn.sock)
        try:
            kept = super().handle_request(req, conn)
        finally:
            if not conn.sock.is_handed_over:
                conn.sock = socket
        return kept and conn.sock is socket


def _said(connection: socket.socket) -> bytes | None:
    """What has arrived and was not read yet; None when nothing has. Does not wait, and leaves it there."""
    try:
        return connection.recv(LONGEST_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""  # broken: whoever handles it will see


def _asks_for_health(connection: socket.socket) -> bool:
    """Only when the whole head is there: a thread that is kept for health must not wait for the rest of a request."""
    said = _said(connection) or b""
    return said.startswith(HEALTH) and b"\r\n\r\n" in said
