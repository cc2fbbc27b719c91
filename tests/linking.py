"""A link of an adapter to a fake engine: it records calls and answers as the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.contracts import ToolAnswer, ToolCall, Usage

Answering = Callable[[ToolCall], ToolAnswer]


def accepted(call: ToolCall) -> ToolAnswer:
    return ToolAnswer({"id": "0190", "status": "created"})


@dataclass
class RecordingLink:
    """Answers each call to a tool alike, and is asked to stop whenever `reason` is set."""

    answering: Answering = accepted
    reason: str | None = None
    over_budget_at: int | None = None  # output tokens
    called: list[ToolCall] = field(default_factory=list)
    told: list[Usage] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def stop_reason(self) -> str | None:
        return self.reason

    def saw_session(self, session_id: str) -> None:
        self.sessions.append(session_id)

    def count_usage(self, usage: Usage) -> str | None:
        self.told.append(usage)
        over = self.over_budget_at is not None and usage.output_tokens >= self.over_budget_at
        return "The budget is used up." if over else None

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        pass

    def log(self, kind: str, text: str) -> None:
        self.lines.append((kind, text))

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        self.called.append(call)
        return self.answering(call)
