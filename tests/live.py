"""The real application on a free port, in the process and on the database of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from django.core.wsgi import get_wsgi_application
from django.db import connections


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Threaded(ThreadingMixIn, WSGIServer):
    """Answers several at once; its threads are waited for when it closes."""

    daemon_threads = False


def answer_and_let_go(environ: Any, start_response: Any) -> list[bytes]:
    """The application, for threads that keep no connection to the database behind the test's back."""
    try:
        return [b"".join(get_wsgi_application()(environ, start_response))]
    finally:
        connections.close_all()


@contextmanager
def live() -> Iterator[str]:
    """The address of the application, which answers inside the block."""
    with make_server(
        "127.0.0.1", 0, answer_and_let_go, server_class=Threaded, handler_class=Quiet
    ) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()
