"""Suspends an agent's work until a blocker is resolved, a review is answered or a subtask has ended.

The run ends without an output, and the activity waits without a slot. It wakes once with the outcome, however the other work ends.

After that, reports of the run's agent change nothing, except for its session and its usage. If a worker still waits for the agent's answer,
it releases the slot with that answer, so the activity cannot start again during its first call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from activities.states import BANDS, LinkKind, Status, WakeReason
from activities.submission import ASKED_BY, child_of, submit
from tenants import channels
from tenants.context import tenant_scope


def suspend(
    run: RunToken, verb: str, *, tool: str, detail: Mapping[str, Any] | None = None, **changes: Any
) -> transitions.Moved:
    """Apply `verb` to the locked activity of a live run, and end the run. Raises `RunSuperseded`, `TransitionRefused`.

    The run counts as successful, so the work continues with all attempts again, and earlier stalls do not count any more.
    """
    moved = transitions.apply(
        run.activity_id,
        verb,
        actor=f"run:{run.run_id}",
        run_id=run.run_id,
        detail=detail,
        attempts=0,
        stalls=0,
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


# Blockers: an agent cannot continue until a person removes an external obstacle, such as an expired authorisation.
#
# The blocker creates an activity for a person, the resolution. However it ends, the blocked activity wakes once with the outcome.

#: A blocker of this type also marks its channel as expired.
CHANNEL_EXPIRED = "channel_auth_expired"
DEFAULT_RESOLVER = "operator"
LONGEST_ROLE = 63  # characters
BLOCKER_TOOL = "report_blocker"


def report_blocker(run: RunToken, *, blocker_type: str, message: str, channel_id: UUID | None = None) -> UUID:
    """Suspend the activity of a live run until a person resolves the blocker; returns the resolution's id.

    In the caller's `tenant_scope`; the caller has checked that the channel belongs to the tenant. Raises `RunSuperseded`.
    """
    activity_tree.lock_live(run)
    moved = suspend(
        run, "block", tool=BLOCKER_TOOL, detail={"type": blocker_type, "message": message},
        blocker_type=blocker_type, blocker_message=message, blocked_at=transitions.NOW,
    )  # fmt: skip
    if blocker_type == CHANNEL_EXPIRED and channel_id is not None:
        # Seen at the start of the run, because somebody may have renewed the channel since then.
        runs = ActivityRun.objects.for_tenant(run.tenant_id)
        channels.expire(run.tenant_id, channel_id, seen_at=runs.get(pk=run.run_id).started_at)
    # Whoever resolves the blocker: the `resolver_role` of the activity, or else operators.
    role = (moved.metadata or {}).get("resolver_role")
    resolution = child_of(
        moved,
        LinkKind.RESOLUTION,
        name=message.splitlines()[0][:200],
        description=message,
        human_role=role if isinstance(role, str) and 0 < len(role) <= LONGEST_ROLE else DEFAULT_RESOLVER,
        priority=min(moved.priority, BANDS["gated"]),
        metadata={
            "blocker_type": blocker_type,
            "blocked_activity_id": str(moved.id),
            "channel_id": str(channel_id) if channel_id else None,
        },
    )
    return submit([resolution], actor=f"run:{run.run_id}")[0].id


def resolve_blocker(tenant_id: UUID, activity_id: UUID, *, actor: str, note: str) -> Activity:
    """Record that a person has resolved the blocker. `activity_id` is that of the resolution or of the blocked activity.

    Raises `AlreadyDecided`, which names who resolved it, `TransitionRefused` if nothing is blocked, `NotFound`.
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
            raise explain_refusal(tenant_id, refusal, "resolved") from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _resolution_of(tenant_id: UUID, activity_id: UUID) -> Activity:
    activity: Activity = Activity.objects.for_tenant(tenant_id).get_or_raise(
        NotFound, "activity", activity_id
    )
    if not activity_tree.resolves_blocker(activity):
        activity = _newest_child(activity, LinkKind.RESOLUTION, "resolve", "nothing blocks it")
    return activity_tree.line_from(tenant_id, activity)[-1]


