"""Counterparts: the open activity that a waiting one waits for. A gate, a resolution, a review, an approval or a subtask, or what has taken
the place of one of these.

An activity waits for one thing at a time, and it is always the newest of its kind: to ask for something is to put the work aside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from activities import families
from activities.families import Origin
from activities.models import Activity, ApprovalLink
from activities.models.decision import LinkState
from activities.states import LinkKind, Status

#: Which kind of child ends which status. A review's place may be taken by an approval that the activity is linked to.
ENDED_BY: dict[str, LinkKind] = {
    Status.AWAITING_APPROVAL: LinkKind.GATE,
    Status.AWAITING_REVIEW: LinkKind.REVIEW,
    Status.BLOCKED: LinkKind.RESOLUTION,
    Status.AWAITING_SUBTASK: LinkKind.SUBTASK,
}


def holds_up(tenant_id: UUID, origin: Origin) -> bool:
    """Whether the line that began so is what its parent waits for.

    A parent that is woken may ask again. What it had asked for before, such as a subtask that failed and was tried again by an operator,
    may then end while the parent waits for something else.
    """
    asked = Activity.objects.for_tenant(tenant_id).filter(parent_id=origin.parent_id, link_kind=origin.kind)
    newest = _without_idle(asked).order_by("-created_at", "-pk").values_list("pk", flat=True).first()
    return newest == origin.first_id


def counterparts_of(tenant_id: UUID, activities: Iterable[Activity]) -> dict[UUID, Activity]:
    """What each waiting one of these waits for, by the id of the one that waits."""
    waiting = {activity.pk: activity.status for activity in activities if activity.status in ENDED_BY}
    if not waiting:
        return {}
    asked = Activity.objects.for_tenant(tenant_id).filter(
        parent_id__in=waiting, link_kind__in=families.COUNTERPARTS
    )
    newest = {
        (child.parent_id, child.link_kind): child
        for child in _without_idle(asked).order_by("created_at", "pk")
    }
    found = {
        activity_id: families.newest_of_line(tenant_id, newest[activity_id, ENDED_BY[status]])
        for activity_id, status in waiting.items()
        if (activity_id, ENDED_BY[status]) in newest
    }
    # A review that has been answered is not what is waited for now.
    answered = [
        activity_id
        for activity_id, status in waiting.items()
        if status == Status.AWAITING_REVIEW
        and (activity_id not in found or found[activity_id].status in families.ENDED)
    ]
    return found | _approvals_of(tenant_id, answered)


def _without_idle(asked: QuerySet[Any]) -> QuerySet[Any]:
    """Nobody waits for a subtask that does not block."""
    return asked.exclude(metadata__contains={"blocking": False})


def _approvals_of(tenant_id: UUID, waiting: Collection[UUID]) -> dict[UUID, Activity]:
    """The open approval whose decision each of these waits for: rather one that its own agent asked for, else the oldest."""
    if not waiting:
        return {}
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id__in=waiting, state=LinkState.WAITING
    )
    linked = list(links.values_list("activity_id", "approval_id"))
    items = Activity.objects.for_tenant(tenant_id).in_bulk({approval_id for _, approval_id in linked})
    # The first choice comes last, and so stays.
    linked.sort(
        key=lambda link: (items[link[1]].parent_id == link[0], -items[link[1]].created_at.timestamp())
    )
    return {activity_id: items[approval_id] for activity_id, approval_id in linked}
