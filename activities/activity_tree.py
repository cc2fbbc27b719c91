"""Relations between activities: `parent_id` names the parent of a subtask, gate, review or successor, and `link_kind` the kind of link.

A *line* is an activity with all successors and revisions that took its place. Everybody locks activities in the order of their ids.
Parents are older than their children, so they are locked first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet

from activities.exceptions import RunSuperseded
from activities.models import Activity, ApprovalLink
from activities.models.decision import LinkState
from activities.run_tokens import RunToken
from activities.states import RUNNING, STATUSES, WAITING, LinkKind, Status
from tenants.context import APP
from tenants.sql import Statement

_TREE, _DEPENDENTS, _OWN_WORK = (
    Statement.load(Path(__file__).parent / "sql", name) for name in ("tree", "dependents", "own_work")
)

#: These take the place of their parent, and inherit what is expected of it.
SUCCESSORS = (LinkKind.REVISION_OF, LinkKind.REASSIGNED_FROM)
#: A parent in one of the waiting statuses waits for one of these.
COUNTERPARTS = (LinkKind.GATE, LinkKind.RESOLUTION, LinkKind.REVIEW, LinkKind.SUBTASK)
#: Requested for the sake of an activity, and useless without it.
DEPENDENTS = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.RESOLUTION, LinkKind.ESCALATION, LinkKind.SUBTASK)
#: Final statuses. `failed` is not one of them, because a failed activity can be retried.
ENDED = (Status.DONE, Status.APPROVED, Status.REJECTED, Status.REASSIGNED, Status.CANCELLED)

#: Key in the metadata of a successor: the agent role that had the work first, null if a person had it from the beginning.
TAKEN_OVER = "taken_over_from"

MOST_MEMBERS = 10_000  # of a tree are counted; far above any quota


class Origin(NamedTuple):
    """The first activity of a line, with its parent and its kind of link."""

    parent_id: UUID | None
    kind: str | None
    first_id: UUID


def lock(tenant_id: UUID, ids: Iterable[UUID | None]) -> dict[UUID, Activity]:
    """Lock activities in the order of their ids and return the locked rows. Call it before the transaction writes anything."""
    pks = {activity_id for activity_id in ids if activity_id is not None}
    rows = Activity.objects.for_tenant(tenant_id).filter(pk__in=pks).order_by("pk").select_for_update()
    return {row.pk: row for row in rows}


def lock_live(run: RunToken, *, with_parent: bool = False) -> Activity:
    """Lock and return the activity of a live run; `with_parent` also locks the parent that its end may wake. Raises `RunSuperseded`."""
    if with_parent:
        activity = lock_with_parent(run.tenant_id, run.activity_id)
    else:
        activity = lock(run.tenant_id, [run.activity_id]).get(run.activity_id)
    if activity is None or activity.fence != run.fence or activity.status not in RUNNING:
        raise RunSuperseded(run.run_id)
    return activity


def lock_with_parent(tenant_id: UUID, activity_id: UUID, and_also: Collection[UUID] = ()) -> Activity | None:
    """Lock an activity and the parent that its end may wake. Return None if the activity does not exist."""
    rows = Activity.objects.for_tenant(tenant_id).only("id", "parent_id", "link_kind").filter(pk=activity_id)
    activity = rows.first()
    if activity is None:
        return None
    parent = waiting_parent_of(tenant_id, activity)
    return lock(tenant_id, (activity_id, parent, *and_also)).get(activity_id)


def lock_with_dependents(tenant_id: UUID, activity_id: UUID) -> Activity | None:
    """Lock as `lock_with_parent` does, and also everything that ends with the activity. For moves that end it before its work is done."""
    return lock_with_parent(tenant_id, activity_id, ids_that_end_with(tenant_id, activity_id))


def ids_that_end_with(tenant_id: UUID, activity_id: UUID) -> set[UUID]:
    """Return the ids of everything that the end of an activity may end: its dependents and the approvals that they wait for."""
    return {row.id for row in _dependents_of(tenant_id, activity_id)}


def open_dependents(tenant_id: UUID, activity_id: UUID) -> list[UUID]:
    """Return the dependents of an activity, at any depth, that have not ended; oldest first."""
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
    """Return the activity that is woken when this one ends: the parent of its line's first activity."""
    origin = origin_of(tenant_id, activity)
    return origin.parent_id if origin.kind in COUNTERPARTS else None


def origin_of(tenant_id: UUID, activity: Any) -> Origin:
    """Return the first activity of the line that an activity belongs to. `activity` is a row of Activity."""
    origin = Origin(activity.parent_id, activity.link_kind, activity.id)
    while origin.kind in SUCCESSORS and origin.parent_id is not None:
        predecessor = Activity.objects.for_tenant(tenant_id).filter(pk=origin.parent_id)
        origin = Origin._make(predecessor.values_list("parent_id", "link_kind", "pk").get())
    return origin


def kinds_of_origins(tenant_id: UUID, activities: Iterable[Activity]) -> dict[UUID, str | None]:
    """Return the kind of link of the first activity of each line, by activity id, with one query for each generation."""
    origins = {activity.pk: activity for activity in activities}
    while later := {
        activity_id: origin.parent_id
        for activity_id, origin in origins.items()
        if origin.link_kind in SUCCESSORS and origin.parent_id is not None
    }:
        rows = (
            Activity.objects.for_tenant(tenant_id).only("parent_id", "link_kind").in_bulk(set(later.values()))
        )
        origins |= {activity_id: rows[parent_id] for activity_id, parent_id in later.items()}
    return {activity_id: origin.link_kind for activity_id, origin in origins.items()}


def resolves_blocker(activity: Any) -> bool:
    """Whether the end of an activity, a row of Activity, tells a blocked agent that its blocker is gone."""
    return origin_of(activity.tenant_id, activity).kind == LinkKind.RESOLUTION


