"""Which request caused a piece of work. It is stored with the work, so that it is still known after hours of waiting.

Work that is submitted or woken while a request is answered, or while other work runs that the request caused, carries the request's id.
Log lines carry it as well: as `request_id`, or as `caused_by` while an agent's callback is answered, a request with an id of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import orjson
import structlog

from tenants import tracing

REQUEST = "request"

_request: ContextVar[str] = ContextVar("set_going_by", default="")


def current() -> dict[str, Any]:
    """Return what to store with work that is created here. Empty if no request caused it, as for a schedule.

    While tracing is on, it names the open span as well.
    """
    request_id = _request.get()
    return ({REQUEST: request_id} if request_id else {}) | tracing.current_context()


def dump_current() -> str | None:
    """Return `current` as JSON, for the parameter of a statement; None if it is empty."""
    facts = current()
    return orjson.dumps(facts).decode() if facts else None


@contextmanager
def of_request(request_id: str) -> Iterator[None]:
    """Attribute everything within the block to this request."""
    with _caused_by(request_id), structlog.contextvars.bound_contextvars(request_id=request_id):
        yield


@contextmanager
def of_work(causes: Iterable[Mapping[str, Any] | None], **ids: str) -> Iterator[None]:
    """Attribute everything within the block to `causes` (oldest first). The newest that names a request counts; log lines carry `ids`."""
    request_id = next(
        (cause[REQUEST] for cause in reversed(list(causes)) if cause and cause.get(REQUEST)), ""
    )
    facts = {"request_id": request_id} if request_id else {}
    with _caused_by(request_id), structlog.contextvars.bound_contextvars(**facts, **ids):
        yield


@contextmanager
def of_callback(cause: Mapping[str, Any] | None, **ids: str) -> Iterator[None]:
    """Attribute everything within the block, which answers a request of running work, to the request that caused that work."""
    request_id = (cause or {}).get(REQUEST) or ""
    facts = {"caused_by": request_id} if request_id else {}
    with _caused_by(request_id or _request.get()), structlog.contextvars.bound_contextvars(**facts, **ids):
        yield


@contextmanager
def _caused_by(request_id: str) -> Iterator[None]:
    token = _request.set(request_id)
    try:
        yield
    finally:
        _request.reset(token)
