"""Approvals as people see them: the question, who must answer by when, what was said so far, and what hangs on it. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from activities.decision_rules import DecisionRules
from activities.models import Activity, Approval, ApprovalLink, Vote
from activities.states import Status

PENDING, APPROVED, REJECTED, WITHDRAWN = "pending", "approved", "rejected", "withdrawn"

#: What an approval's own activity is called, as a state of the approval.
STATUSES: Mapping[str, tuple[Status, ...]] = {
    PENDING: (Status.CREATED, Status.IN_PROGRESS),
    APPROVED: (Status.APPROVED,),
    REJECTED: (Status.REJECTED,),
    WITHDRAWN: (Status.CANCELLED,),
}
_NAMES = {status.value: name for name, statuses in STATUSES.items() for status in statuses}


@dataclass(frozen=True, slots=True)
class Linked:
    """An activity that the approval is about. `state` is waiting, woken or skipped, and `reason` says why it was skipped."""

    activity: UUID
    name: str
    status: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Question:
    """An approval with all that belongs to it."""

    approval: Approval
    item: Activity
    rules: DecisionRules
    links: Sequence[Linked]
    votes: Sequence[Vote]

    @property
    def status(self) -> str:
        return _NAMES[self.item.status]

    @property
    def version(self) -> int:
        """Raised by whatever happens to the question, votes included."""
        return int(self.item.version) + len(self.votes)


def questions(tenant_id: UUID, approvals: Sequence[Approval]) -> list[Question]:
    """The approvals in their order, in three statements whatever their number. In the caller's `tenant_scope`."""
    ids = [approval.pk for approval in approvals]
    items = Activity.objects.for_tenant(tenant_id).in_bulk(ids)
    links, votes = _links(tenant_id, ids), _votes(tenant_id, ids)
    return [
        Question(
            approval,
            items[approval.pk],
            DecisionRules.read(items[approval.pk].decision_rules),
            links[approval.pk],
            votes[approval.pk],
        )
        for approval in approvals
    ]


def _links(tenant_id: UUID, ids: Sequence[UUID]) -> Mapping[UUID, list[Linked]]:
    rows = ApprovalLink.objects.for_tenant(tenant_id).filter(approval_id__in=ids).order_by("activity_id")
    found: dict[UUID, list[Linked]] = defaultdict(list)
    named = ("approval_id", "activity_id", "activity__name", "activity__status", "state", "reason")
    for approval_id, *linked in rows.values_list(*named):
        found[approval_id].append(Linked(*linked))
    return found


def _votes(tenant_id: UUID, ids: Sequence[UUID]) -> Mapping[UUID, list[Any]]:
    found: dict[UUID, list[Any]] = defaultdict(list)
    for vote in Vote.objects.for_tenant(tenant_id).filter(activity_id__in=ids).order_by("at", "pk"):
        found[vote.activity_id].append(vote)
    return found