def has_successor(tenant_id: UUID, activity_id: UUID) -> bool:
    """Whether another activity has taken the place of this one, so that the work continues after its end."""
    return successors_of(tenant_id, activity_id).exists()


def successors_of(tenant_id: UUID, activity_id: UUID) -> QuerySet[Any]:
    """Return the activities that have taken the place of this one, newest first."""
    rows: QuerySet[Any] = Activity.objects.for_tenant(tenant_id)
    return rows.filter(parent_id=activity_id, link_kind__in=SUCCESSORS).order_by("-created_at", "-pk")


def line_from(tenant_id: UUID, activity: Activity) -> list[Activity]:
    """Return the activity and all that took its place one after the other. The last one does the work now."""
    line = [activity]
    while line[-1].status in (Status.REASSIGNED, Status.REJECTED):
        successor = successors_of(tenant_id, line[-1].pk).first()
        if successor is None:
            break
        line.append(successor)
    return line


def was_taken_over(activity: Activity) -> bool:
    """Whether a person took the work over from an agent. A person may then do or approve it, or reassign it to an agent."""
    return activity.link_kind == LinkKind.REASSIGNED_FROM and bool(activity.metadata.get(TAKEN_OVER))


def is_decision(activity: Activity) -> bool:
    """Whether people can only approve or reject it."""
    kinds = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
    return activity.link_kind in kinds or (activity.is_approval_gate and not was_taken_over(activity))


def open_children(tenant_id: UUID, activity_id: UUID, kinds: Iterable[str]) -> QuerySet[Any]:
    """Return the children of these kinds that have not ended, oldest first."""
    rows: QuerySet[Any] = Activity.objects.for_tenant(tenant_id)
    return (
        rows.filter(parent_id=activity_id, link_kind__in=list(kinds)).exclude(status__in=ENDED).order_by("pk")
    )


def line_of(tenant_id: UUID, activity: Any) -> list[Activity]:
    """Return the activity and all whose place it has taken, newest first."""
    line = [activity]
    while line[-1].link_kind in SUCCESSORS and line[-1].parent_id is not None:
        line.append(Activity.objects.for_tenant(tenant_id).get(pk=line[-1].parent_id))
    return line


def own_work(tenant_id: UUID, activity: Any, activity_ids: Iterable[UUID]) -> dict[UUID, bool]:
    """Return those of `activity_ids` that belong to the same work as an activity, which is a row of Activity.

    The value is True for the activity itself and its subtasks at any depth, and False for others of the same pipeline run or deliverable.
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
    """Return root, depth, number of members and number of own subtasks, for the tree that the activity belongs to."""
    parameters = {"tenant": tenant_id, "activity": activity_id, "most": MOST_MEMBERS}
    return _TREE.run(parameters, using=APP)[0]


# Counterparts: the open activities that a waiting activity waits for. They are its gate, resolution, review or subtask, or a successor of
# that, and every approval about it.
#
# An agent that requests one of them suspends its activity, so only the newest request of the agent itself counts. Approvals that others
# request come on top: the activity continues when all of them are answered.

OPEN = (Status.CREATED, Status.IN_PROGRESS)


def holds_up(tenant_id: UUID, origin: Origin) -> bool:
    """Whether the parent waits for the line with this origin.

    A parent that was woken may request something else. An earlier request, such as a failed subtask that an operator retries, may then
    end while the parent waits for the newer one.
    """
    children = Activity.objects.for_tenant(tenant_id).filter(
        parent_id=origin.parent_id, link_kind=origin.kind
    )
    newest = children.order_by("-created_at", "-pk").values_list("pk", flat=True).first()
    return newest == origin.first_id


def find_held(tenant_id: UUID, activity_ids: Sequence[UUID]) -> set[UUID]:
    """Return the activities that an open question holds: a linked approval, or a review that its own agent requested."""
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id__in=activity_ids, state=LinkState.WAITING
    )
    reviews = Activity.objects.for_tenant(tenant_id).filter(
        parent_id__in=activity_ids, link_kind=LinkKind.REVIEW, status__in=OPEN
    )
    rows = links.order_by().values_list("activity_id").union(reviews.order_by().values_list("parent_id"))
    return {activity_id for (activity_id,) in rows}


def counterparts_of(tenant_id: UUID, activities: Iterable[Activity]) -> dict[UUID, list[Activity]]:
    """Return what each of these activities waits for, by activity id: first its agent's own request, then approvals, oldest first."""
    waiting = {activity.pk: activity.status for activity in activities if activity.status in WAITING}
    if not waiting:
        return {}
    children = Activity.objects.for_tenant(tenant_id).filter(
        parent_id__in=waiting, link_kind__in=COUNTERPARTS
    )
    newest = {(child.parent_id, child.link_kind): child for child in children.order_by("created_at", "pk")}
    counterparts: dict[UUID, list[Activity]] = defaultdict(list)
    for activity_id, status in waiting.items():
        child = newest.get((activity_id, STATUSES[status].ended_by))
        request = line_from(tenant_id, child)[-1] if child is not None else None
        # After its own review was answered, the activity may still be `awaiting_review` because of an approval.
        if request and not (status == Status.AWAITING_REVIEW and request.status in ENDED):
            counterparts[activity_id].append(request)
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id__in=waiting, state=LinkState.WAITING
    )
    linked = list(links.values_list("approval_id", "activity_id"))
    items = Activity.objects.for_tenant(tenant_id).in_bulk({approval_id for approval_id, _ in linked})
    for approval_id, activity_id in sorted(linked, key=lambda link: (items[link[0]].created_at, link)):
        counterparts[activity_id].append(items[approval_id])
    return counterparts
