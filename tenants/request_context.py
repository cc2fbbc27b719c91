"""Which request set work going. That is written beside the work, so that it is still known after a wait of hours.

Whatever is submitted or woken while a request is answered, or while work runs that goes back to it, carries the request's id. It is on
the log lines of that time, too: as `request_id`, or as `caused_by` where a request with an id of its own is answered, an agent's callback.
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
    """What is to be kept with work that is made here; empty when nobody asked for it, such as a schedule's.

    While tracing is on, it names the open span as well.
    """
    request_id = _request.get()
    return ({REQUEST: request_id} if request_id else {}) | tracing.current_context()


def dump_current() -> str | None:
    """`current` as JSON, for the parameter of a statement; None when it is empty."""
    facts = current()
    return orjson.dumps(facts).decode() if facts else None


@contextmanager
def of_request(request_id: str) -> Iterator[None]:
    """What happens inside goes back to this request."""
    with _going_back_to(request_id), structlog.contextvars.bound_contextvars(request_id=request_id):
        yield


@contextmanager
def of_work(causes: Iterable[Mapping[str, Any] | None], **ids: str) -> Iterator[None]:
    """Inside, work is done that was set going by `causes`, oldest first. The newest has the word; `ids` are on the log lines."""
    request_id = next(
        (cause[REQUEST] for cause in reversed(list(causes)) if cause and cause.get(REQUEST)), ""
    )
    facts = {"request_id": request_id} if request_id else {}
    with _going_back_to(request_id), structlog.contextvars.bound_contextvars(**facts, **ids):
        yield


@contextmanager
def of_callback(cause: Mapping[str, Any] | None, **ids: str) -> Iterator[None]:
    """Inside, a request is answered that belongs to work under way: what follows from it goes back to what set that work going."""
    request_id = (cause or {}).get(REQUEST) or ""
    facts = {"caused_by": request_id} if request_id else {}
    with (
        _going_back_to(request_id or _request.get()),
        structlog.contextvars.bound_contextvars(**facts, **ids),
    ):
        yield


@contextmanager
def _going_back_to(request_id: str) -> Iterator[None]:
    token = _request.set(request_id)
    try:
        yield
    finally:
        _request.reset(token)
