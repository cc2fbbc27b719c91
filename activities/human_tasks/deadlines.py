"""Deadlines of open questions: remind people, escalate to the next role, and finally apply the default outcome.

Each deadline passes once, in order of time, in one transaction with its effect. The deadlines of an answered question pass without effect.
They are rows in PostgreSQL, so after an outage the missed ones pass in the same order. Those of a suspended tenant wait until it is active
again, because nobody could answer meanwhile. If a person answered in time and can still undo the answer, they wait for what becomes of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from activities import rescheduling
from activities.activity_tree import OPEN
from activities.alerts import raise_alert
from activities.decision_rules import DecisionRules, Voter
from activities.human_tasks import approvals, decisions
from activities.models import Activity, Deadline
from activities.models.alert import AlertKind, Severity
from activities.models.decision import DeadlineKind, answered_before
from activities.states import BANDS, FINAL, LinkKind
from activities.suspension import BY_DEADLINE
from tenants import clock, outages, sweeps
from tenants.context import tenant_scope
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

_DUE = Sweep[Any]()
TURN_SECONDS = 2.0  # after an outage thousands may be due, and the caller has other work too
NOBODY = "Nobody decided in time."

_MAY_PASS = Q(~answered_before("activity_id", "at"), happened_at=None, tenant__is_active=True)


def pass_due(now: datetime | None = None) -> int:
    """Process the deadlines that are due, for at most one turn; returns how many. Safe to run in several processes at once.

    A deadline that fails delays only the later ones of the same question. Raises the database's error if PostgreSQL is unreachable.
    """
    now = now or clock.now()
    passed = 0
    due = sweeps.pages(
        Deadline.objects.filter(_MAY_PASS, at__lte=now), "at", "pk", "tenant_id", "activity_id"
    )
    for _, pk, tenant_id, activity_id in _DUE.turn(due, within=TURN_SECONDS):
        with outages.one_of_many(
            logger, "A deadline cannot be processed", action="deadline_stuck", deadline=str(pk)
        ):
            passed += _pass(tenant_id, activity_id, pk, now)
    return passed


def _pass(tenant_id: UUID, activity_id: UUID, pk: UUID, now: datetime) -> bool:
    """Pass the deadline if it is the first one of its question that has not passed."""
    with tenant_scope(tenant_id):
        unlocked = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
        if unlocked is None:
            return False  # It was deleted, with its deadlines.
        activity = approvals.lock_concerned(tenant_id, unlocked)[activity_id]
        # Read after the lock, because another process may have been first, or the tenant may have been suspended.
        of_question = Deadline.objects.for_tenant(tenant_id).filter(_MAY_PASS, activity_id=activity_id)
        deadline = of_question.order_by("at", "pk").first()
        if deadline is None or deadline.pk != pk:
            return False
        if activity.assignee_type == "agent":
            _prioritise_late_agent(activity, deadline)
        elif activity.status in OPEN:
            _EFFECTS[DeadlineKind(deadline.kind)](activity, deadline)
        deadline.happened_at = now
        deadline.save(update_fields=["happened_at"])
    return True


def _remind(activity: Activity, deadline: Deadline) -> None:
    human_role = deadline.human_role or activity.human_role
    title = f"Still waiting: {activity.name}"
    _raise_alert(activity, deadline, AlertKind.REMINDER, title, Severity.INFO, human_role)


def _escalate(activity: Activity, deadline: Deadline) -> None:
    previous = activity.human_role
    human_role = deadline.human_role or previous
    _make_urgent(activity, "escalated", human_role=human_role)
    title = f"Escalated from {previous}: {activity.name}"
    _raise_alert(activity, deadline, AlertKind.ESCALATION, title, Severity.WARNING, human_role)


def _apply_default(activity: Activity, deadline: Deadline) -> None:
    rules = DecisionRules.read(activity.decision_rules)
    outcome = rules.on_timeout
    # Such rules are refused now, but may be stored: a person must choose one of the options.
    if outcome == "approve" and rules.options:
        outcome = None
    if outcome == "escalate":
        _escalate(activity, deadline)
    elif outcome is not None and (activity.is_approval_gate or activity.link_kind == LinkKind.REVIEW):
        decisions.decide(
            activity.tenant_id, activity.pk, outcome, by=Voter(BY_DEADLINE), notes=NOBODY, in_time=False
        )
        title = f"{NOBODY} {activity.name}: {outcome}"
        _raise_alert(activity, deadline, AlertKind.EXPIRED, title, Severity.WARNING, activity.human_role)
    else:
        _make_urgent(activity, "overdue")
        title = f"Overdue: {activity.name}"
        _raise_alert(activity, deadline, AlertKind.OVERDUE, title, Severity.WARNING, activity.human_role)


def _prioritise_late_agent(activity: Activity, deadline: Deadline) -> None:
    """Make an agent's work urgent if it is not done by its due time. If it runs or has failed, it is urgent when it waits again."""
    if activity.status in FINAL:
        return
    if activity.priority > BANDS["urgent"]:
        rescheduling.reschedule_locked(
            [activity], {"priority": BANDS["urgent"]}, actor=BY_DEADLINE, detail={"reason": "overdue"}
        )
    title = f"Overdue: {activity.name}"
    _raise_alert(activity, deadline, AlertKind.OVERDUE, title, Severity.WARNING, deadline.human_role)


def _make_urgent(activity: Activity, reason: str, **changes: str | None) -> None:
    """Make a person's open item urgent, with an event in its history. A version that somebody has read before is then out of date."""
    new_values = {"priority": min(activity.priority, BANDS["urgent"]), **changes}
    rescheduling.reschedule_locked([activity], new_values, actor=BY_DEADLINE, detail={"reason": reason})


_EFFECTS: dict[DeadlineKind, Callable[[Activity, Deadline], None]] = {
    DeadlineKind.REMINDER: _remind,
    DeadlineKind.ESCALATION: _escalate,
    DeadlineKind.DUE: _apply_default,
}


def _raise_alert(
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
