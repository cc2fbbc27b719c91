"""Counterparts: the open activities that a waiting one waits for. A gate, a resolution, a review or a subtask, or what has taken the place
of one of these; and every approval about it.

To ask for something that holds it up is to put the work aside, so of what an agent has asked for itself the newest counts. What others ask
about its work comes on top: it goes on when all of them have their answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from uuid import UUID

from activities import families
from activities.families import Origin
from activities.models import Activity, ApprovalLink
from activities.models.decision import LinkState
from activities.states import LinkKind, Status

OPEN = (Status.CREATED, Status.IN_PROGRESS)

#: Which kind of child ends which status. Whatever is asked in approvals that it is linked to holds it as well.
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
    newest = asked.order_by("-created_at", "-pk").values_list("pk", flat=True).first()
    return newest == origin.first_id


def held(tenant_id: UUID, activity_ids: Sequence[UUID]) -> set[UUID]:
    """Which of these an open question holds: an approval that is linked to it, or a review that its own agent has asked for."""
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id__in=activity_ids, state=LinkState.WAITING
    )
    reviews = Activity.objects.for_tenant(tenant_id).filter(
        parent_id__in=activity_ids, link_kind=LinkKind.REVIEW, status__in=OPEN
    )
    found = links.order_by().values_list("activity_id").union(reviews.order_by().values_list("parent_id"))
    return {activity_id for (activity_id,) in found}


def counterparts_of(tenant_id: UUID, activities: Iterable[Activity]) -> dict[UUID, list[Activity]]:
    """What each waiting one of these waits for, by the id of the one that waits: what its agent asked for, then approvals, oldest first."""
    waiting = {activity.pk: activity.status for activity in activities if activity.status in ENDED_BY}
    if not waiting:
        return {}
    asked = Activity.objects.for_tenant(tenant_id).filter(
        parent_id__in=waiting, link_kind__in=families.COUNTERPARTS
    )
    newest = {(child.parent_id, child.link_kind): child for child in asked.order_by("created_at", "pk")}
    found: dict[UUID, list[Activity]] = defaultdict(list)
    for activity_id, status in waiting.items():
        child = newest.get((activity_id, ENDED_BY[status]))
        standing_in = families.newest_of_line(tenant_id, child) if child is not None else None
        # A review that has been answered is not what is waited for now.
        if standing_in and not (status == Status.AWAITING_REVIEW and standing_in.status in families.ENDED):
            found[activity_id].append(standing_in)
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id__in=waiting, state=LinkState.WAITING
    )
    linked = list(links.values_list("approval_id", "activity_id"))
    items = Activity.objects.for_tenant(tenant_id).in_bulk({approval_id for approval_id, _ in linked})
    for approval_id, activity_id in sorted(linked, key=lambda link: (items[link[0]].created_at, link)):
        found[activity_id].append(items[approval_id])
    return found
