"""Who belongs to whom: subtasks, gates, reviews and successors point to their parent by `parent_id`; `link_kind` says what they are to it.

Parents are older than their children, so that locking both in the order of their ids is the order in which everybody locks them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet

from activities.models import Activity, ApprovalLink
from activities.models.decision import LinkState
from activities.states import STATUSES, WAITING, LinkKind, Status
from tenants.context import APP
from tenants.sql import Statement

_TREE, _DEPENDENTS, _OWN_WORK = (
    Statement.load(Path(__file__).parent / "sql", name) for name in ("tree", "dependents", "own_work")
)

#: These take the place of their parent: what is asked of it is asked of them.
SUCCESSORS = (LinkKind.REVISION_OF, LinkKind.REASSIGNED_FROM)
#: A parent in one of the waiting statuses waits for one of these.
COUNTERPARTS = (LinkKind.GATE, LinkKind.RESOLUTION, LinkKind.REVIEW, LinkKind.SUBTASK)
#: What was asked for the sake of an activity and is of no use without it.
DEPENDENTS = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.RESOLUTION, LinkKind.ESCALATION, LinkKind.SUBTASK)
#: Nothing more will come of an activity in one of these itself. One that has failed may be tried again.
ENDED = (Status.DONE, Status.APPROVED, Status.REJECTED, Status.REASSIGNED, Status.CANCELLED)

#: In the metadata of a successor: the agent's role whose work it is, null when it was a person's from the beginning.
TAKEN_OVER = "taken_over_from"

MOST_MEMBERS = 10_000  # of a tree that are counted: far above any quota


class Origin(NamedTuple):
    """The first of the line that an activity stands in: what it is (`kind`) to whom, and which one it is."""

    parent_id: UUID | None
    kind: str | None
    first_id: UUID


def lock(tenant_id: UUID, ids: Iterable[UUID | None]) -> dict[UUID, Activity]:
    """Lock activities in the order of their ids, before anything is written; the rows as they are then."""
    pks = {activity_id for activity_id in ids if activity_id is not None}
    rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=pks).order_by("pk").select_for_update()
    return {row.pk: row for row in rows}


def lock_with_parent(tenant_id: UUID, activity_id: UUID) -> Activity | None:
    """Lock an activity and every activity that its end may wake; None when there is no such activity."""
    known = Activity.objects.for_tenant(tenant_id).only("id", "parent_id", "link_kind").filter(pk=activity_id)
    activity = known.first()
    if activity is None:
        return None
    return lock(tenant_id, (activity_id, waiting_parent_of(tenant_id, activity))).get(activity_id)


def lock_with_dependents(tenant_id: UUID, activity_id: UUID) -> Activity | None:
    """As `lock_with_parent`, and everything that ends with the activity: for moves that end it while others wait for it."""
    known = Activity.objects.for_tenant(tenant_id).only("id", "parent_id", "link_kind").filter(pk=activity_id)
    activity = known.first()
    if activity is None:
        return None
    parent = waiting_parent_of(tenant_id, activity)
    concerned = {activity_id, parent, *ids_that_end_with(tenant_id, activity_id)}
    return lock(tenant_id, concerned).get(activity_id)


def ids_that_end_with(tenant_id: UUID, activity_id: UUID) -> set[UUID]:
    """Whatever the end of an activity may end or close: its dependents and the approvals that they wait for."""
    return {row.id for row in _dependents_of(tenant_id, activity_id)}


def open_dependents(tenant_id: UUID, activity_id: UUID) -> list[UUID]:
    """The descendants of an activity, at any depth, that have not ended; oldest first."""
    rows = _dependents_of(tenant_id, activity_id)
    return sorted(row.id for row in rows if not row.is_approval and row.status not in ENDED)


def _dependents_of(tenant_id: UUID, activity_id: UUID) -> list[Any]:
    parameters = {
        "tenant": tenant_id,
        "activity": activity_id,
        "kinds": [kind.value for kind in DEPENDENTS],
        "successors": [kind.value for kind in SUCCESSORS],
    }
    return _DEPENDENTS.run(parameters, using=APP)


def waiting_parent_of(tenant_id: UUID, activity: Any) -> UUID | None:
    """The activity that is woken when this one ends: the parent of the first of its line."""
    origin = origin_of(tenant_id, activity)
    return origin.parent_id if origin.kind in COUNTERPARTS else None


def origin_of(tenant_id: UUID, activity: Any) -> Origin:
    """Where the line of revisions and successors that an activity stands in began. `activity` is a row of Activity."""
    found = Origin(activity.parent_id, activity.link_kind, activity.id)
    while found.kind in SUCCESSORS and found.parent_id is not None:
        above = Activity.objects.for_tenant(tenant_id).filter(pk=found.parent_id)
        found = Origin._make(above.values_list("parent_id", "link_kind", "pk").get())
    return found


def has_successor(tenant_id: UUID, activity_id: UUID) -> bool:
    """Whether another activity has taken the place of this one, so that the work goes on after its end."""
    return (
        Activity.objects.for_tenant(tenant_id)
        .filter(parent_id=activity_id, link_kind__in=SUCCESSORS)
        .exists()
    )


def newest_of_line(tenant_id: UUID, activity: Activity) -> Activity:
    """The activity that does the work now: the last of the successors and revisions, or the activity itself."""
    while activity.status in (Status.REASSIGNED, Status.REJECTED):
        rows = Activity.objects.for_tenant(tenant_id).filter(parent_id=activity.pk, link_kind__in=SUCCESSORS)
        successor = rows.order_by("-created_at").first()
        if successor is None:
            break
        activity = successor
    return activity


def was_taken_over(activity: Activity) -> bool:
    """Whether an agent had the work before. Then a person may do it or approve it, and it may go back to an agent."""
    return activity.link_kind == LinkKind.REASSIGNED_FROM and bool(activity.metadata.get(TAKEN_OVER))


def is_decision(activity: Activity) -> bool:
    """Whether people answer it with a yes or a no, and with nothing else."""
    kinds = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
    return activity.link_kind in kinds or (activity.is_approval_gate and not was_taken_over(activity))


def open_children(tenant_id: UUID, activity_id: UUID, kinds: Iterable[str]) -> QuerySet[Any]:
    """Children of these kinds that have not ended, oldest first."""
    rows: QuerySet[Any] = Activity.objects.for_tenant(tenant_id)
    return (
        rows.filter(parent_id=activity_id, link_kind__in=list(kinds)).exclude(status__in=ENDED).order_by("pk")
    )


def line_of(tenant_id: UUID, activity: Any) -> list[Activity]:
    """The activity and everything whose place it has taken, newest first."""
    line = [activity]
    while line[-1].link_kind in SUCCESSORS and line[-1].parent_id is not None:
        line.append(Activity.objects.for_tenant(tenant_id).get(pk=line[-1].parent_id))
    return line


def own_work(tenant_id: UUID, activity: Any, activity_ids: Iterable[UUID]) -> dict[UUID, bool]:
    """Which of `activity_ids` are of the work that an activity, a row of Activity, belongs to; the others may exist or not.

    True: the activity itself, and its subtasks at any depth. False: what is of the same pipeline run or deliverable.
    """
    parameters = {
        "tenant": tenant_id,
        "activity": activity.id,
        "line": [member.id for member in line_of(tenant_id, activity)],
        "wanted": list(activity_ids),
        "most": MOST_MEMBERS,
    }
    return {row.id: row.is_part for row in _OWN_WORK.run(parameters, using=APP)}


def tree_of(tenant_id: UUID, activity_id: UUID) -> Any:
    """Root, depth, members and own subtasks of the tree that the activity stands in."""
    parameters = {"tenant": tenant_id, "activity": activity_id, "most": MOST_MEMBERS}
    return _TREE.run(parameters, using=APP)[0]


# Counterparts: the open activities that a waiting one waits for. A gate, a resolution, a review or a subtask, or what has taken the place
# of one of these; and every approval about it.
#
# To ask for something that holds it up is to put the work aside, so of what an agent has asked for itself the newest counts. What others
# ask about its work comes on top: it goes on when all of them have their answer.


OPEN = (Status.CREATED, Status.IN_PROGRESS)


def holds_up(tenant_id: UUID, origin: Origin) -> bool:
    """Whether the line that began so is what its parent waits for.

    A parent that is woken may ask again. What it had asked for before, such as a subtask that failed and was tried again by an operator,
    may then end while the parent waits for something else.
    """
    children = Activity.objects.for_tenant(tenant_id).filter(
        parent_id=origin.parent_id, link_kind=origin.kind
    )
    newest = children.order_by("-created_at", "-pk").values_list("pk", flat=True).first()
    return newest == origin.first_id


def find_held(tenant_id: UUID, activity_ids: Sequence[UUID]) -> set[UUID]:
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
    """What each of these activities waits for, by its id: first what its agent asked for, then approvals, oldest first."""
    waiting = {activity.pk: activity.status for activity in activities if activity.status in WAITING}
    if not waiting:
        return {}
    children = Activity.objects.for_tenant(tenant_id).filter(
        parent_id__in=waiting, link_kind__in=COUNTERPARTS
    )
    newest = {(child.parent_id, child.link_kind): child for child in children.order_by("created_at", "pk")}
    found: dict[UUID, list[Activity]] = defaultdict(list)
    for activity_id, status in waiting.items():
        child = newest.get((activity_id, STATUSES[status].ended_by))
        standing_in = newest_of_line(tenant_id, child) if child is not None else None
        # A review that has been answered is not what is waited for now.
        if standing_in and not (status == Status.AWAITING_REVIEW and standing_in.status in ENDED):
            found[activity_id].append(standing_in)
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id__in=waiting, state=LinkState.WAITING
    )
    linked = list(links.values_list("approval_id", "activity_id"))
    items = Activity.objects.for_tenant(tenant_id).in_bulk({approval_id for approval_id, _ in linked})
    for approval_id, activity_id in sorted(linked, key=lambda link: (items[link[0]].created_at, link)):
        found[activity_id].append(items[approval_id])
    return found
