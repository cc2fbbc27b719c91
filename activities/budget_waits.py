"""Work that waits for a budget: put off without a slot, and let go on when there is room.

Its wakes are due at the end of time, so nothing asks about them. An errand asks for budgets that have room again (their cap was raised,
their period is over, reservations came back) and releases as many as there is room for, the most urgent first and then the oldest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Coalesce, Least, Now

from activities import families
from activities.exceptions import OutOfBudget
from activities.models import ActivityRun, Wake
from activities.states import Status
from tenants.context import system_scope, tenant_scope
from tenants.models import Budget, BudgetWait, Reservation
from tenants.money import budgets, reservations

logger = logging.getLogger(__name__)

T = TypeVar("T")

CAUSE = "budget"
#: When a wake is due that waits for money: never by itself.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
AT_ONCE = 500  # activities released, and budgets looked at, in one pass


def put_off(tenant_id: UUID, activity_id: UUID, refusal: OutOfBudget) -> None:
    """Have an activity that got no room wait for the budget that refused it. Idempotent; nothing happens when it runs by now."""
    with tenant_scope(tenant_id):
        activity = families.lock(tenant_id, [activity_id]).get(activity_id)
        if activity is None or activity.status != Status.CREATED:
            return
        pending = Wake.objects.for_tenant(tenant_id).filter(activity_id=activity_id, state="pending")
        if pending.filter(Q(due_at=None) | Q(due_at__lte=Now())).update(due_at=NEVER, cause=CAUSE):
            note(activity, refusal)


def note(activity: Any, refusal: OutOfBudget) -> None:
    """Keep for which budget an activity waits. In the transaction in which its wakes were put off."""
    tenant_id = activity.tenant_id
    wait = BudgetWait(
        tenant_id=tenant_id,
        activity_id=activity.id,
        budget_id=refusal.budget_id,
        amount=refusal.need,
        priority=activity.priority,
    )
    BudgetWait.objects.bulk_create(
        [wait],
        update_conflicts=True,
        unique_fields=["tenant", "activity_id"],
        update_fields=["budget", "amount", "priority"],
    )
    Budget.objects.for_tenant(tenant_id).filter(pk=refusal.budget_id).update(
        waiting_since=Coalesce(F("waiting_since"), Now()),
        wanted=Least(Coalesce(F("wanted"), Value(refusal.need)), Value(refusal.need)),
    )


def of(tenant_id: UUID, activity_ids: Sequence[UUID]) -> dict[UUID, BudgetWait]:
    """For what these activities wait, with its budget. In the caller's `tenant_scope`."""
    if not activity_ids:
        return {}
    rows = BudgetWait.objects.for_tenant(tenant_id).filter(activity_id__in=activity_ids)
    return {wait.activity_id: wait for wait in rows.select_related("budget")}


def waiting() -> QuerySet[Any]:
    """Budgets that have something to do: work to release, or figures to count anew."""
    return budgets.waited_for() | budgets.to_recount()


def leftovers() -> QuerySet[Any]:
    """Reservations whose run has ended: of a run that was cancelled, or that went without anybody's noticing."""
    live = ActivityRun.objects.filter(pk=OuterRef("run_id"), status="running")
    return Reservation.objects.filter(~Exists(live))


def look_after() -> int:
    """Count anew what is to be counted, and release what may go on; returns how many activities. Any number may do it at once."""
    with system_scope():
        recounts = list(budgets.to_recount().values_list("tenant_id", "pk")[:AT_ONCE])
    for tenant_id, budget_id in recounts:
        _try(budgets.recount, tenant_id, budget_id)
    with system_scope():
        roomy = list(budgets.waited_for().values_list("tenant_id", "pk")[:AT_ONCE])
    return sum(_try(release, tenant_id, budget_id) or 0 for tenant_id, budget_id in roomy)


def free_leftovers() -> int:
    """Give back what is kept for runs that have ended; returns how many reservations."""
    with system_scope():
        found = list(leftovers().values_list("tenant_id", "run_id")[:AT_ONCE])
    runs_of: dict[UUID, list[UUID]] = {}
    for tenant_id, run_id in found:
        runs_of.setdefault(tenant_id, []).append(run_id)
    for tenant_id, run_ids in runs_of.items():
        with tenant_scope(tenant_id):
            reservations.release(tenant_id, run_ids)
    return len(found)


def release(tenant_id: UUID, budget_id: UUID) -> int:
    """Let go on as much of what waits for the budget as it has room for; returns how many activities.

    A released activity asks for room again when it starts, so releasing one too many costs a start and nothing else.
    """
    chosen = _chosen(tenant_id, budget_id)
    released = _let_go(tenant_id, chosen)
    _note_who_is_left(tenant_id, budget_id)
    return released


def _note_who_is_left(tenant_id: UUID, budget_id: UUID) -> None:
    with tenant_scope(tenant_id):
        budget = Budget.objects.for_tenant(tenant_id).filter(pk=budget_id)
        # Locked before looking: whoever begins to wait now waits for this first, and then says so itself.
        if budget.select_for_update().first() is None:
            return
        left = BudgetWait.objects.for_tenant(tenant_id).filter(budget_id=budget_id)
        remaining = left.aggregate(since=Min("since"), wanted=Min("amount"))
        budget.update(waiting_since=remaining["since"], wanted=remaining["wanted"])


def _chosen(tenant_id: UUID, budget_id: UUID) -> list[UUID]:
    """Who may go on. The budget is not locked any more when their rows are: activities come before budgets."""
    with tenant_scope(tenant_id):
        rows = Budget.objects.for_tenant(tenant_id).select_for_update()
        budget = rows.filter(pk=budget_id).first()
        if budget is None:
            return []
        if budget.deleted_at is None:
            budgets.roll(budget)
            budget.save()
        queue = BudgetWait.objects.for_tenant(tenant_id).filter(budget_id=budget_id)
        first = list(queue.order_by("priority", "since").values_list("activity_id", "amount")[:AT_ONCE])
    if budget.deleted_at is not None:
        return [activity_id for activity_id, _ in first]
    return list(_that_fit(first, budget.cap - budget.spent - budget.reserved))


def _that_fit(waits: Iterable[tuple[UUID, Decimal]], room: Decimal) -> Iterable[UUID]:
    for activity_id, amount in waits:
        if amount <= room and room > 0:
            room -= amount
            yield activity_id


def _let_go(tenant_id: UUID, activity_ids: list[UUID]) -> int:
    if not activity_ids:
        return 0
    with tenant_scope(tenant_id):
        families.lock(tenant_id, activity_ids)
        wakes = Wake.objects.for_tenant(tenant_id).filter(
            activity_id__in=activity_ids, state="pending", cause=CAUSE, due_at=NEVER
        )
        woken = wakes.update(due_at=Now())
        BudgetWait.objects.for_tenant(tenant_id).filter(activity_id__in=activity_ids).delete()
    logger.info("Work released by a budget", extra={"action": "budget_released", "count": woken})
    return len(activity_ids)


def _try(action: Callable[[UUID, UUID], T], tenant_id: UUID, budget_id: UUID) -> T | None:
    """One budget that cannot be looked after must not keep the others from it."""
    try:
        return action(tenant_id, budget_id)
    except Exception:
        logger.exception(
            "Budget could not be looked after", extra={"action": "budget_failed", "budget": str(budget_id)}
        )
        return None
