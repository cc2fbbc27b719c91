"""Rescheduling: lets people change the priority and the dates of waiting work, or run it now in spite of a pause.

A new priority or date takes effect at once, also in admission. A date is one reason to wait among others: work that an open question, a
budget, a pause or a retry delay holds keeps waiting for it, and still waits for its date afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import DateTimeField, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Greatest, Now

from activities import activity_tree, budgets, relay, states, transitions
from activities.admission import Exchange
from activities.admission.exchange import Offer
from activities.decision_rules import DEFAULT_ESCALATION_ROLE, DecisionRules
from activities.exceptions import NotFound, StillHeld, SubmissionInvalid, TransitionRefused
from activities.models import Activity, ActivityEvent, ActivityRun, Deadline, MailboxItem, Wake
from activities.models.decision import DeadlineKind
from activities.outbox import LATER
from activities.states import LinkKind, Status, WakeState
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import BudgetWait

VERB = "reschedule"
#: The last event with one of these verbs decides whether a retry delay is in force: only a "release" with a delay sets one.
ENDS_OF_DELAYS = ("claim", "start", "release", "retry")
#: Error codes of runs that a provider refused for now; only the provider decides when to retry.
HELD_BY_PROVIDERS = frozenset({"provider_limit", "rate_limited", "breaker_open"})


def reschedule(tenant_id: UUID, activity_id: UUID, new_values: Mapping[str, Any], *, actor: str) -> Activity:
    """Set those of `priority`, `not_before`, `due_at` and `expires_at` that `new_values` contains; None clears a date.

    Raises `NotFound`, `TransitionRefused` if its agent runs or it has ended, `SubmissionInvalid` with the path of each error.
    """
    with tenant_scope(tenant_id):
        activity = activity_tree.lock(tenant_id, [activity_id]).get(activity_id)
        if activity is None:
            raise NotFound("activity", activity_id)
        if not can_reschedule(activity):
            state = "is running" if activity.status in states.RUNNING else "has ended"
            raise TransitionRefused(
                activity_id, VERB, activity.status, f"Activity {activity_id} {state}; only waiting work can be rescheduled."
            )  # fmt: skip
        if errors := list(_errors(activity, new_values)):
            raise SubmissionInvalid(errors)
        reschedule_locked([activity], new_values, actor=actor)
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def can_reschedule(activity: Activity) -> bool:
    """Whether it waits. A claim reserves nothing, so what a person has claimed still waits."""
    is_running_agent = activity.assignee_type == "agent" and activity.status in states.RUNNING
    return activity.status in states.LIVE and not is_running_agent


def _errors(activity: Activity, new_values: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    not_before = new_values.get("not_before", activity.not_before)
    expires_at = new_values.get("expires_at", activity.expires_at)
    now = clock.now()
    if new_values.get("not_before") and activity.assignee_type == "human":
        yield {"path": "not_before", "message": "applies only to agents: people start when they want"}
    if new_values.get("expires_at") and activity.link_kind == LinkKind.GATE:
        yield {"path": "expires_at", "message": "does not apply to a gate, which does not expire: set due_at"}
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
    """Reschedule locked activities of one tenant that have not ended, with as many statements as for one. `new_values` is valid.

    An activity that already has the values gets no event. In the caller's `tenant_scope`.
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
        _delay_wakes(tenant_id, ids, new_values["not_before"])
    update_offers([row for row in rows if row.status == Status.CREATED and row.assignee_type == "agent"])


