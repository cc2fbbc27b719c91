"""Who belongs to whom: subtasks, gates, reviews and heirs point to their parent by `parent_id`, and `link_kind` says what they are to it.

Parents are older than their children, so that locking both in the order of their ids is the order in which everybody locks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from activities.models import Activity
from activities.states import LinkKind, Status
from tenants.context import APP
from tenants.sql import Statement

_TREE = Statement.load(Path(__file__).parent / "sql", "tree")

#: These take the place of their parent: what is asked of it is asked of them.
SUCCESSORS = (LinkKind.REVISION_OF, LinkKind.REASSIGNED_FROM)
#: A parent in one of the waiting statuses waits for one of these.
COUNTERPARTS = (LinkKind.GATE, LinkKind.RESOLUTION, LinkKind.REVIEW, LinkKind.SUBTASK)

MOST_MEMBERS = 10_000  # of a tree that are counted: far above any quota


def lock(tenant_id: UUID, ids: Iterable[UUID | None]) -> dict[UUID, Activity]:
    """Lock activities in the order of their ids, before anything is written; the rows as they are then."""
    wanted = {activity_id for activity_id in ids if activity_id is not None}
    rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=wanted).order_by("pk").select_for_update()
    return {row.pk: row for row in rows}


def lock_with_parent(tenant_id: UUID, activity_id: UUID) -> Activity | None:
    """Lock an activity and whoever may be woken by its end; None when there is no such activity."""
    known = (
        Activity.objects.for_tenant(tenant_id)
        .filter(pk=activity_id)
        .values_list("parent_id", "link_kind")
        .first()
    )
    if known is None:
        return None
    above = waiting_parent_of(tenant_id, *known) if known[0] is not None else None
    return lock(tenant_id, (activity_id, above)).get(activity_id)


def waiting_parent_of(tenant_id: UUID, parent_id: UUID | None, link_kind: str | None) -> UUID | None:
    """Who is told when an activity with this parent ends: the parent of the first of the line that it succeeds."""
    kind, above = link_kind, parent_id
    while kind in SUCCESSORS and above is not None:
        above, kind = _link_of(tenant_id, above)
    return above if kind in COUNTERPARTS else None


def origin_of(tenant_id: UUID, activity: Any) -> tuple[UUID | None, str | None]:
    """The waiting parent of an activity or of what it succeeds, and what it is to it."""
    above, kind = activity.parent_id, activity.link_kind
    while kind in SUCCESSORS and above is not None:
        above, kind = _link_of(tenant_id, above)
    return above, kind


def _link_of(tenant_id: UUID, activity_id: UUID) -> tuple[UUID | None, str | None]:
    row = (
        Activity.objects.for_tenant(tenant_id)
        .filter(pk=activity_id)
        .values_list("parent_id", "link_kind")
        .first()
    )
    return row or (None, None)


def has_successor(tenant_id: UUID, activity_id: UUID) -> bool:
    """Whether something has taken the place of this activity, so that its end is not the end of the matter."""
    return (
        Activity.objects.for_tenant(tenant_id)
        .filter(parent_id=activity_id, link_kind__in=SUCCESSORS)
        .exists()
    )


def open_children(tenant_id: UUID, activity_id: UUID, kinds: Iterable[str]) -> QuerySet[Any]:
    """Children of these kinds that have not ended, oldest first."""
    rows: QuerySet[Any] = Activity.objects.for_tenant(tenant_id)
    ended = (Status.DONE, Status.APPROVED, Status.REJECTED, Status.REASSIGNED, Status.CANCELLED)
    return (
        rows.filter(parent_id=activity_id, link_kind__in=list(kinds)).exclude(status__in=ended).order_by("pk")
    )


def line_of(tenant_id: UUID, activity: Any) -> list[Activity]:
    """The activity and everything that it was reassigned from, newest first."""
    line = [activity]
    while line[-1].link_kind == LinkKind.REASSIGNED_FROM and line[-1].parent_id is not None:
        line.append(Activity.objects.for_tenant(tenant_id).get(pk=line[-1].parent_id))
    return line


def tree_of(tenant_id: UUID, activity_id: UUID) -> Any:
    """Root, depth, members and own subtasks of the tree that the activity stands in."""
    parameters = {"tenant": tenant_id, "activity": activity_id, "most": MOST_MEMBERS}
    return _TREE.run(parameters, using=APP)[0]
