"""An agent puts its work aside until a blocker is resolved, a review is answered or a subtask has ended.

The run ends without an output, and the activity waits, holding no slot. However the other work ends, it wakes once, with the outcome.

From that moment the run is over. What its agent still says about it changes nothing, except that it may name its session and its usage.
When a worker still waits for the agent's answer, its slot is given back with that answer, so the activity cannot start a second
time while its first call is still going.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import activity_tree, budgets, relay, transitions
from activities.activity_tree import Origin
from activities.admission import Exchange
from activities.admission.exchange import Release
from activities.decision_rules import GENERAL_ROLE
from activities.exceptions import (
    AlreadyDecided,
    NotFound,
    QuotaExceeded,
    RunSuperseded,
    ToolRefused,
    TransitionRefused,
)
from activities.models import Activity, ActivityEvent, ActivityRun
from activities.run_tokens import RunToken
from activities.signals import planned_roles_asked
from activities.states import BANDS, RUNNING, LinkKind, Status, WakeReason
from activities.submission import ASKED_BY, child_of, submit
from tenants import channels
from tenants.context import tenant_scope


def live(run: RunToken, *, with_parent: bool = False) -> Activity:
    """The activity, locked, if `run` is its live run; with `with_parent` also anyone who its end may wake. Raises `RunSuperseded`."""
    if with_parent:
        activity = activity_tree.lock_with_parent(run.tenant_id, run.activity_id)
    else:
        activity = activity_tree.lock(run.tenant_id, [run.activity_id]).get(run.activity_id)
    if activity is None or activity.fence != run.fence or activity.status not in RUNNING:
        raise RunSuperseded(run.run_id)
    return activity


def suspend(
    run: RunToken, verb: str, *, tool: str, detail: Mapping[str, Any] | None = None, **changes: Any
) -> transitions.Moved:
    """Move the activity of a live run, which is locked, by `verb` and end the run. Raises `RunSuperseded`, `TransitionRefused`.

    The attempt has come to a good end, so the run that goes on with the work has all attempts again.
    """
    moved = transitions.apply(
        run.activity_id,
        verb,
        actor=f"run:{run.run_id}",
        run_id=run.run_id,
        detail=detail,
        attempts=0,
        error=None,
        **changes,
    )
    ended = transitions.suspend(run, tool=tool)
    if ended is None:
        raise RunSuperseded(run.run_id)
    if ended.accepted_at is not None:
        relay.after_commit(Exchange(releases=[Release(run.activity_id, ended.grant)]))
    budgets.settle_ended_run(run, ended)
    return moved


# Blockers: an agent cannot go on until a person removes an obstacle outside, such as an expired authorisation.
#
# The obstacle becomes an activity of a person, the resolution. However that ends, the blocked activity wakes with the outcome, once.

#: A blocker of this type also marks the channel that it names as expired.
CHANNEL_EXPIRED = "channel_auth_expired"
DEFAULT_RESOLVER = "operator"
LONGEST_ROLE = 63  # characters
BLOCKER_TOOL = "report_blocker"


def report_blocker(run: RunToken, *, blocker_type: str, message: str, channel_id: UUID | None = None) -> UUID:
    """Put the activity of a live run aside until somebody resolves the blocker; the resolution's id.

    Raises `RunSuperseded`. In the caller's `tenant_scope`, which has made sure that the channel is the tenant's.
    """
    live(run)
    moved = suspend(
        run, "block", tool=BLOCKER_TOOL, detail={"type": blocker_type, "message": message},
        blocker_type=blocker_type, blocker_message=message, blocked_at=transitions.NOW,
    )  # fmt: skip
    if blocker_type == CHANNEL_EXPIRED and channel_id is not None:
        channels.expire(run.tenant_id, channel_id, seen_at=_read_start_of(run))
    resolution = child_of(
        moved,
        LinkKind.RESOLUTION,
        name=message.splitlines()[0][:200],
        description=message,
        human_role=_resolver_of(moved),
        priority=min(moved.priority, BANDS["gated"]),
        metadata={
            "blocker_type": blocker_type,
            "blocked_activity_id": str(moved.id),
            "channel_id": str(channel_id) if channel_id else None,
        },
    )
    return submit([resolution], actor=f"run:{run.run_id}")[0].id


def _read_start_of(run: RunToken) -> datetime:
    """What the agent knows about a channel is at least as old; somebody may have mended it since."""
    started: datetime = ActivityRun.objects.for_tenant(run.tenant_id).get(pk=run.run_id).started_at
    return started


def _resolver_of(blocked: Any) -> str:
    """Who is asked to remove the obstacle: whom the activity names for that, else operators."""
    named = (blocked.metadata or {}).get("resolver_role")
    return named if isinstance(named, str) and 0 < len(named) <= LONGEST_ROLE else DEFAULT_RESOLVER


def resolve_blocker(tenant_id: UUID, activity_id: UUID, *, actor: str, note: str) -> Activity:
    """A person has removed the blocker; `activity_id` is the resolution's or the blocked activity's.

    Raises `AlreadyDecided` naming who resolved it, `TransitionRefused` when nothing is blocked, `NotFound`.
    """
    with tenant_scope(tenant_id):
        resolution = _resolution_of(tenant_id, activity_id)
        activity_tree.lock(
            tenant_id, (resolution.pk, activity_tree.origin_of(tenant_id, resolution).parent_id)
        )
        try:
            transitions.apply(
                resolution.pk, "finish", actor=actor, detail={"note": note},
                decided_by=actor, decided_at=transitions.NOW, reviewer_notes=note,
            )  # fmt: skip
        except TransitionRefused as refusal:
            raise who_was_first(tenant_id, refusal, "resolved") from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _resolution_of(tenant_id: UUID, activity_id: UUID) -> Activity:
    rows = Activity.objects.for_tenant(tenant_id)
    activity: Activity | None = rows.filter(pk=activity_id).first()
    if activity is None:
        raise NotFound("activity", activity_id)
    if activity_tree.origin_of(tenant_id, activity).kind == LinkKind.RESOLUTION:
        return activity_tree.newest_of_line(tenant_id, activity)
    resolutions = rows.filter(parent_id=activity_id, link_kind=LinkKind.RESOLUTION)
    newest: Activity | None = resolutions.order_by("-created_at").first()
    if newest is None:
        raise TransitionRefused(
            activity_id,
            "resolve",
            activity.status,
            f"Activity {activity_id} is {activity.status}; nothing blocks it.",
        )
    return activity_tree.newest_of_line(tenant_id, newest)


def who_was_first(tenant_id: UUID, refusal: TransitionRefused, did: str) -> TransitionRefused:
    """What to tell somebody who answers what has been answered, or what nobody needs an answer to any more."""
    now = Activity.objects.for_tenant(tenant_id).get(pk=refusal.activity_id)
    if now.status == Status.DONE and now.decided_by and now.decided_at:
        text = f"{now.decided_by} {did} this at {now.decided_at:%Y-%m-%dT%H:%M:%SZ}."
        return AlreadyDecided(refusal.activity_id, refusal.verb, now.status, text)
    return TransitionRefused(refusal.activity_id, refusal.verb, now.status, obsolete(now))


def obsolete(now: Activity) -> str:
    """Why nobody needs to answer this any more, and since whom and when."""
    because = f": {now.cancel_reason}" if now.cancel_reason else ""
    history = ActivityEvent.objects.for_tenant(now.tenant_id).filter(activity_id=now.pk, target=now.status)
    ended = history.order_by("-seq").first()
    by = f" ({ended.actor}, {ended.at:%Y-%m-%dT%H:%M:%SZ})" if ended else ""
    return f"Activity {now.pk} is {now.status}{because}{by}; it waits for no answer."


def outcome_of_blocker(resolution: Any) -> dict[str, Any]:
    """What the blocked agent learns from the end of a resolution, a row of Activity."""
    metadata = resolution.metadata or {}
    return {
        "blocker_type": metadata.get("blocker_type"),
        "blocker_message": resolution.description or resolution.name,
        "blocker_resolution": resolution.reviewer_notes or resolution.cancel_reason or "",
        "blocker_outcome": resolution.status,
        "resolved_by": resolution.decided_by,
    }


# Reviews that an agent asks for in the middle of its work: it is put aside, and wakes with what the person said.
#
# Approved, sent back, withdrawn or expired: each wakes it, once.

REVIEW_TOOL = "request_human_review"


def request_review(
    run: RunToken, *, question: str, content: str | None = None, human_role: str | None = None
) -> UUID:
    """Put the activity of a live run aside until a person has answered; the review's id. Raises `RunSuperseded`, `QuotaExceeded`."""
    activity = live(run)
    _refuse_too_many(activity)
    moved = suspend(run, "await_review", tool=REVIEW_TOOL, detail={"question": question})
    review = child_of(
        moved,
        LinkKind.REVIEW,
        name=f"Review: {activity.name}"[:200],
        description=question,
        human_role=human_role or GENERAL_ROLE,
        priority=min(activity.priority, BANDS["gated"]),
        input={"content": content, "data": None} if content is not None else None,
        metadata={"reviewed_activity_id": str(activity.pk)},
    )
    return submit([review], actor=f"run:{run.run_id}")[0].id


