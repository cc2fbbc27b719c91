"""Deadlines: what happens while nobody decides. People are reminded, then the next in the chain is asked, and at last the default outcome
applies.

Each deadline passes once, in the order of their times, in one transaction with its effect. Those of a question that has been answered pass
without an effect. They are rows in PostgreSQL, so a process that was away catches up in the same order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q

from activities import rescheduling
from activities.alerts import raise_alert
from activities.decision_rules import DecisionRules, Voter
from activities.models import Activity, Deadline
from activities.models.alert import AlertKind, Severity
from activities.models.decision import DeadlineKind
from activities.states import BANDS, REMARKS, SETTLED, LinkKind, Status
from activities.suspension import EXPIRED
from tenants import clock, outages
from tenants.context import system_scope, tenant_scope

from . import approvals

logger = logging.getLogger(__name__)

PAGE = 100
TURN_SECONDS = 2.0  # After an outage there may be thousands, and the caller has other work too.
NOBODY = "Nobody decided in time."
_OPEN = (Status.CREATED, Status.IN_PROGRESS)


class _DueDeadline(NamedTuple):
    at: datetime
    pk: UUID
    tenant_id: UUID
    activity_id: UUID


def pass_due(now: datetime | None = None) -> int:
    """Carry out every deadline whose time has come, for at most one turn; returns how many. Any number of processes may do so at once.

    A deadline that cannot be carried out delays only the later ones of the same question. Raises the database's error when PostgreSQL
    cannot be reached.
    """
    now = now or clock.now()
    passed, stuck, until = 0, set(), time.monotonic() + TURN_SECONDS
    for due in _list_due(now):
        if due.activity_id not in stuck:
            done = _try_pass(due, now)
            passed += done
            stuck |= set() if done else {due.activity_id}
        if time.monotonic() > until:
            break
    return passed


def _list_due(now: datetime) -> Iterator[_DueDeadline]:
    """Page by page and never back, so that a row which does not pass is not seen twice in a turn."""
    last: _DueDeadline | None = None
    while True:
        with system_scope():
            rows = Deadline.objects.filter(happened_at=None, at__lte=now).order_by("at", "pk")
            if last is not None:
                rows = rows.filter(Q(at__gt=last.at) | Q(at=last.at, pk__gt=last.pk))
            page = [
                _DueDeadline(*row) for row in rows.values_list("at", "pk", "tenant_id", "activity_id")[:PAGE]
            ]
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1]


def _try_pass(due: _DueDeadline, now: datetime) -> bool:
    try:
        _pass(due, now)
    except Exception as error:
        if outages.is_contention(error):
            return False  # Somebody is deciding right now: the next turn sees the result.
        if outages.may_pass(error):
            raise
        # An error of ours about one question must not stop all the others.
        logger.exception(
            "A deadline cannot pass", extra={"action": "deadline_stuck", "deadline": str(due.pk)}
        )
        return False
    return True


def _pass(due: _DueDeadline, now: datetime) -> None:
    with tenant_scope(due.tenant_id):
        found = Activity.objects.for_tenant(due.tenant_id).filter(pk=due.activity_id).first()
        if found is None:
            return  # It was deleted, with everything about it.
        activity = approvals.lock_concerned(due.tenant_id, found)[due.activity_id]
        deadline = Deadline.objects.for_tenant(due.tenant_id).filter(pk=due.pk, happened_at=None).first()
        if deadline is None:
            return  # Another process was first; the lock showed us that.
        if activity.assignee_type == "agent":
            _agent_is_late(activity, deadline)
        elif activity.status in _OPEN:
            _HAPPENS[DeadlineKind(deadline.kind)](activity, deadline)
        deadline.happened_at = now
        deadline.save(update_fields=["happened_at"])


def _remind(activity: Activity, deadline: Deadline) -> None:
    whom = deadline.human_role or activity.human_role
    _tell(activity, deadline, AlertKind.REMINDER, f"Still waiting: {activity.name}", Severity.INFO, whom)


def _ask_next(activity: Activity, deadline: Deadline) -> None:
    before = activity.human_role
    _make_urgent(activity, human_role=deadline.human_role or before)
    title = f"Escalated from {before}: {activity.name}"
    _tell(activity, deadline, AlertKind.ESCALATION, title, Severity.WARNING, deadline.human_role or before)


def _time_is_over(activity: Activity, deadline: Deadline) -> None:
    outcome = DecisionRules.read(activity.decision_rules).on_timeout
    if outcome == "escalate":
        _ask_next(activity, deadline)
    elif outcome is not None and _is_decided(activity):
        approvals.decide(
            activity.tenant_id, activity.pk, outcome, by=Voter(EXPIRED), notes=NOBODY, in_time=False
        )
        title = f"{NOBODY} {activity.name}: {outcome}"
        _tell(activity, deadline, AlertKind.EXPIRED, title, Severity.WARNING, activity.human_role)
    else:
        _make_urgent(activity)
        _tell(
            activity,
            deadline,
            AlertKind.OVERDUE,
            f"Overdue: {activity.name}",
            Severity.WARNING,
            activity.human_role,
        )


def _agent_is_late(activity: Activity, deadline: Deadline) -> None:
    """Whatever of an agent's work is not done by its due time goes before other work from now on."""
    if activity.status in SETTLED:
        return
    if activity.status in REMARKS[rescheduling.VERB] and activity.priority > BANDS["urgent"]:
        rescheduling.reschedule_locked(
            [activity], {"priority": BANDS["urgent"]}, actor="deadline", detail={"reason": "overdue"}
        )
    title = f"Overdue: {activity.name}"
    _tell(activity, deadline, AlertKind.OVERDUE, title, Severity.WARNING, deadline.human_role)


def _is_decided(activity: Activity) -> bool:
    """Whether it is answered with a yes or a no. Nobody but a person can complete a person's task."""
    return activity.is_approval_gate or activity.link_kind == LinkKind.REVIEW


def _make_urgent(activity: Activity, **changes: str | None) -> None:
    rows = Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.pk)
    rows.update(priority=min(activity.priority, BANDS["urgent"]), **changes)


_HAPPENS: dict[DeadlineKind, Callable[[Activity, Deadline], None]] = {
    DeadlineKind.REMINDER: _remind,
    DeadlineKind.ESCALATION: _ask_next,
    DeadlineKind.DUE: _time_is_over,
}


def _tell(
    activity: Activity, deadline: Deadline, kind: AlertKind, title: str, severity: Severity, human_role: str | None
) -> None:  # fmt: skip
    raise_alert(
        activity.tenant_id,
        kind,
        title,
        severity=severity,
        activity_id=activity.pk,
        facts={"human_role": human_role, "due_at": activity.due_at},
        dedup_key=f"deadline:{deadline.pk}",
    )
