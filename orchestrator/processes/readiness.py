"""Waiting until an address on this machine answers 200."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from urllib.parse import urlsplit

POLL_SECONDS = 0.1
ANSWER_SECONDS = 5.0  # a server that accepts and stays silent is asked again


def answers_within(url: str, seconds: float, *, before_each: Callable[[], None]) -> str | None:
    """None once the address answers 200, else what it answered last.

    `before_each` may raise to give up early.
    """
    deadline = time.monotonic() + seconds
    while True:
        before_each()
        answer = _ask(url)
        if answer == "200":
            return None
        if time.monotonic() >= deadline:
            return answer
        time.sleep(POLL_SECONDS)


def _ask(url: str) -> str:
    # http.client, as it knows neither proxies nor redirects: the address is meant as it stands.
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", parts.path or "/")
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as fault:
        return f"{type(fault).__name__}: {fault}"
    finally:
        connection.close()