def _refuse_too_many(activity: Activity) -> None:
    most = settings.ORCHESTRATOR_OPEN_REVIEWS_PER_ACTIVITY
    if activity_tree.open_children(activity.tenant_id, activity.pk, [LinkKind.REVIEW]).count() >= most:
        raise QuotaExceeded("reviews", f"An activity may have {most} open reviews, not more.")


def open_review_of(tenant_id: UUID, activity_id: UUID) -> UUID:
    """The review that is meant by its own id, or by that of the activity whose agent asked for it.

    Raises `NotFound`, `TransitionRefused` when there is no review.
    """
    rows = Activity.objects.for_tenant(tenant_id)
    found: Activity | None = rows.filter(pk=activity_id).first()
    if found is None:
        raise NotFound("activity", activity_id)
    if found.link_kind == LinkKind.REVIEW:
        return found.pk
    newest: UUID | None = (
        rows.filter(parent_id=activity_id, link_kind=LinkKind.REVIEW)
        .order_by("-created_at")
        .values_list("pk", flat=True)
        .first()
    )
    if newest is None:
        raise TransitionRefused(
            activity_id,
            "review",
            found.status,
            f"Activity {activity_id} is {found.status}; no review was asked for.",
        )
    return newest


def reason_of(item: Any) -> WakeReason:
    """How the end of a review or an approval wakes: only a yes is one."""
    return WakeReason.REVIEW_APPROVED if item.status == Status.APPROVED else WakeReason.REVIEW_FEEDBACK


