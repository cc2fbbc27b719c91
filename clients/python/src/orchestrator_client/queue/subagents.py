"""Starts subagents: agents that work for another agent, in the background or while it waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator_client.client import Client
from orchestrator_client.errors import BacklogFull
from orchestrator_client.objects import Record
from orchestrator_client.queue.items import snake_case

#: The options of a subagent.
OPTIONS = frozenset(
    {
        "subagent_type", "prompt", "description", "model", "tool_call_id", "existing_agent_id",
        "existing_conversation_id", "max_turns", "priority", "run_in_background", "silent", "parent_mailbox",
    }
)  # fmt: skip


@dataclass(frozen=True)
class StartedSubagent:
    """A started subagent: the task to wait for, the address of its transcript, and its id."""

    task_id: str
    output_file: str
    subagent_id: str


class SubagentQueue:
    """`parent` is the key of the mailbox that is notified when a subagent ends, unless it is silent."""

    def __init__(self, client: Client, *, parent: str | None = None) -> None:
        self._client = client
        self._parent = parent

    def enqueue(self, options: Mapping[str, Any] | None = None, **more: Any) -> StartedSubagent | None:
        """Start a subagent with `subagent_type`, `prompt` and other `OPTIONS`, whose names may be in camelCase.

        Returns None if too much work already waits for the role. Raises TypeError for an unknown option, and the other refusals of the
        server.
        """
        given = {**(options or {}), **more}
        named = {snake_case(name): value for name, value in given.items()}
        unknown, missing = named.keys() - OPTIONS, {"subagent_type", "prompt"} - named.keys()
        if unknown:
            raise TypeError(f"A subagent has no option {', '.join(sorted(unknown))}.")
        if missing:
            raise TypeError(f"A subagent needs {' and '.join(sorted(missing))}.")
        if self._parent is not None:
            named.setdefault("parent_mailbox", self._parent)
        asked = {name: value for name, value in named.items() if value is not None}
        try:
            made = self._client.subagents.create(**asked)
        except BacklogFull:
            return None
        return StartedSubagent(made.task_id, made.output_file, made.subagent_id)

    def status(self, started: StartedSubagent) -> Record:
        """Return its status (`pending`, `running`, `completed`, `failed` or `cancelled`), its tokens and its error."""
        return self._client.subagents.get(started.subagent_id)

    def transcript(self, started: StartedSubagent) -> str:
        """Return its transcript so far."""
        return self._client.subagents.transcript(started.subagent_id)

    def cancel(self, started: StartedSubagent, reason: str = "") -> None:
        """Cancel it; a running agent is told to stop."""
        self._client.subagents.cancel(started.subagent_id, reason=reason)
