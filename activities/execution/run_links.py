"""The link of a run to an agent inside a worker: records what the adapter reports and performs the agent's tool calls.

It calls the same functions as the callback API for agents elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rest_framework.exceptions import ValidationError

from activities import run_logs, sessions
from activities.exceptions import ActivityError
from activities.execution import agent_tools, reports
from activities.run_tokens import RunToken
from agents.contracts import ToolAnswer, ToolCall, Usage
from agents.tools import DEFINITIONS

_NAMES = frozenset(definition.name for definition in DEFINITIONS)


@dataclass(frozen=True, slots=True)
class LinkOfRun:
    """The link of one run. Each call is a transaction of its own."""

    run: RunToken

    def stop_reason(self) -> str | None:
        """Return why the agent must stop, or None. An agent that suspended its activity may still finish its call."""
        return reports.stop_reason(self.run)

    def saw_session(self, session_id: str) -> None:
        sessions.saw(self.run, session_id)

    def count_usage(self, usage: Usage) -> str | None:
        return reports.count_usage(self.run, usage)

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        reports.note_progress(self.run, progress)

    def log(self, kind: str, text: str) -> None:
        run_logs.here().add(self.run, kind, text)

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        """Perform a tool call. A refusal is answered to the agent, so that it can react. The answer stops an agent whose run is over."""
        if call.name not in _NAMES:
            return _refuse("tool_not_available", f"The tools are {', '.join(sorted(_NAMES))}.")
        try:
            answer = agent_tools.receive_call(self.run, call.name, dict(call.arguments), key=call.call_id)
        except ValidationError as error:
            return _refuse(
                "invalid_arguments", "The arguments are not what the tool takes.", faults=error.detail
            )
        except reports.RunOver as error:
            return ToolAnswer({"error": error.code, "message": str(error)}, stop=True, refused=True)
        except ActivityError as error:
            return _refuse(error.code, str(error))
        return ToolAnswer(answer.body, stop=bool(answer.body.get("stop")))


def _refuse(code: str, message: str, **more: Any) -> ToolAnswer:
    return ToolAnswer({"error": code, "message": message, **more}, refused=True)
