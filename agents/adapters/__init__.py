"""Finds adapters by name. Each module is imported with its first request, so that unused libraries cost nothing.

Every adapter runs one request, and returns a result or raises an `AgentError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from agents.contracts import AgentRequest, AgentResult, RunLink, ToolAnswer, ToolCall, Usage
from agents.exceptions import ConfigurationError

_IMPORT_PATHS = {
    "cli": "agents.adapters.cli:CliAdapter",
    "http": "agents.adapters.http:HttpAdapter",
    "inline": "agents.adapters.inline:InlineAdapter",
    "a2a": "agents.adapters.a2a:A2AAdapter",
    "anthropic": "agents.adapters.anthropic:AnthropicAdapter",
    "openai": "agents.adapters.openai:OpenAIAdapter",
    "batch": "agents.adapters.batch:BatchAdapter",
}

#: The extra to install for adapters that use a vendor's library.
_EXTRAS = {"a2a": "a2a", "anthropic": "llm", "openai": "llm", "batch": "llm"}


def names() -> tuple[str, ...]:
    """Return the names that a configuration may use."""
    return tuple(_IMPORT_PATHS)


@cache
def get(name: str) -> Adapter:
    """Return the adapter of this name. Raises `ConfigurationError` if there is none or its library is not installed."""
    if name not in _IMPORT_PATHS:
        raise ConfigurationError(f"There is no adapter {name!r}; known are {', '.join(_IMPORT_PATHS)}.")
    module, _, attribute = _IMPORT_PATHS[name].partition(":")
    try:
        adapter: Adapter = getattr(import_module(module), attribute)()
    except ImportError as error:
        extra = _EXTRAS.get(name)
        how = f" Install it with: pip install orchestrator[{extra}]" if extra else ""
        raise ConfigurationError(
            f"The adapter {name!r} needs a package that is not installed: {error}.{how}"
        ) from error
    return adapter


class Adapter(Protocol):
    """A way to reach agents. One instance serves all tenants and threads, so it stores nothing of a request."""

    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        """Run once, within `request.timeout_seconds`; the engine does the retries.

        `link.stop_reason` returns a reason once nobody needs the result any more. An adapter that waits checks it about once a second and
        gives up when there is one. Do not call it in a tight loop: it may cost a query.
        """
        ...  # pragma: no cover


class Unlinked:
    """The `RunLink` of callers that always need the result and offer no tools."""

    def stop_reason(self) -> str | None:
        return None

    def saw_session(self, session_id: str) -> None:
        pass

    def count_usage(self, usage: Usage) -> str | None:
        return None

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        pass

    def log(self, kind: str, text: str) -> None:
        pass

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        return ToolAnswer(
            {"error": "tool_not_available", "message": "There are no tools here."}, refused=True
        )


UNLINKED = Unlinked()
