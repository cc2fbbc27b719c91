"""Arguments for each tool, and the status that it leads to."""

from __future__ import annotations

from typing import Any

import pytest

CALLS: dict[str, dict[str, Any]] = {
    "report_blocker": {"type": "api_outage", "message": "It is down."},
    "create_subtask": {"name": "Look it up", "agent_role": "ba", "blocking": True},
    "request_human_review": {"question": "Is this the tone?", "content": "Dear bees"},
    "create_approval": {"type": "content_direction", "title": "Which way?", "options": ["Honey", "Hives"]},
    "reassign_task": {"human_role": "editor", "reason": "Needs a person."},
}
#: The status of the agent's activity after each call.
LEAVES = {
    "report_blocker": "blocked", "create_subtask": "awaiting_subtask", "request_human_review": "awaiting_review",
    "create_approval": "awaiting_review", "reassign_task": "reassigned",
}  # fmt: skip
every_tool = pytest.mark.parametrize("tool", CALLS)
