"""Spans of OpenTelemetry's SDK, kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db.backends.signals import connection_created
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenants import tracing
from tenants.tracing import spans
from tenants.tracing.spans import HeldSpans, OpenTelemetrySpans


@dataclass(frozen=True)
class CollectedSpans:
    """The spans that have ended so far."""

    exporter: InMemorySpanExporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        spans_of_name = self.named(name)
        assert len(spans_of_name) == 1, [span.name for span in self.exporter.get_finished_spans()]
        return spans_of_name[0]

    def text(self) -> str:
        return "\n".join(span.to_json() for span in self.exporter.get_finished_spans())

    def inside(self, outer: ReadableSpan) -> set[str]:
        """Return the names of the spans directly below this one."""
        return {
            span.name
            for span in self.exporter.get_finished_spans()
            if span.parent is not None and span.parent.span_id == outer.context.span_id
        }


@contextmanager
def collect_spans() -> Iterator[CollectedSpans]:
    """Switch tracing on for the duration of the block."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    holding = HeldSpans(SimpleSpanProcessor(exporter))
    provider.add_span_processor(holding)
    spans.watch_statements()
    tracing.use(OpenTelemetrySpans(provider, holding))
    try:
        yield CollectedSpans(exporter)
    finally:
        tracing.use(None)
        connection_created.disconnect(dispatch_uid="tenants.tracing.statements")


def traceparent(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"


def linked_span_ids(span: ReadableSpan) -> set[Any]:
    return {link.context.span_id for link in span.links}