def _newest_child(activity: Activity, kind: LinkKind, verb: str, otherwise: str) -> Activity:
    """Return the newest child of this kind. Raises `TransitionRefused`, with `otherwise` as the reason, if there is none."""
    children = Activity.objects.for_tenant(activity.tenant_id).filter(parent_id=activity.pk, link_kind=kind)
    newest: Activity | None = children.order_by("-created_at").first()
    if newest is None:
        reason = f"Activity {activity.pk} is {activity.status}; {otherwise}."
        raise TransitionRefused(activity.pk, verb, activity.status, reason)
    return newest


def explain_refusal(tenant_id: UUID, refusal: TransitionRefused, did: str) -> TransitionRefused:
    """Return the error for a late answer: it names who answered first, or says that no answer is needed any more."""
    now = Activity.objects.for_tenant(tenant_id).get(pk=refusal.activity_id)
    if now.status == Status.DONE and now.decided_by and now.decided_at:
        text = f"{now.decided_by} {did} this at {now.decided_at:%Y-%m-%dT%H:%M:%SZ}."
        return AlreadyDecided(refusal.activity_id, refusal.verb, now.status, text)
    return TransitionRefused(refusal.activity_id, refusal.verb, now.status, obsolete(now))


def obsolete(now: Activity) -> str:
    """Say why an activity needs no answer any more, and who ended it when."""
    if now.cancel_reason == transitions.OBSOLETE:
        reason = f", because {transitions.why_obsolete(now)}"
    else:
        reason = f": {now.cancel_reason}" if now.cancel_reason else ""
    history = ActivityEvent.objects.for_tenant(now.tenant_id).filter(activity_id=now.pk, target=now.status)
    ended = history.order_by("-seq").first()
    by = f" ({ended.actor}, {ended.at:%Y-%m-%dT%H:%M:%SZ})" if ended else ""
    return f"Activity {now.pk} is {now.status}{reason}{by}; it waits for no answer."


def outcome_of_blocker(resolution: Any) -> dict[str, Any]:
    """Return what the blocked agent receives when a resolution, a row of Activity, has ended."""
    metadata = resolution.metadata or {}
    return {
        "blocker_type": metadata.get("blocker_type"),
        "blocker_message": resolution.description or resolution.name,
        "blocker_resolution": resolution.reviewer_notes or resolution.cancel_reason or "",
        "blocker_outcome": resolution.status,
        "resolved_by": resolution.decided_by,
    }


# Reviews: an agent requests an answer from a person during its work. The activity is suspended, and wakes once with the answer: approved,
# changes requested, withdrawn or expired.

REVIEW_TOOL = "request_human_review"


def request_review(
    run: RunToken, *, question: str, content: str | None = None, human_role: str | None = None
) -> UUID:
    """Suspend the activity of a live run until a person has answered; returns the review's id.

    Raises `RunSuperseded`, `QuotaExceeded`.
    """
    activity = activity_tree.lock_live(run)
    limit = settings.ORCHESTRATOR_OPEN_REVIEWS_PER_ACTIVITY
    if activity_tree.open_children(activity.tenant_id, activity.pk, [LinkKind.REVIEW]).count() >= limit:
        raise QuotaExceeded("reviews", f"An activity may have at most {limit} open reviews.")
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


def open_review_of(tenant_id: UUID, activity_id: UUID) -> UUID:
    """Return the id of a review, from its own id or that of the activity whose agent requested it.

    Raises `NotFound`, `TransitionRefused` if there is no review.
    """
    activity: Activity = Activity.objects.for_tenant(tenant_id).get_or_raise(
        NotFound, "activity", activity_id
    )
    if activity.link_kind != LinkKind.REVIEW:
        activity = _newest_child(activity, LinkKind.REVIEW, "review", "no review was requested")
    return activity.pk


def reason_of(item: Any) -> WakeReason:
    """Return the wake reason for the end of a review or an approval."""
    return WakeReason.REVIEW_APPROVED if item.status == Status.APPROVED else WakeReason.REVIEW_FEEDBACK


