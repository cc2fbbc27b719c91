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
from activities.signals import planned_roles_asked
from activities.states import LinkKind
from activities.submission import ASKED_BY, child_of, submit

TOOL = "create_subtask"

#: In a list of `ORCHESTRATOR_HANDS_WORK_TO`: the roles of the same pipeline or deliverable. No role can have this name.
RELATED = "@related"


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
    if agent_role is None:
        return
    roles = _listed(asking)
    if agent_role in roles or "*" in roles or (RELATED in roles and _is_related(asking, agent_role)):
        return
    raise ToolRefused(
        f"{asking.agent_role} may not hand work to {agent_role}. Do it yourself, or ask a person."
    )


def _listed(asking: Activity) -> Sequence[str]:
    """What the operators say about the role: for its tenant before for all of them, by its name before by "*"."""
    said: Mapping[str, Sequence[str]] = settings.ORCHESTRATOR_HANDS_WORK_TO
    names = [str(asking.agent_role), "*"]
    if any("/" in key for key in said):
        names = [*(f"{asking.tenant.slug}/{name}" for name in names), *names]
    return next((said[name] for name in names if name in said), ("*",))


def _is_related(asking: Activity, agent_role: str) -> bool:
    """Whether people have put the role into the pipeline or the deliverable of the work; work that is in neither is related to all."""
    if agent_role == asking.agent_role:
        return True
    answers = [roles for _, roles in planned_roles_asked.send(Activity, activity=asking) if roles is not None]
    return not answers or any(agent_role in roles for roles in answers)


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
