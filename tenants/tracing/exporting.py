"""Spans go to a collector over OTLP/HTTP, in the background. The standard variables OTEL_* hold: names, samplers, headers, limits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tenants import tracing
from tenants.tracing.spans import Holding, OpenTelemetrySpans

DEFAULT_NAME = "orchestrator"


def spans() -> OpenTelemetrySpans:
    """Spans that are sent; libraries that use OpenTelemetry's own API send theirs along."""
    os.environ.setdefault("OTEL_SERVICE_NAME", DEFAULT_NAME)
    provider = TracerProvider(resource=Resource.create())
    holding = Holding(BatchSpanProcessor(OTLPSpanExporter()))
    provider.add_span_processor(holding)
    trace.set_tracer_provider(provider)
    watch_statements()
    return OpenTelemetrySpans(provider, holding)


# Each statement that PostgreSQL is sent within a span becomes a span. Its text has places for values, and never the values.


LONGEST_TEXT = 1_000
_FIRST_WORD = re.compile(r"\s*(?:--[^\n]*\n\s*)*([A-Za-z]+)")
_LITERAL = re.compile(r"'(?:[^']|'')*'")


def watch_statements() -> None:
    """Have statements of all connections become spans, those that are open in this thread as well."""
    connection_created.connect(_watch_new, dispatch_uid="tenants.tracing.statements")
    for connection in connections.all(initialized_only=True):
        _watch(connection)


def _watch_new(connection: Any, **kwargs: Any) -> None:
    _watch(connection)


def _watch(connection: Any) -> None:
    if _traced not in connection.execute_wrappers:
        connection.execute_wrappers.append(_traced)


def _traced(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
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