def outcome_of_review(item: Any, **more: Any) -> dict[str, Any]:
    """Return what an agent receives when a review or an approval, a row of Activity, has ended."""
    withdrawn = item.status == Status.CANCELLED
    return {
        "review_approved": item.status == Status.APPROVED,
        "reviewer_feedback": (item.cancel_reason if withdrawn else item.reviewer_notes) or "",
        "outcome": "withdrawn" if withdrawn else "expired" if item.decided_by == BY_DEADLINE else item.status,
        "question": item.description or None,
        "chosen_option": item.chosen_option,
        "reviewed_by": item.decided_by,
        **more,
    }


#: `decided_by` if nobody decided in time.
BY_DEADLINE = "deadline"


# Subtasks: an agent delegates a part of its work to another agent or to a person.
#
# A blocking subtask suspends its parent; however it ends, the parent wakes with the outcome. The result of a non-blocking one is only
# stored on the subtask. Quotas limit the size of a tree of subtasks.

SUBTASK_TOOL = "create_subtask"

#: In a list of `ORCHESTRATOR_HANDS_WORK_TO`: the roles of the same pipeline or deliverable. No role can have this name.
RELATED = "@related"


def create_subtask(
    run: RunToken, *, name: str, description: str, agent_role: str | None = None, human_role: str | None = None,
    params: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None, blocking: bool = True,
) -> UUID:  # fmt: skip
    """Create a subtask of the activity of a live run; returns its id. `options` may contain `model` and `max_turns`.

    In the caller's `tenant_scope`, which holds the lock of the root of the tree, so that concurrent calls count one after the other.
    Raises `QuotaExceeded`, `RunSuperseded`, `ToolRefused`.
    """
    parent = activity_tree.lock_live(run)
    refuse_unlisted(parent, agent_role)
    tree = activity_tree.tree_of(run.tenant_id, run.activity_id)
    depth, limit = settings.ORCHESTRATOR_SUBTASK_DEPTH, settings.ORCHESTRATOR_SUBTASKS_PER_ACTIVITY
    if tree.depth >= depth:
        raise QuotaExceeded("depth", f"Subtasks may be nested at most {depth} deep.")
    if tree.subtasks >= limit:
        raise QuotaExceeded("subtasks", f"An activity may create at most {limit} subtasks.")
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


def refuse_unlisted(activity: Activity, agent_role: str | None) -> None:
    """Raise `ToolRefused` unless the agent of the activity may give work to the role. It may always give work to people."""
    if agent_role is None:
        return
    # The setting of its tenant, or else that of all tenants; by its name, or else by "*".
    targets: Mapping[str, Sequence[str]] = settings.ORCHESTRATOR_HANDS_WORK_TO
    names = [str(activity.agent_role), "*"]
    if any("/" in key for key in targets):
        names = [*(f"{activity.tenant.slug}/{name}" for name in names), *names]
    roles = next((targets[name] for name in names if name in targets), ("*",))
    if agent_role in roles or "*" in roles or (RELATED in roles and _is_related(activity, agent_role)):
        return
    raise ToolRefused(
        f"{activity.agent_role} may not give work to {agent_role}. Do it yourself, or ask a person."
    )


def _is_related(activity: Activity, agent_role: str) -> bool:
    """Whether the pipeline or deliverable of the work contains the role. Work of neither is related to all roles."""
    if agent_role == activity.agent_role:
        return True
    answers = [
        roles for _, roles in planned_roles_asked.send(Activity, activity=activity) if roles is not None
    ]
    return not answers or any(agent_role in roles for roles in answers)


def refuse_full_tree(tree: Any) -> None:
    """Raise `QuotaExceeded` unless the tree, a row of `activity_tree.tree_of`, may have one more member. Its root must be locked."""
    limit = settings.ORCHESTRATOR_ACTIVITIES_PER_TREE
    if tree.members >= limit:
        raise QuotaExceeded("tree", f"A tree of subtasks may have at most {limit} activities.")


def outcome_of_subtask(ended: Any, origin: Origin) -> dict[str, Any]:
    """Return what the parent's agent receives when a subtask, or its successor, has ended. `ended` is a row of Activity.

    `subtask` and its name are those that the agent received when it created the subtask.
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
