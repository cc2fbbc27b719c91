"""Rescheduling: people change when waiting work has its turn: its place in the order, the times that it heeds, or now, past a pause.

A new priority or date is in force at once, in admission too. A date is one reason to wait among others: what an open question, a budget,
a pause or the delay of a retry holds stays held by them, and what one of them lets go still heeds the date.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from activities.admission import Exchange
from activities.admission.exchange import Offer
from activities.decision_rules import DEFAULT_ESCALATION_ROLE, DecisionRules
from activities.exceptions import NotFound, StillHeld, SubmissionInvalid, TransitionRefused
from activities.models import Activity, ActivityEvent, ActivityRun, Deadline, Wake
from activities.models.decision import DeadlineKind
from activities.states import Status, WakeState
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import BudgetWait

from . import activity_tree, budgets, relay, states, transitions
from .outbox import LATER

VERB = "reschedule"
#: A run that begins, one that ends with a delay or without, and an operator's retry: the last of them says whether a delay is in force.
ENDS_OF_DELAYS = ("claim", "start", "release", "retry")
#: Codes of the errors of runs that a provider could not take for now: only the provider knows when it can.
HELD_BY_PROVIDERS = frozenset({"provider_limit", "rate_limited", "breaker_open"})


def reschedule(tenant_id: UUID, activity_id: UUID, new_values: Mapping[str, Any], *, actor: str) -> Activity:
    """Set those of `priority`, `not_before`, `due_at` and `expires_at` that `new_values` has; None clears a date.

    Raises `NotFound`, `TransitionRefused` for what runs or is over, `SubmissionInvalid` naming each error by its path.
    """
    with tenant_scope(tenant_id):
        activity = activity_tree.lock(tenant_id, [activity_id]).get(activity_id)
        if activity is None:
            raise NotFound("activity", activity_id)
        if activity.status not in states.REMARKS[VERB]:
            doing = "runs" if activity.status in states.RUNNING else "is over"
            raise TransitionRefused(
                activity_id, VERB, activity.status, f"Activity {activity_id} {doing}; only what waits can be rescheduled."
            )  # fmt: skip
        if errors := list(_errors(activity, new_values)):
            raise SubmissionInvalid(errors)
        reschedule_locked([activity], new_values, actor=actor)
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _errors(activity: Activity, new_values: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    not_before = new_values.get("not_before", activity.not_before)
    expires_at = new_values.get("expires_at", activity.expires_at)
    now = clock.now()
    if new_values.get("not_before") and activity.assignee_type == "human":
        yield {"path": "not_before", "message": "is for an agent's work: a person takes it up when they want"}
    for name in ("due_at", "expires_at"):
        if (moment := new_values.get(name)) is not None and moment <= now:
            yield {"path": name, "message": "has passed"}
    if not_before and expires_at and now < expires_at <= not_before:
        field = "expires_at" if new_values.get("expires_at") else "not_before"
        text = "must be after not_before" if field == "expires_at" else "must be before expires_at"
        yield {"path": field, "message": text}


def reschedule_locked(
    activities: Sequence[Activity], new_values: Mapping[str, Any], *, actor: str, detail: Mapping[str, Any] | None = None
) -> None:  # fmt: skip
    """As `reschedule` for activities of one tenant that wait and are locked, in as many statements as for one; `new_values` has no errors.

    An activity that is as wanted already leaves no trace. In the caller's `tenant_scope`.
    """
    details = {
        activity.pk: {"changes": changes, **(detail or {})}
        for activity in activities
        if (changes := _changes(activity, new_values))
    }
    rows = transitions.remark(details, VERB, actor=actor, **new_values)
    if not rows:
        return
    tenant_id, ids = rows[0].tenant_id, [row.id for row in rows]
    if "priority" in new_values:
        BudgetWait.objects.for_tenant(tenant_id).filter(activity_id__in=ids).update(
            priority=new_values["priority"]
        )
    if "due_at" in new_values:
        _move_deadlines(rows, new_values["due_at"])
    if "not_before" in new_values:
        _put_off(tenant_id, ids, new_values["not_before"])
    offer_anew([row for row in rows if row.status == Status.CREATED and row.assignee_type == "agent"])


def run_now(tenant_id: UUID, activity_id: UUID, *, actor: str, reason: str) -> Activity:
    """Have an agent's work that waits run next, once: past the pauses of its tenant, its date and the delay of its next attempt.

    It still waits for questions, budgets, limits, and for what a provider has asked for. Raises `NotFound`, `StillHeld` for what
    people must answer first, `TransitionRefused` for a person's work and for what runs or is over.
    """
    with tenant_scope(tenant_id):
        activity = activity_tree.lock(tenant_id, [activity_id]).get(activity_id)
        if activity is None:
            raise NotFound("activity", activity_id)
        if activity.assignee_type == "human":
            raise TransitionRefused(
                activity_id, "run_now", activity.status, "People begin when they want to."
            )
        if activity.status in states.WAITING:
            raise StillHeld(activity_id, "run_now", activity.status)
        details = {activity_id: {"reason": reason, "not_before": activity.not_before}}
        if not transitions.remark(
            details, "run_now", actor=actor, run_now_at=transitions.NOW, not_before=None
        ):
            raise TransitionRefused(activity_id, "run_now", activity.status)
        pending = Wake.objects.for_tenant(tenant_id).filter(activity_id=activity_id, state=WakeState.PENDING)
        pending = pending.exclude(cause__in=(LATER, budgets.CAUSE))
        asked_for = _retry_delays(tenant_id, [activity_id]).get(activity_id)
        if asked_for is not None and _held_by_provider(tenant_id, activity_id):
            pending.update(due_at=asked_for, cause="retry")
        else:
            pending.update(due_at=None)
        found = Activity.objects.for_tenant(tenant_id).get(pk=activity_id)
        offer_anew([found])
        return found


def _held_by_provider(tenant_id: UUID, activity_id: UUID) -> bool:
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity_id)
    error = runs.order_by("-fence").values_list("error", flat=True).first()
    return (error or {}).get("code") in HELD_BY_PROVIDERS


def _changes(activity: Activity, new_values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What was, and what is to be, by name."""
    return {
        name: [getattr(activity, name), value]
        for name, value in new_values.items()
        if getattr(activity, name) != value
    }


