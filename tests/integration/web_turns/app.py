"""An application that says who asks, how many do so at once, and computes or waits for as long as it is told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from tenants import turns

_lock = threading.Lock()
_gates = {"shut": threading.Event()}
_here: Counter[str] = Counter()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    tenant = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
    if tenant.isdigit():
        turns.belongs_to(UUID(int=int(tenant)))
    with _lock:
        _here[tenant] += 1
        at_once = _here[tenant]
    try:
        asked = parse_qs(environ["QUERY_STRING"])
        match environ["PATH_INFO"]:
            case "/wait":
                _gates["shut"].wait(30)
            case "/open":
                _gates["shut"].set()
            case "/compute":
                until = time.thread_time() + float(asked["seconds"][0])
                while time.thread_time() < until:
                    sum(range(1000))
            case "/waiting":
                at_once = _here[asked["tenant"][0]]
            case "/body":
                at_once = len(environ["wsgi.input"].read())
    finally:
        with _lock:
            _here[tenant] -= 1
    body = str(at_once).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
