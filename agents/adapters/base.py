"""What every adapter does: run one request and answer with a result or an `AgentError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from agents.contracts import AgentRequest, AgentResult, RunLink, ToolAnswer, ToolCall, Usage


class Adapter(Protocol):
    """A way to reach agents. One instance serves all tenants and threads and keeps nothing of a request."""

    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        """Run once, within `request.timeout_seconds`; repeating is the engine's business.

        `link.stop_reason` tells whether anybody still wants the result. An adapter that waits asks it about once a second and gives up
        when it says why not. It must not be asked in a tight loop: it may cost a query.
        """
        ...  # pragma: no cover


class Unlinked:
    """For callers who would always take the result, and offer no tools."""

    def stop_reason(self) -> str | None:
        return None

    def saw_session(self, session_id: str) -> None:
        pass

    def spent(self, usage: Usage) -> str | None:
        return None

    def progressed(self, progress: Mapping[str, Any]) -> None:
        pass

    def log(self, kind: str, text: str) -> None:
        pass

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        return ToolAnswer(
            {"error": "tool_not_available", "message": "There are no tools here."}, refused=True
        )


UNLINKED = Unlinked()