def outcome_of_review(item: Any, **more: Any) -> dict[str, Any]:
    """What an agent learns from the end of a review or an approval, a row of Activity."""
    withdrawn = item.status == Status.CANCELLED
    return {
        "review_approved": item.status == Status.APPROVED,
        "reviewer_feedback": (item.cancel_reason if withdrawn else item.reviewer_notes) or "",
        "outcome": "withdrawn" if withdrawn else "expired" if item.decided_by == EXPIRED else item.status,
        "question": item.description or None,
        "chosen_option": item.chosen_option,
        "reviewed_by": item.decided_by,
        **more,
    }


#: Who decided when nobody did in time.
EXPIRED = "deadline"


# Subtasks: an agent has a part of its work done by another agent or by a person.
#
# A blocking subtask puts its parent aside; however it ends, the parent wakes with the outcome. One that does not block only stores its
# result on itself. Quotas bound what a tree of subtasks can grow to, whatever its agents ask for.

SUBTASK_TOOL = "create_subtask"

#: In a list of `ORCHESTRATOR_HANDS_WORK_TO`: the roles of the same pipeline or deliverable. No role can have this name.
RELATED = "@related"


def create_subtask(
    run: RunToken, *, name: str, description: str, agent_role: str | None = None, human_role: str | None = None,
    params: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None, blocking: bool = True,
) -> UUID:  # fmt: skip
    """Create a subtask of the activity of a live run; its id. Raises `QuotaExceeded`, `RunSuperseded`, `ToolRefused`.

    `options` may have `model` and `max_turns`.
    In the caller's `tenant_scope`, which holds the lock of the root of the tree: two members of a tree count one after the other.
    """
    parent = live(run)
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
        suspend(run, "await_subtask", tool=SUBTASK_TOOL, detail={"subtask": str(submitted.id)})
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
    roles = _list_roles(asking)
    if agent_role in roles or "*" in roles or (RELATED in roles and _is_related(asking, agent_role)):
        return
    raise ToolRefused(
        f"{asking.agent_role} may not hand work to {agent_role}. Do it yourself, or ask a person."
    )


def _list_roles(asking: Activity) -> Sequence[str]:
    """The roles to which operators let this role hand work: as set for its tenant, else for all tenants; by its name, else by "*"."""
    targets: Mapping[str, Sequence[str]] = settings.ORCHESTRATOR_HANDS_WORK_TO
    names = [str(asking.agent_role), "*"]
    if any("/" in key for key in targets):
        names = [*(f"{asking.tenant.slug}/{name}" for name in names), *names]
    return next((targets[name] for name in names if name in targets), ("*",))


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


def outcome_of_subtask(ended: Any, origin: Origin) -> dict[str, Any]:
    """What the parent's agent is told about the end of a subtask, or of the revision or successor that took its place: a row of Activity.

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
