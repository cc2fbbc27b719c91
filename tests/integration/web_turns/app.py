"""An application that counts concurrent requests of each tenant, and waits or computes as requested."""

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
_running: Counter[str] = Counter()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    tenant = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
    if tenant.isdigit():
        turns.belongs_to(UUID(int=int(tenant)))
    with _lock:
        _running[tenant] += 1
        at_once = _running[tenant]
    try:
        query = parse_qs(environ["QUERY_STRING"])
        match environ["PATH_INFO"]:
            case "/wait":
                _gates["shut"].wait(30)
            case "/open":
                _gates["shut"].set()
            case "/compute":
                until = time.thread_time() + float(query["seconds"][0])
                while time.thread_time() < until:
                    sum(range(1000))
            case "/forget-nothing":
                # A tenant stays active, and computing more than 0.1 s counts for ever, however slow the machine is.
                turns.ALONE_SECONDS = turns.MEMORY_SECONDS = 1e6
                turns.HEAVY_SHARE = 1e-7
            case "/known":
                at_once = len(turns._here.turns._tenants)
            case "/waiting":
                at_once = _running[query["tenant"][0]]
            case "/body":
                at_once = len(environ["wsgi.input"].read())
    finally:
        with _lock:
            _running[tenant] -= 1
    body = str(at_once).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
