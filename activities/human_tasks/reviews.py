"""Reviews that an agent asks for in the middle of its work: it is put aside, and wakes with what the person said.

Approved, sent back, withdrawn or expired: each wakes it, once.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings

from activities import activity_tree, suspension
from activities.decision_rules import GENERAL_ROLE
from activities.exceptions import NotFound, QuotaExceeded, TransitionRefused
from activities.models import Activity
from activities.run_tokens import RunToken
from activities.states import BANDS, LinkKind, Status, WakeReason
from activities.submission import child_of, submit

TOOL = "request_human_review"


def request(
    run: RunToken, *, question: str, content: str | None = None, human_role: str | None = None
) -> UUID:
    """Put the activity of a live run aside until a person has answered; the review's id. Raises `RunSuperseded`, `QuotaExceeded`."""
    activity = suspension.live(run)
    _refuse_too_many(activity)
    moved = suspension.suspend(run, "await_review", tool=TOOL, detail={"question": question})
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
    asked: Activity | None = rows.filter(pk=activity_id).first()
    if asked is None:
        raise NotFound("activity", activity_id)
    if asked.link_kind == LinkKind.REVIEW:
        return asked.pk
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
            asked.status,
            f"Activity {activity_id} is {asked.status}; no review was asked for.",
        )
    return newest


def reason_of(item: Any) -> WakeReason:
    """How the end of a review or an approval wakes: only a yes is one."""
    return WakeReason.REVIEW_APPROVED if item.status == Status.APPROVED else WakeReason.REVIEW_FEEDBACK


def told(item: Any, **more: Any) -> dict[str, Any]:
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
