"""How a subagent stands: read from its activity, or whatever has taken that one's place, and from the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Min, Sum

from activities import cancellation, families
from activities.exceptions import SubagentNotFound
from activities.models import Activity, ActivityRun, Subagent
from activities.states import Status
from tenants import clock
from tenants.models import UsageEntry

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = "pending", "running", "completed", "failed", "cancelled"
STATUSES = (PENDING, RUNNING, COMPLETED, FAILED, CANCELLED)
ENDED = (COMPLETED, FAILED, CANCELLED)

_STATUS_OF = {
    Status.CREATED: PENDING,
    Status.DONE: COMPLETED,
    Status.APPROVED: COMPLETED,
    Status.REJECTED: FAILED,
    Status.FAILED: FAILED,
    Status.NEEDS_REVIEW: FAILED,
    Status.CANCELLED: CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Standing:
    """`activity` is the one that counts by now. `ids` are all that had the work, the first one first. Times in seconds."""

    subagent: Subagent
    activity: Activity
    ids: Sequence[UUID]
    total_tokens: int
    duration_seconds: float | None

    @property
    def status(self) -> str:
        return status_of(self.activity.status)


def status_of(status: str) -> str:
    """A subagent's status for its activity's: whatever it waits for during its work, it is running."""
    return _STATUS_OF.get(Status(status), RUNNING)


def one(tenant_id: UUID, subagent_id: UUID) -> Standing:
    """Raises `SubagentNotFound`. In the caller's `tenant_scope`, as all of this module."""
    rows = Subagent.objects.for_tenant(tenant_id).select_related("activity", "conversation")
    found = rows.filter(pk=subagent_id).first()
    if found is None:
        raise SubagentNotFound(f"There is no subagent {subagent_id}.")
    return standing(tenant_id, [found])[0]


def standing(tenant_id: UUID, subagents: Sequence[Subagent]) -> list[Standing]:
    """Of each, in as many statements as for one, but for those whose work somebody else has taken over."""
    lines = [_line_of(tenant_id, subagent.activity) for subagent in subagents]
    ids = [activity.pk for line in lines for activity in line]
    tokens, begun = _tokens_by_activity(tenant_id, lines), _begun(tenant_id, ids)
    return [
        _standing_of(subagent, line, tokens, begun) for subagent, line in zip(subagents, lines, strict=True)
    ]


def cancel(tenant_id: UUID, subagent_id: UUID, *, actor: str, reason: str = "") -> Standing:
    """What waits never starts; an agent at work is told to stop. One that has ended stays as it is. Raises `SubagentNotFound`."""
    found = one(tenant_id, subagent_id)
    if found.status not in ENDED:
        cancellation.cancel(tenant_id, found.activity.pk, actor=actor, reason=reason)
    return one(tenant_id, subagent_id)


def _line_of(tenant_id: UUID, first: Activity) -> list[Activity]:
    """The activity and what has taken its place, one after the other."""
    line = [first]
    while line[-1].status in (Status.REJECTED, Status.REASSIGNED):
        heirs = Activity.objects.for_tenant(tenant_id).filter(
            parent_id=line[-1].pk, link_kind__in=families.SUCCESSORS
        )
        heir = heirs.order_by("-pk").first()
        if heir is None:
            break
        line.append(heir)
    return line


def _standing_of(
    subagent: Subagent, line: Sequence[Activity], tokens: dict[UUID, int], begun: dict[UUID, datetime]
) -> Standing:
    ids = [activity.pk for activity in line]
    starts = [begun[activity_id] for activity_id in ids if activity_id in begun]
    last = line[-1]
    end = last.finished_at or clock.now()
    seconds = round(max(0.0, (end - min(starts)).total_seconds()), 3) if starts else None
    return Standing(subagent, last, ids, sum(tokens.get(activity_id, 0) for activity_id in ids), seconds)


def _tokens_by_activity(tenant_id: UUID, lines: Sequence[Sequence[Activity]]) -> dict[UUID, int]:
    """What each has consumed, as far as it was reported. The ledger is indexed by day and role, not by activity."""
    members = [activity for line in lines for activity in line]
    if not members:
        return {}
    entries = UsageEntry.objects.for_tenant(tenant_id).filter(
        day__gte=min(activity.created_at for activity in members).astimezone(UTC).date(),
        agent_role__in={activity.agent_role for activity in members if activity.agent_role},
        activity_id__in=[activity.pk for activity in members],
    )
    sums: Any = (
        entries.order_by().values_list("activity_id").annotate(Sum("input_tokens"), Sum("output_tokens"))
    )
    return {activity_id: given + produced for activity_id, given, produced in sums}


def _begun(tenant_id: UUID, ids: Iterable[UUID]) -> dict[UUID, datetime]:
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id__in=list(ids))
    return dict(runs.order_by().values_list("activity_id").annotate(Min("started_at")))
