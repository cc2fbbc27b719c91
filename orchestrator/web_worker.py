"""The class of the web's worker processes: gunicorn's threads, which an answer may leave while its connection stays open.

A thread per open stream would let a few hundred of them stop all requests. So a view that has begun a stream takes the socket out of
`environ["gunicorn.socket"]` with `hand_over`; for gunicorn the request is over, and it neither writes to that connection nor closes it.
"""

from __future__ import annotations

from typing import Any

from gunicorn.workers.gthread import ThreadWorker


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


class StreamingWorker(ThreadWorker):
    """`--worker-class=orchestrator.web_worker.StreamingWorker`."""

    def handle_request(self, req: Any, conn: Any) -> Any:
        socket, conn.sock = conn.sock, HandOver(conn.sock)
        try:
            kept = super().handle_request(req, conn)
        finally:
            if not conn.sock.is_handed_over:
                conn.sock = socket
        return kept and conn.sock is socket
