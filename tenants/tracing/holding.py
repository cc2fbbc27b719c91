"""Spans of tentative work are held back until it is known whether anything was done; otherwise nobody gets to see them."""

from __future__ import annotations

import threading

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

MOST_HELD = (
    1_000  # spans of one trace; what ends beyond them is not kept, so that long work does not fill the memory
)


class Holding(SpanProcessor):
    """Stands before the processor that sends spans. Everything that is not held passes through."""

    def __init__(self, following: SpanProcessor) -> None:
        self._following = following
        self._held: dict[int, list[ReadableSpan]] = {}
        self._lock = threading.Lock()

    def hold(self, trace_id: int) -> None:
        with self._lock:
            self._held[trace_id] = []

    def let_go(self, trace_id: int, *, kept: bool) -> None:
        with self._lock:
            held = self._held.pop(trace_id, [])
        if kept:
            for span in held:
                self._following.on_end(span)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._following.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            held = self._held.get(span.context.trace_id) if self._held else None
            if held is not None:
                # Its root, which ends last, is always kept: the others name it.
                if len(held) < MOST_HELD or span.parent is None:
                    held.append(span)
                return
        self._following.on_end(span)

    def shutdown(self) -> None:
        self._following.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._following.force_flush(timeout_millis)
