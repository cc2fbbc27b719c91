"""Makes spans with the API of OpenTelemetry, for any provider.

Those of `export_spans` go to a collector over OTLP/HTTP, in the background. The standard variables OTEL_* apply: names, samplers, headers,
limits.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from django.conf import settings
from django.db import connections
from django.db.backends.signals import connection_created
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tenants import tracing
from tenants.tracing import MOST_CAUSES, Cause

T = TypeVar("T")

_W3C = TraceContextTextMapPropagator()
_began: ContextVar[float] = ContextVar("trace_began", default=0.0)


class OpenTelemetrySpans:
    def __init__(self, provider: trace.TracerProvider, held_spans: HeldSpans) -> None:
        self._tracer = provider.get_tracer("orchestrator")
        self._held_spans = held_spans

    @contextmanager
    def open(
        self, name: str, kind: str, attributes: Mapping[str, Any], causes: Sequence[Cause], links: Sequence[Cause], began: int | None
    ) -> Iterator[None]:  # fmt: skip
        """Open a child of its only cause if that is recent, or of the open span if it has no causes. Otherwise begin a separate trace."""
        parent, linked, trace_began = _place_span(causes)
        token = _began.set(trace_began)
        contexts = [_context_of(link) for link in (*linked, *links)]
        opened = self._tracer.start_span(
            name, context=parent, kind=trace.SpanKind[kind], attributes=dict(attributes), start_time=began,
            links=[trace.Link(each) for each in contexts[:MOST_CAUSES] if each.is_valid],
        )  # fmt: skip
        try:
            with trace.use_span(
                opened, end_on_exit=False, record_exception=False, set_status_on_exception=False
            ):
                yield
        except BaseException as error:
            # Only the type, as the text may quote prompts and keys.
            _fail(opened, type(error).__name__)
            raise
        finally:
            opened.end()
            _began.reset(token)

    def attempt(self, name: str, kind: str, links: Sequence[Cause], work: Callable[[], T]) -> T:
        """Keeps the trace of the work if its result is true, or if it failed."""
        outside = context.attach(context.Context())
        trace_id, done = 0, True
        try:
            with self.open(name, kind, {}, (), links, None):
                trace_id = trace.get_current_span().get_span_context().trace_id
                self._held_spans.hold(trace_id)
                result = work()
                if done := bool(result):
                    self.note("", _count_of(result))
                return result
        finally:
            self._held_spans.end(trace_id, kept=done)
            context.detach(outside)

    def current_context(self) -> dict[str, Any]:
        here = trace.get_current_span().get_span_context()
        if not here.is_valid:
            return {}
        traceparent = f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"
        return {"traceparent": traceparent, "began": round(_began.get(), 3)}

    def note(self, name: str, attributes: Mapping[str, Any]) -> None:
        here = trace.get_current_span()
        if name:
            here.update_name(name)
        here.set_attributes(dict(attributes))

    def link(self, cause: Cause) -> None:
        linked = _context_of(cause)
        if linked.is_valid:
            trace.get_current_span().add_link(linked)

    def fail(self, what: str) -> None:
        _fail(trace.get_current_span(), what)


def _count_of(result: object) -> dict[str, int]:
    """Return how much was done, if the result of the work says so."""
    if isinstance(result, Sized) and not isinstance(result, str):
        return {"orchestrator.count": len(result)}
    return {"orchestrator.count": int(result)} if isinstance(result, int) else {}


def _place_span(causes: Sequence[Cause]) -> tuple[context.Context | None, Sequence[Cause], float]:
    """Return the parent of a span (None: the open span), its links, and when its trace began."""
    now = time.time()
    known = [cause for cause in causes if _context_of(cause).is_valid]
    if not known:
        return None, (), _began.get() if trace.get_current_span().get_span_context().is_valid else now
    began = float(known[0].get("began") or now)
    if len(known) == 1 and now - began < settings.ORCHESTRATOR_TRACE_SECONDS:
        return (
            trace.set_span_in_context(trace.NonRecordingSpan(_context_of(known[0])), context.Context()),
            (),
            began,
        )
    return context.Context(), known, now


def _context_of(cause: Cause) -> trace.SpanContext:
    traceparent = cause.get("traceparent")
    carrier = {"traceparent": traceparent} if isinstance(traceparent, str) else {}
    return trace.get_current_span(_W3C.extract(carrier, context.Context())).get_span_context()


def _fail(failed: trace.Span, what: str) -> None:
    failed.set_attribute("error.type", what)
    failed.set_status(trace.StatusCode.ERROR)


# Spans of an attempt are held back until it is known whether it did anything; if not, they are dropped.


MOST_HELD = 1_000  # spans of one trace; further ones are dropped, so that long work does not fill the memory


class HeldSpans(SpanProcessor):
    """Holds the spans of some traces back, and passes all others on to the next processor, which sends them."""

    def __init__(self, following: SpanProcessor) -> None:
        self._following = following
        self._held: dict[int, list[ReadableSpan]] = {}
        self._lock = threading.Lock()

    def hold(self, trace_id: int) -> None:
        with self._lock:
            self._held[trace_id] = []

    def end(self, trace_id: int, *, kept: bool) -> None:
        with self._lock:
            spans = self._held.pop(trace_id, [])
        if kept:
            for span in spans:
                self._following.on_end(span)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._following.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            spans = self._held.get(span.context.trace_id) if self._held else None
            if spans is not None:
                # The root, which ends last, is always kept: the others refer to it.
                if len(spans) < MOST_HELD or span.parent is None:
                    spans.append(span)
                return
        self._following.on_end(span)

    def shutdown(self) -> None:
        self._following.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._following.force_flush(timeout_millis)


DEFAULT_NAME = "orchestrator"


def export_spans() -> OpenTelemetrySpans:
    """Send spans of this process, including those of libraries that use OpenTelemetry's own API."""
    os.environ.setdefault("OTEL_SERVICE_NAME", DEFAULT_NAME)
    provider = TracerProvider(resource=Resource.create())
    held_spans = HeldSpans(BatchSpanProcessor(OTLPSpanExporter()))
    provider.add_span_processor(held_spans)
    trace.set_tracer_provider(provider)
    watch_statements()
    return OpenTelemetrySpans(provider, held_spans)


# Each SQL statement within a span becomes a span. Its text has placeholders, never the values.


LONGEST_TEXT = 1_000
_FIRST_WORD = re.compile(r"\s*(?:--[^\n]*\n\s*)*([A-Za-z]+)")
_LITERAL = re.compile(r"'(?:[^']|'')*'")


def watch_statements() -> None:
    """Make spans of the statements of all new connections, and of those open in this thread."""
    connection_created.connect(_watch, dispatch_uid="tenants.tracing.statements")
    for connection in connections.all(initialized_only=True):
        _watch(connection)


def _watch(connection: Any, **signal: Any) -> None:
    if _trace_statement not in connection.execute_wrappers:
        connection.execute_wrappers.append(_trace_statement)


def _trace_statement(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    if not tracing.is_on():
        return execute(sql, params, many, context)
    text = str(sql)
    word = _FIRST_WORD.match(text)
    operation = word[1].upper() if word else "SQL"
    attributes = {
        "db.system.name": "postgresql",
        "db.operation.name": operation,
        "db.query.text": _LITERAL.sub("'?'", text)[:LONGEST_TEXT],
    }
    with tracing.part(f"postgresql {operation}", tracing.CLIENT, **attributes):
        return execute(sql, params, many, context)
