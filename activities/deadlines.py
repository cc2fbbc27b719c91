"""Deadlines: what happens while nobody decides. Reminders, the next in the chain being asked, and at last the default outcome.

Each happens once, in the order of its time, in one transaction with its effect; those of a question that has been answered pass without
one. Times are PostgreSQL rows: a process that was away catches up in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from activities import approvals
from activities.alerts import raise_alert
from activities.decision_rules import DecisionRules, Voter
from activities.models import Activity, Deadline
from activities.models.decision import DeadlineKind
from activities.reviews import EXPIRED
from activities.states import BANDS, LinkKind, Status
from tenants.context import system_scope, tenant_scope

PAGE = 100
NOBODY = "Nobody decided in time."
_OPEN = (Status.CREATED, Status.IN_PROGRESS)


def pass_due(now: datetime | None = None) -> int:
    """Let everything happen whose time has come; how many. Any number of processes may do so at once."""
    now = now or datetime.now(UTC)
    with system_scope():
        due = Deadline.objects.filter(happened_at=None, at__lte=now).order_by("at", "pk")
        page = list(due.values_list("tenant_id", "activity_id", "pk")[:PAGE])
    for tenant_id, activity_id, deadline_id in page:
        _pass(tenant_id, activity_id, deadline_id, now)
    return len(page)


def _pass(tenant_id: UUID, activity_id: UUID, deadline_id: UUID, now: datetime) -> None:
    with tenant_scope(tenant_id):
        asked = Activity.objects.for_tenant(tenant_id).get(pk=activity_id)
        activity = approvals.lock_concerned(tenant_id, asked)[activity_id]
        deadline = Deadline.objects.for_tenant(tenant_id).filter(pk=deadline_id, happened_at=None).first()
        if deadline is None:
            return  # Another process was first; the lock showed us that.
        if activity.status in _OPEN:
            _HAPPENS[DeadlineKind(deadline.kind)](activity, deadline)
        deadline.happened_at = now
        deadline.save(update_fields=["happened_at"])


def _decides(activity: Activity) -> bool:
    return DecisionRules.read(activity.decision_rules).on_timeout in ("approve", "reject") and (
        activity.is_approval_gate or activity.link_kind == LinkKind.REVIEW
    )


def _remind(activity: Activity, deadline: Deadline) -> None:
    _tell(
        activity,
        deadline,
        "reminder",
        f"Still waiting: {activity.name}",
        "info",
        deadline.human_role or activity.human_role,
    )


def _ask_next(activity: Activity, deadline: Deadline) -> None:
    before = activity.human_role
    Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.pk).update(
        human_role=deadline.human_role or before, priority=min(activity.priority, BANDS["urgent"])
    )
    _tell(
        activity,
        deadline,
        "escalation",
        f"Escalated from {before}: {activity.name}",
        "warning",
        deadline.human_role,
    )


def _time_is_over(activity: Activity, deadline: Deadline) -> None:
    outcome = DecisionRules.read(activity.decision_rules).on_timeout
    if _decides(activity) and outcome is not None:
        approvals.decide(
            activity.tenant_id, activity.pk, outcome, by=Voter(EXPIRED), notes=NOBODY, in_time=False
        )
        _tell(
            activity,
            deadline,
            "expired",
            f"{NOBODY} {activity.name}: {outcome}",
            "warning",
            activity.human_role,
        )
    elif outcome == "escalate":
        _ask_next(activity, deadline)
    else:
        _tell(activity, deadline, "overdue", f"Overdue: {activity.name}", "warning", activity.human_role)


_HAPPENS: dict[DeadlineKind, Callable[[Activity, Deadline], None]] = {
    DeadlineKind.REMINDER: _remind,
    DeadlineKind.ESCALATION: _ask_next,
    DeadlineKind.DUE: _time_is_over,
}


def _tell(
    activity: Activity, deadline: Deadline, kind: str, title: str, severity: str, human_role: str | None
) -> None:
    raise_alert(
        activity.tenant_id,
        kind,
        title[:200],
        severity=severity,
        activity_id=activity.pk,
        facts={"human_role": human_role, "due_at": activity.due_at.isoformat() if activity.due_at else None},
        dedup_key=f"deadline:{deadline.pk}",
    )
