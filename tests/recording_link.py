"""A link between an adapter and the engine that records what it receives and answers as the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.contracts import ToolAnswer, ToolCall, Usage


@dataclass
class RecordingLink:
    """Accepts every tool call, and neither stops the run nor its spending, unless the test says otherwise."""

    answer_tool: Callable[[ToolCall], ToolAnswer] = lambda call: ToolAnswer(
        {"id": "0190", "status": "created"}
    )
    stop: Callable[[], str | None] = lambda: None
    stop_spending: Callable[[Usage], str | None] = lambda usage: None
    tool_calls: list[ToolCall] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    progress: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def stop_reason(self) -> str | None:
        return self.stop()

    def saw_session(self, session_id: str) -> None:
        self.sessions.append(session_id)

    def count_usage(self, usage: Usage) -> str | None:
        self.usages.append(usage)
        return self.stop_spending(usage)

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        self.progress |= progress

    def log(self, kind: str, text: str) -> None:
        self.lines += [(kind, line) for line in text.split("\n")]

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        self.tool_calls.append(call)
        return self.answer_tool(call)
