"""Tracing: what happens becomes spans of OpenTelemetry, when OTEL_EXPORTER_OTLP_ENDPOINT says where to send them.

All tracing goes through this module. While tracing is off nothing of OpenTelemetry is imported, and each call here is one comparison.
While it is on, a failure to send spans is logged by the SDK and changes nothing else.

Work waits in PostgreSQL and Redis for seconds or weeks, and no span is open meanwhile. `current_context` is kept with it and names the
span that set it going. What begins soon enough continues that trace; later it begins a trace of its own, with a link.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial, wraps
from importlib import import_module
from typing import Any, ParamSpec, Protocol, TypeVar

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MOST_CAUSES = 32  # links of one span; more of them say nothing more

#: What is kept of a span: `traceparent` as W3C writes it, and `began`, when its trace did, in seconds of the epoch.
Cause = Mapping[str, Any]

#: Kinds of spans.
INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"

P = ParamSpec("P")
T = TypeVar("T")

NOTHING: AbstractContextManager[None] = nullcontext()


class Spans(Protocol):
    """Makes spans; `tenants.tracing.spans` has the only one."""

    def open(
        self, name: str, kind: str, attributes: Mapping[str, Any], causes: Sequence[Cause], links: Sequence[Cause], began: int | None
    ) -> AbstractContextManager[None]: ...  # fmt: skip

    def attempt(self, name: str, kind: str, links: Sequence[Cause], work: Callable[[], T]) -> T: ...

    def current_context(self) -> dict[str, Any]: ...

    def note(self, name: str, attributes: Mapping[str, Any]) -> None: ...

    def link(self, cause: Cause) -> None: ...

    def fail(self, what: str) -> None: ...


_spans: Spans | None = None
_arrived: ContextVar[str] = ContextVar("traceparent_of_message", default="")


def begin() -> None:
    """Switch tracing on for this process if the environment wants it. Without the extra `otel` it stays off, and a line says so."""
    if _spans is not None or not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        spans = import_module("tenants.tracing.spans")
    except ImportError as error:
        facts = {"action": "tracing_missing", "reason": str(error)}
        logger.warning("Tracing stays off: install orchestrator[otel]", extra=facts)
        return
    use(spans.export_spans())


def use(spans: Spans | None) -> None:
    """From now on these make the spans of this process; None switches tracing off."""
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
    """A span around the block. Of one cause that is young it is a child; otherwise all causes, and `links` in any case, are linked.

    `began`: nanoseconds of the epoch, when that was before the block. An exception marks the span with its type, never with its text.
    """
    if _spans is None:
        return NOTHING
    return _spans.open(name, kind, attributes or {}, causes, links, began)


def part(name: str, kind: str = INTERNAL, **attributes: Any) -> AbstractContextManager[None]:
    """A span within the one that is open; nothing where none is, so that upkeep of the system makes no traces."""
    if _spans is None or not _spans.current_context():
        return NOTHING
    return _spans.open(name, kind, attributes, (), (), None)


def attempt(name: str, work: Callable[[], T], *, kind: str = INTERNAL, links: Sequence[Cause] = ()) -> T:
    """Does the work and returns what it returns. It is a trace of its own if that is true (how much was done, or what) or if it failed.

    For upkeep, which looks every second and mostly finds nothing: then no span of it remains, whatever it has asked meanwhile.
    """
    if _spans is None:
        return work()
    return _spans.attempt(name, kind, links, work)


def background_task(name: str, work: Callable[P, T]) -> Callable[P, T]:
    """The work of a message that says that there is something to do: an attempt that is linked with who sent the message."""

    @wraps(work)
    def attempt_traced(*args: P.args, **kwargs: P.kwargs) -> T:
        return attempt(f"errand {name}", partial(work, *args, **kwargs), kind=CONSUMER, links=arrival())

    return attempt_traced


def current_context() -> dict[str, Any]:
    """What to keep of the open span with work that it sets going; empty when there is none."""
    return {} if _spans is None else _spans.current_context()


def outgoing() -> dict[str, str]:
    """Headers for a call or message to somebody who may continue the trace."""
    traceparent = current_context().get("traceparent")
    return {"traceparent": traceparent} if traceparent else {}


def note(name: str = "", **attributes: Any) -> None:
    """Say more of the open span, or call it otherwise."""
    if _spans is not None:
        _spans.note(name, attributes)


def link(cause: Cause | None) -> None:
    """The open span has to do with that one."""
    if _spans is not None and cause:
        _spans.link(cause)


def fail(what: str) -> None:
    """The open span ends badly. `what` is a code, not a text."""
    if _spans is not None:
        _spans.fail(what)


def note_arrival(traceparent: object) -> None:
    """The message that is worked on now came with this header, or with none."""
    if _spans is not None:
        _arrived.set(traceparent if isinstance(traceparent, str) else "")


def arrival() -> list[Cause]:
    """The span that sent the message, once: a worker may go on with other work under the same one."""
    if _spans is None or not (traceparent := _arrived.get()):
        return []
    _arrived.set("")
    return [{"traceparent": traceparent}]
