"""Blockers: an agent cannot go on until a person removes an obstacle outside, such as an expired authorisation.

The obstacle becomes an activity of a person, the resolution. However that ends, the blocked activity wakes with the outcome, once.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from activities import activity_tree, suspension, transitions
from activities.exceptions import AlreadyDecided, NotFound, TransitionRefused
from activities.models import Activity, ActivityRun
from activities.run_tokens import RunToken
from activities.states import BANDS, LinkKind, Status
from activities.submission import child_of, submit
from tenants import channels
from tenants.context import tenant_scope

#: A blocker of this type also marks the channel that it names as expired.
CHANNEL_EXPIRED = "channel_auth_expired"
DEFAULT_RESOLVER = "operator"
LONGEST_ROLE = 63  # characters
TOOL = "report_blocker"


def report(run: RunToken, *, blocker_type: str, message: str, channel_id: UUID | None = None) -> UUID:
    """Put the activity of a live run aside until somebody resolves the blocker; the resolution's id.

    Raises `RunSuperseded`. In the caller's `tenant_scope`, which has made sure that the channel is the tenant's.
    """
    suspension.live(run)
    moved = suspension.suspend(
        run, "block", tool=TOOL, detail={"type": blocker_type, "message": message},
        blocker_type=blocker_type, blocker_message=message, blocked_at=transitions.NOW,
    )  # fmt: skip
    if blocker_type == CHANNEL_EXPIRED and channel_id is not None:
        channels.expire(run.tenant_id, channel_id, seen_at=_started_at(run))
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


def _started_at(run: RunToken) -> datetime:
    """What the agent knows about a channel is at least as old; somebody may have mended it since."""
    started: datetime = ActivityRun.objects.for_tenant(run.tenant_id).get(pk=run.run_id).started_at
    return started


def _resolver_of(blocked: Any) -> str:
    """Who is asked to remove the obstacle: whom the activity names for that, else operators."""
    named = (blocked.metadata or {}).get("resolver_role")
    return named if isinstance(named, str) and 0 < len(named) <= LONGEST_ROLE else DEFAULT_RESOLVER


def resolve(tenant_id: UUID, activity_id: UUID, *, actor: str, note: str) -> Activity:
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
    asked: Activity | None = rows.filter(pk=activity_id).first()
    if asked is None:
        raise NotFound("activity", activity_id)
    if activity_tree.origin_of(tenant_id, asked).kind == LinkKind.RESOLUTION:
        return activity_tree.newest_of_line(tenant_id, asked)
    resolutions = rows.filter(parent_id=activity_id, link_kind=LinkKind.RESOLUTION)
    newest: Activity | None = resolutions.order_by("-created_at").first()
    if newest is None:
        raise TransitionRefused(
            activity_id,
            "resolve",
            asked.status,
            f"Activity {activity_id} is {asked.status}; nothing blocks it.",
        )
    return activity_tree.newest_of_line(tenant_id, newest)


def who_was_first(tenant_id: UUID, refusal: TransitionRefused, did: str) -> TransitionRefused:
    """What to tell somebody who answers what has been answered, or what nobody needs an answer to any more."""
    now = Activity.objects.for_tenant(tenant_id).get(pk=refusal.activity_id)
    if now.status == Status.DONE and now.decided_by and now.decided_at:
        said = f"{now.decided_by} {did} this at {now.decided_at:%Y-%m-%dT%H:%M:%SZ}."
        return AlreadyDecided(refusal.activity_id, refusal.verb, now.status, said)
    return TransitionRefused(refusal.activity_id, refusal.verb, now.status, obsolete(now))


def obsolete(now: Activity) -> str:
    """Why nobody needs to answer this any more."""
    because = f": {now.cancel_reason}" if now.cancel_reason else ""
    return f"Activity {now.pk} is {now.status}{because}; it waits for no answer."


def told(resolution: Any) -> dict[str, Any]:
    """What the blocked agent learns from the end of a resolution, a row of Activity."""
    metadata = resolution.metadata or {}
    return {
        "blocker_type": metadata.get("blocker_type"),
        "blocker_message": resolution.description or resolution.name,
        "blocker_resolution": resolution.reviewer_notes or resolution.cancel_reason or "",
        "blocker_outcome": resolution.status,
        "resolved_by": resolution.decided_by,
    }