def run_now(tenant_id: UUID, activity_id: UUID, *, actor: str, reason: str) -> Activity:
    """Run an agent's waiting work next, once, in spite of the tenant's pauses, its date and its retry delay.

    It still waits for questions, budgets, limits, and for a delay that a provider requested. Raises `NotFound`, `StillHeld` if people must
    answer first, `TransitionRefused` for a person's work and for work that runs or has ended.
    """
    with tenant_scope(tenant_id):
        activity = activity_tree.lock(tenant_id, [activity_id]).get(activity_id)
        if activity is None:
            raise NotFound("activity", activity_id)
        if activity.assignee_type == "human":
            raise TransitionRefused(
                activity_id,
                "run_now",
                activity.status,
                "It belongs to a person: people start when they want.",
            )
        if activity.status in states.WAITING:
            raise StillHeld(activity_id, "run_now", activity.status)
        details = {activity_id: {"reason": reason, "not_before": activity.not_before}}
        if not transitions.remark(
            details, "run_now", actor=actor, run_now_at=transitions.NOW, not_before=None
        ):
            raise TransitionRefused(activity_id, "run_now", activity.status)
        pending = _wakes_bound_to_date(tenant_id).filter(activity_id=activity_id)
        until = _retry_delays(tenant_id, [activity_id]).get(activity_id)
        if until is not None and _held_by_provider(tenant_id, activity_id):
            pending.update(due_at=until, cause="retry")
        else:
            until = None
            pending.update(due_at=None)
        _delay_messages(tenant_id, [activity_id], until)
        activity = Activity.objects.for_tenant(tenant_id).get(pk=activity_id)
        update_offers([activity])
        return activity


def _held_by_provider(tenant_id: UUID, activity_id: UUID) -> bool:
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity_id)
    error = runs.order_by("-fence").values_list("error", flat=True).first()
    return (error or {}).get("code") in HELD_BY_PROVIDERS


def _changes(activity: Activity, new_values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the old and the new value of each field that changes."""
    return {
        name: [getattr(activity, name), value]
        for name, value in new_values.items()
        if getattr(activity, name) != value
    }


def _delay_wakes(tenant_id: UUID, ids: Sequence[UUID], not_before: datetime | None) -> None:
    """Delay pending wakes until the date, or until the next attempt if that is later."""
    now = clock.now()
    pending = _wakes_bound_to_date(tenant_id)
    begin = not_before if not_before is not None and not_before > now else None
    delays = _retry_delays(tenant_id, ids)
    for activity_id, until in delays.items():
        if begin is None or until >= begin:
            pending.filter(activity_id=activity_id).update(due_at=until, cause="retry")
    others = [pk for pk in ids if pk not in delays or (begin is not None and delays[pk] < begin)]
    # The cause is a date and not a retry, because people see it as the reason.
    changes = {"due_at": begin} if begin is None else {"due_at": begin, "cause": "wake"}
    pending.filter(activity_id__in=others).update(**changes)
    for activity_id, until in delays.items():
        _delay_messages(tenant_id, [activity_id], max(until, begin or until))
    _delay_messages(tenant_id, [pk for pk in ids if pk not in delays], begin)


def _delay_messages(tenant_id: UUID, ids: Sequence[UUID], until: datetime | None) -> None:
    """Let messages for later start no run before this time. Each keeps its own time. A wake has the id of its message."""
    wakes = Wake.objects.for_tenant(tenant_id).filter(
        activity_id__in=ids, state=WakeState.PENDING, cause=LATER
    )
    own = Subquery(MailboxItem.objects.filter(pk=OuterRef("pk")).values("run_after"))
    wakes.update(due_at=Greatest(own, Value(until, DateTimeField())))
    wakes.filter(due_at__lte=Now()).update(due_at=None)


def _wakes_bound_to_date(tenant_id: UUID) -> QuerySet[Any]:
    """Return pending wakes for which the date of their activity decides.

    Excludes wakes for later, which delay nothing, and those that wait for a budget, which check the date when it has room.
    """
    wakes: QuerySet[Any] = Wake.objects.for_tenant(tenant_id).filter(state=WakeState.PENDING)
    return wakes.exclude(Q(cause=LATER) | Q(cause=budgets.CAUSE, due_at=budgets.NEVER))


def _retry_delays(tenant_id: UUID, ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Return the future times until which the failed last run delayed these activities. Later questions about them end no delay."""
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
    """Move the due action to the new time; reminders and escalations stay."""
    tenant_id, ids = rows[0].tenant_id, [row.id for row in rows]
    due = Deadline.objects.for_tenant(tenant_id).filter(activity_id__in=ids, kind=DeadlineKind.DUE)
    due.filter(happened_at=None).delete()
    if due_at is None:
        return
    # Ignore conflicts: a deadline that has just happened is recorded already, and stays.
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


def update_offers(rows: Sequence[Any]) -> None:
    """Update admission for these agents' activities, `created` and locked: offer those that may start, withdraw the others."""
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