def _put_off(tenant_id: UUID, ids: Sequence[UUID], not_before: datetime | None) -> None:
    """Have what is pending wait until the date, or until the next attempt if that is later. News for later and waits for money stay as
    they are: the first hold nothing up, and the second heed the date when there is money."""
    now = clock.now()
    pending = Wake.objects.for_tenant(tenant_id).filter(state=WakeState.PENDING)
    pending = pending.exclude(cause__in=(LATER, budgets.CAUSE))
    begin = not_before if not_before is not None and not_before > now else None
    delays = _retry_delays(tenant_id, ids)
    for activity_id, until in delays.items():
        if begin is None or until >= begin:
            pending.filter(activity_id=activity_id).update(due_at=until, cause="retry")
    others = [pk for pk in ids if pk not in delays or (begin is not None and delays[pk] < begin)]
    # As a date and not as an attempt that is to come: people are told the reason.
    changes = {"due_at": begin} if begin is None else {"due_at": begin, "cause": "wake"}
    pending.filter(activity_id__in=others).update(**changes)


def _retry_delays(tenant_id: UUID, ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Until when the last run of these, which has failed, has put them off; only what lies ahead. What others asked about the work
    since then ends no delay."""
    ends = ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id__in=ids, verb__in=ENDS_OF_DELAYS)
    last = ends.order_by("activity_id", "-seq").distinct("activity_id")
    times = {
        event.activity_id: datetime.fromisoformat(event.detail["due_at"])
        for event in last
        if event.verb == "release" and (event.detail or {}).get("cause") == "retry" and event.detail.get("due_at")
    }  # fmt: skip
    now = clock.now()
    return {activity_id: until for activity_id, until in times.items() if until > now}


def _move_deadlines(rows: Sequence[Any], due_at: datetime | None) -> None:
    """What happens when the time is over happens at the new time; reminders and the chain of who is asked next stay."""
    tenant_id, ids = rows[0].tenant_id, [row.id for row in rows]
    due = Deadline.objects.for_tenant(tenant_id).filter(activity_id__in=ids, kind=DeadlineKind.DUE)
    due.filter(happened_at=None).delete()
    if due_at is None:
        return
    # One that has happened at this very moment is on record, and counts.
    Deadline.objects.bulk_create(
        [
            Deadline(tenant_id=tenant_id, activity_id=row.id, kind=DeadlineKind.DUE, at=due_at, human_role=_last_role_asked(row))
            for row in rows
        ],
        ignore_conflicts=True,
    )  # fmt: skip


def _last_role_asked(row: Any) -> str:
    rules = DecisionRules.read(row.decision_rules)
    return rules.escalation[-1].human_role if rules.escalation else DEFAULT_ESCALATION_ROLE


def offer_anew(rows: Sequence[Any]) -> None:
    """Let admission know how these agents' activities, `created` and locked, stand by now: what may start is offered at its place,
    what may not is withdrawn."""
    if not rows:
        return
    ready = set(
        Wake.objects.for_tenant(rows[0].tenant_id)
        .filter(activity_id__in=[row.id for row in rows], state=WakeState.PENDING, due_at=None)
        .values_list("activity_id", flat=True)
    )
    relay.after_commit(
        Exchange(
            offers=[Offer.of(row) for row in rows if row.id in ready],
            withdrawals=[row.id for row in rows if row.id not in ready],
        )
    )
