"""Tracing: sends spans of OpenTelemetry to OTEL_EXPORTER_OTLP_ENDPOINT, if that is set.

All tracing goes through this module. While tracing is off, OpenTelemetry is not imported, and each call here costs one comparison. While it
is on, the SDK logs failures to send spans, which have no other effect.

Work waits in PostgreSQL and Redis for seconds or weeks, and no span is open meanwhile. `current_context` is stored with it and names the
span that caused it. Work that begins soon enough continues that trace; later work begins a trace of its own with a link.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from tenants.tracing.spans import OpenTelemetrySpans

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MOST_CAUSES = 32  # links of one span

#: What is stored of a span: `traceparent` as defined by the W3C, and `began`, when its trace began, in seconds since the epoch.
Cause = Mapping[str, Any]

#: Kinds of spans.
INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"

P = ParamSpec("P")
T = TypeVar("T")

NOTHING: AbstractContextManager[None] = nullcontext()


_spans: OpenTelemetrySpans | None = None
_arrived: ContextVar[str] = ContextVar("traceparent_of_message", default="")


def begin() -> None:
    """Switch tracing on for this process if the environment asks for it. Without the extra `otel` it stays off, with a warning."""
    if _spans is not None or not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        spans = import_module("tenants.tracing.spans")
    except ImportError as error:
        facts = {"action": "tracing_missing", "reason": str(error)}
        logger.warning("Tracing stays off: install orchestrator[otel]", extra=facts)
        return
    use(spans.export_spans())


def use(spans: OpenTelemetrySpans | None) -> None:
    """Make this process's spans with `spans` from now on; None switches tracing off."""
    global _spans
    _spans = spans


def is_on() -> bool:
    return _spans is not None


def span(
    name: str,
    kind: str = INTERNAL,
    *,
    attributes: Mapping[str, Any] | None = None,
    causes: Sequence[Cause] = (),
    links: Sequence[Cause] = (),
    began: int | None = None,
) -> AbstractContextManager[None]:
    """Open a span around the block. It is a child of its cause if there is exactly one, and a recent one; otherwise it links to all causes.

    It always has links to `links`. `began`: nanoseconds since the epoch, if the span began before the block. The span records the type of
    an exception, never its text.
    """
    if _spans is None:
        return NOTHING
    return _spans.open(name, kind, attributes or {}, causes, links, began)


def part(name: str, kind: str = INTERNAL, **attributes: Any) -> AbstractContextManager[None]:
    """Open a span within the open one. Does nothing if none is open, so that system jobs make no traces."""
    if _spans is None or not _spans.current_context():
        return NOTHING
    return _spans.open(name, kind, attributes, (), (), None)


def attempt(name: str, work: Callable[[], T], *, kind: str = INTERNAL, links: Sequence[Cause] = ()) -> T:
    """Does the work and returns its result. Makes a trace of its own if the result is true (how much was done, or what) or the work fails.

    For upkeep, which runs every second and mostly finds nothing to do: then none of its spans are kept.
    """
    if _spans is None:
        return work()
    return _spans.attempt(name, kind, links, work)


def background_task(name: str, work: Callable[P, T]) -> Callable[P, T]:
    """Wrap `work` as an attempt with a link to the span that sent its message."""

    @wraps(work)
    def attempt_traced(*args: P.args, **kwargs: P.kwargs) -> T:
        return attempt(f"errand {name}", partial(work, *args, **kwargs), kind=CONSUMER, links=arrival())

    return attempt_traced


def current_context() -> dict[str, Any]:
    """Return what to store of the open span with work that it causes. Empty if no span is open."""
    return {} if _spans is None else _spans.current_context()


def outgoing() -> dict[str, str]:
    """Headers for a call or message whose receiver may continue the trace."""
    traceparent = current_context().get("traceparent")
    return {"traceparent": traceparent} if traceparent else {}


def note(name: str = "", **attributes: Any) -> None:
    """Add attributes to the open span, or rename it."""
    if _spans is not None:
        _spans.note(name, attributes)


def link(cause: Cause | None) -> None:
    if _spans is not None and cause:
        _spans.link(cause)


def fail(what: str) -> None:
    """Mark the open span as failed. `what` is a code, not a text."""
    if _spans is not None:
        _spans.fail(what)


def note_arrival(traceparent: object) -> None:
    """Remember the header `traceparent` of the message that is processed now, if it has one."""
    if _spans is not None:
        _arrived.set(traceparent if isinstance(traceparent, str) else "")


def arrival() -> list[Cause]:
    """Return the span that sent the message. Only the first call returns it, because a worker may do other work with the same message."""
    if _spans is None or not (traceparent := _arrived.get()):
        return []
    _arrived.set("")
    return [{"traceparent": traceparent}]
