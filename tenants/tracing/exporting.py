"""Spans go to a collector over OTLP/HTTP, in the background. The standard variables OTEL_* hold: names, samplers, headers, limits."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tenants.tracing import statements
from tenants.tracing.holding import Holding
from tenants.tracing.spans import OpenTelemetrySpans

DEFAULT_NAME = "orchestrator"


def spans() -> OpenTelemetrySpans:
    """Spans that are sent; libraries that use OpenTelemetry's own API send theirs along."""
    os.environ.setdefault("OTEL_SERVICE_NAME", DEFAULT_NAME)
    provider = TracerProvider(resource=Resource.create())
    holding = Holding(BatchSpanProcessor(OTLPSpanExporter()))
    provider.add_span_processor(holding)
    trace.set_tracer_provider(provider)
    statements.watch()
    return OpenTelemetrySpans(provider, holding)
