"""Subtasks: an agent has a part of its work done by another agent or by a person.

A blocking subtask puts its parent aside; however it ends, the parent wakes with the outcome. One that does not block only stores its
result on itself. Quotas bound what a tree of subtasks can grow to, whatever its agents ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import families, suspension
from activities.exceptions import QuotaExceeded
from activities.models import Activity
from activities.run_tokens import RunToken
from activities.states import LinkKind
from activities.submission import child_of, submit

TOOL = "create_subtask"


def create(
    run: RunToken, *, name: str, description: str, agent_role: str | None = None, human_role: str | None = None,
    params: Mapping[str, Any] | None = None, blocking: bool = True,
) -> UUID:  # fmt: skip
    """Create a subtask of the activity of a live run; its id. Raises `QuotaExceeded`, `RunSuperseded`. In the caller's `tenant_scope`."""
    parent = _with_room(run)
    subtask = child_of(
        parent,
        LinkKind.SUBTASK,
        name=name,
        description=description,
        agent_role=agent_role,
        human_role=human_role,
        params=dict(params or {}),
        priority=parent.priority,
        metadata={"blocking": blocking},
    )
    (submitted,) = submit([subtask], actor=f"run:{run.run_id}")
    if blocking:
        suspension.put_aside(run, "await_subtask", tool=TOOL, detail={"subtask": str(submitted.id)})
    return submitted.id


def _with_room(run: RunToken) -> Activity:
    """The live activity, locked with the root of its tree: two members of a tree count one after the other."""
    tree = families.tree_of(run.tenant_id, run.activity_id)
    families.lock(run.tenant_id, (tree.root, run.activity_id))
    parent = suspension.live(run)
    tree = families.tree_of(run.tenant_id, run.activity_id)
    if tree.depth >= settings.ORCHESTRATOR_SUBTASK_DEPTH:
        raise QuotaExceeded(
            "depth", f"Subtasks may be nested {settings.ORCHESTRATOR_SUBTASK_DEPTH} deep, not deeper."
        )
    if tree.subtasks >= settings.ORCHESTRATOR_SUBTASKS_PER_ACTIVITY:
        raise QuotaExceeded(
            "subtasks",
            f"An activity may create {settings.ORCHESTRATOR_SUBTASKS_PER_ACTIVITY} subtasks, not more.",
        )
    if tree.members >= settings.ORCHESTRATOR_ACTIVITIES_PER_TREE:
        raise QuotaExceeded(
            "tree",
            f"A tree of subtasks may have {settings.ORCHESTRATOR_ACTIVITIES_PER_TREE} activities, not more.",
        )
    return parent


def told(subtask: Any) -> dict[str, Any]:
    """What the parent's agent learns from the end of a subtask, a row of Activity."""
    return {
        "subtask": str(subtask.id),
        "subtask_name": subtask.name,
        "subtask_outcome": subtask.status,
        "subtask_output_ref": str(subtask.output_ref) if subtask.output_ref else None,
        "subtask_error": getattr(subtask, "error", None),
    }
