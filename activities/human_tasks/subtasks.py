"""Subtasks: an agent has a part of its work done by another agent or by a person.

A blocking subtask puts its parent aside; however it ends, the parent wakes with the outcome. One that does not block only stores its
result on itself. Quotas bound what a tree of subtasks can grow to, whatever its agents ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import activity_tree, suspension
from activities.activity_tree import Origin
from activities.exceptions import QuotaExceeded, ToolRefused
from activities.models import Activity
from activities.run_tokens import RunToken
from activities.states import LinkKind
from activities.submission import ASKED_BY, child_of, submit

TOOL = "create_subtask"


def create(
    run: RunToken, *, name: str, description: str, agent_role: str | None = None, human_role: str | None = None,
    params: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None, blocking: bool = True,
) -> UUID:  # fmt: skip
    """Create a subtask of the activity of a live run; its id. Raises `QuotaExceeded`, `RunSuperseded`, `ToolRefused`.

    `options` may have `model` and `max_turns`.
    In the caller's `tenant_scope`, which holds the lock of the root of the tree: two members of a tree count one after the other.
    """
    parent = suspension.live(run)
    refuse_unlisted(parent, agent_role)
    tree = activity_tree.tree_of(run.tenant_id, run.activity_id)
    _refuse_too_much(tree)
    refuse_full_tree(tree)
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
        agent_options={**(options or {}), ASKED_BY: parent.agent_role},
    )
    (submitted,) = submit([subtask], actor=f"run:{run.run_id}")
    if blocking:
        suspension.suspend(run, "await_subtask", tool=TOOL, detail={"subtask": str(submitted.id)})
    return submitted.id


def _refuse_too_much(tree: Any) -> None:
    deepest, most = settings.ORCHESTRATOR_SUBTASK_DEPTH, settings.ORCHESTRATOR_SUBTASKS_PER_ACTIVITY
    if tree.depth >= deepest:
        raise QuotaExceeded("depth", f"Subtasks may be nested {deepest} deep, not deeper.")
    if tree.subtasks >= most:
        raise QuotaExceeded("subtasks", f"An activity may create {most} subtasks, not more.")


def refuse_unlisted(asking: Activity, agent_role: str | None) -> None:
    """Raise `ToolRefused` unless the agent at work on `asking` may hand work to the role. People may always be asked."""
    allowed: Mapping[str, Sequence[str]] = settings.ORCHESTRATOR_HANDS_WORK_TO
    roles = allowed.get(str(asking.agent_role), allowed.get("*"))
    if agent_role is None or roles is None or agent_role in roles or "*" in roles:
        return
    raise ToolRefused(
        f"{asking.agent_role} may not hand work to {agent_role}. Do it yourself, or ask a person."
    )


def refuse_full_tree(tree: Any) -> None:
    """Raise `QuotaExceeded` unless the tree, a row of `activity_tree.tree_of`, may have one more member. Its root must be locked."""
    most = settings.ORCHESTRATOR_ACTIVITIES_PER_TREE
    if tree.members >= most:
        raise QuotaExceeded("tree", f"A tree of subtasks may have {most} activities, not more.")


def told(ended: Any, origin: Origin) -> dict[str, Any]:
    """What the parent's agent learns from the end of a subtask, or of the revision or heir that took its place: a row of Activity.

    `subtask` and its name are those that the agent was told when it asked.
    """
    first = Activity.objects.for_tenant(ended.tenant_id).only("name").get(pk=origin.first_id)
    return {
        "subtask": str(origin.first_id),
        "subtask_name": first.name,
        "subtask_outcome": ended.status,
        "subtask_output_ref": str(ended.output_ref) if ended.output_ref else None,
        "subtask_error": getattr(ended, "error", None),
        "subtask_notes": getattr(ended, "reviewer_notes", None) or getattr(ended, "cancel_reason", None),
        "subtask_ended_by": str(ended.id),
    }
