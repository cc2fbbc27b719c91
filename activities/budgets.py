"""Spending: what a run consumes is counted when it says so, and it starts only with money kept for it.

The ledger and the budgets change in the transaction of what they tell of: a claim that gets no room is no claim, and an end of a run
gives back what was kept for it. Tenants without a budget pay nothing for this but the ledger's rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Least, Now
from psycopg.types.json import Jsonb

from activities import activity_tree
from activities.alerts import raise_alert
from activities.exceptions import OutOfBudget, plain
from activities.models import Activity, ActivityRun, Wake
from activities.models.alert import AlertKind
from activities.run_tokens import RunToken
from activities.states import Status
from agents import prices
from agents.configuration import RoleSettings
from agents.contracts import Usage
from agents.response_parser import MAX_COST_USD, MAX_MODEL, MAX_TOKENS
from tenants import clock, money
from tenants.caches import TtlCache
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import Budget, BudgetWait, Reservation
from tenants.money import BudgetedRun, Standing
from tenants.sql import Statement

logger = logging.getLogger(__name__)

LOOKED_AT = timedelta(days=7)  # the past whose average is the estimate
MOST_ENTRIES = 2_000
_COUNT = Statement.load(Path(__file__).parent / "sql", "count_usage")
_EXACT = Decimal("1e-12")  # the ledger's last place
_averages: TtlCache[tuple[Decimal, Decimal]] = TtlCache(seconds=60.0, entries=10_000)


def reserve(row: Any, run_id: UUID, role: RoleSettings) -> None:
    """Keep in every budget what the run that was just claimed may need. Raises `OutOfBudget`: then the claim must be undone.

    In the transaction of the claim.
    """
    bearer = BudgetedRun(row.tenant_id, run_id, row.id, row.agent_role, row.deliverable_id)
    dollars, tokens = estimate(row.tenant_id, row.agent_role, role)
    standings = money.reserve(bearer, dollars=dollars, tokens=tokens)
    for budget in standings:
        if not budget.has_room:
            raise OutOfBudget(budget, budget.need)
    _warn(row.tenant_id, standings)


def estimate(tenant_id: UUID, role: str, options: RoleSettings) -> tuple[Decimal, Decimal]:
    """Dollars and tokens that a run of this role may need: the role's own estimate, else what its recent runs took, else the platform's
    estimate.
    """
    adapter_options = options.adapter.options
    dollars, tokens = adapter_options.get("estimate_usd"), adapter_options.get("estimate_tokens")
    if dollars is None or tokens is None:
        usual = _usual(tenant_id, role)
        dollars, tokens = usual[0] if dollars is None else dollars, usual[1] if tokens is None else tokens
    return Decimal(str(dollars)).quantize(_EXACT), Decimal(str(tokens)).quantize(_EXACT)


def _usual(tenant_id: UUID, role: str) -> tuple[Decimal, Decimal]:
    key = f"{tenant_id}:{role}"
    if (known := _averages.recall(key)) is not None:
        return known
    since = clock.today() - LOOKED_AT
    found = money.average_of(tenant_id, role, since=since, most=MOST_ENTRIES)
    estimate = (
        Decimal(str(settings.ORCHESTRATOR_RUN_ESTIMATE_USD)),
        Decimal(settings.ORCHESTRATOR_RUN_ESTIMATE_TOKENS),
    )
    return _averages.keep(key, found or estimate)


@dataclass(frozen=True, slots=True)
class UsageCount:
    """Whether the run goes on, and the budget for which it has to stop, if there is one."""

    live: bool
    refusal: OutOfBudget | None = None


def count_usage(run: RunToken, usage: Usage, *, beat: bool = False, progress: Any = None) -> UsageCount:
    """Enter what a run has consumed in total, and with `beat` that its agent lives.

    It is counted however the run has ended, since the money is spent. In a `tenant_scope`, as the last that its transaction locks.
    """
    usage, day = _sound(usage), clock.today()
    price = prices.price_of(usage.model, in_batch=usage.in_batch)
    found = _COUNT.run(
        {
            "tenant": run.tenant_id,
            "run": run.run_id,
            "fence": run.fence,
            "day": day,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost": usage.cost_usd,
            "model": usage.model,
            "input_price": price.input if price else None,
            "output_price": price.output if price else None,
            "beat": beat,
            "progress": None if progress is None else Jsonb(progress),
        },
        using=APP,
    )
    if not found:
        return UsageCount(live=False)
    (new,) = found
    return UsageCount(new.live, _settle_run(run, new, day) if new.budgeted else None)


def _sound(usage: Usage) -> Usage:
    """As answers are checked before they come here; what an adapter says on its way is not, and must not spoil sums for ever."""
    cost = usage.cost_usd
    if cost is not None:
        cost = min(cost, MAX_COST_USD).quantize(_EXACT) if cost.is_finite() and cost >= 0 else None
    return Usage(
        input_tokens=min(max(0, usage.input_tokens), MAX_TOKENS),
        output_tokens=min(max(0, usage.output_tokens), MAX_TOKENS),
        cost_usd=cost,
        model=(usage.model or "").replace("\x00", "")[:MAX_MODEL] or None,
        in_batch=usage.in_batch,
    )


def _settle_run(run: RunToken, new: Any, day: date) -> OutOfBudget | None:
    bearer = BudgetedRun(run.tenant_id, run.run_id, new.activity, new.role or "", new.deliverable)
    standings = money.settle(bearer, dollars=new.dollars, tokens=new.tokens, ended=not new.live, day=day)
    _warn(run.tenant_id, standings)
    over = [budget for budget in standings if budget.over]
    return OutOfBudget(over[0], Decimal(0)) if over and new.live else None


def settle_ended_run(run: RunToken, end: Any, usage: Usage | None = None) -> None:
    """Settle the budgets of a run that has ended in this transaction: count what it reports to have consumed, and release what was
    reserved for it. `end` is the row of its end.
    """
    if usage is not None:
        count_usage(run, usage)
    elif end.reserved:
        money.release(run.tenant_id, [run.run_id])


def _warn(tenant_id: UUID, standings: list[Standing]) -> None:
    for budget in standings:
        if budget.warned:
            raise_alert(
                tenant_id,
                AlertKind.BUDGET_WARNING,
                f"The budget {budget.name} is nearly used up",
                body=f"{plain(budget.spent)} of {plain(budget.cap)} {budget.unit} are spent. When it is used up, work waits for it.",
                facts={"budget": budget.id, "spent": budget.spent, "cap": budget.cap, "unit": budget.unit},
                dedup_key=f"budget:{budget.id}:{budget.period_start}:{plain(budget.cap)}",
            )


# Work that waits for a budget: put off without a slot, and let go on when there is room.
#
# Its wakes are due at the end of time, so nothing asks about them. A background task asks for budgets that have room again
# (their cap was raised, their period is over, reservations came back) and releases as many as there is room
# for, the most urgent first and then the oldest.


T = TypeVar("T")

CAUSE = "budget"
#: When a wake is due that waits for money: never by itself.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
AT_ONCE = 500  # activities released, and budgets looked at, in one pass


def postpone(tenant_id: UUID, activity_id: UUID, refusal: OutOfBudget) -> None:
    """Have an activity wait for the budget that had no room for it. Idempotent; does nothing when the activity is running already."""
    with tenant_scope(tenant_id):
        activity = activity_tree.lock(tenant_id, [activity_id]).get(activity_id)
        if activity is None or activity.status != Status.CREATED:
            return
        pending = Wake.objects.for_tenant(tenant_id).filter(activity_id=activity_id, state="pending")
        if pending.filter(Q(due_at=None) | Q(due_at__lte=Now())).update(due_at=NEVER, cause=CAUSE):
            note_wait(activity, refusal)


def note_wait(activity: Any, refusal: OutOfBudget) -> None:
    """Record which budget an activity waits for. In the transaction in which its wakes were put off."""
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


def waits_of(tenant_id: UUID, activity_ids: Sequence[UUID]) -> dict[UUID, BudgetWait]:
    """The budget waits of these activities, each with its budget. In the caller's `tenant_scope`."""
    if not activity_ids:
        return {}
    rows = BudgetWait.objects.for_tenant(tenant_id).filter(activity_id__in=activity_ids)
    return {wait.activity_id: wait for wait in rows.select_related("budget")}


def waiting() -> QuerySet[Any]:
    """Budgets that have something to do: work to release, or figures to count again."""
    return money.list_awaited_budgets() | money.to_recount()


def leftovers() -> QuerySet[Any]:
    """Reservations whose run has ended: of a run that was cancelled, or that went without anybody's noticing."""
    live = ActivityRun.objects.filter(pk=OuterRef("run_id"), status="running")
    return Reservation.objects.filter(~Exists(live))


def release_where_room() -> int:
    """Count again what is to be counted, and release what may go on; returns how many activities. Any number may do it at once."""
    with system_scope():
        recounts = list(money.to_recount().values_list("tenant_id", "pk")[:AT_ONCE])
    for tenant_id, budget_id in recounts:
        _try(money.recount, tenant_id, budget_id)
    with system_scope():
        roomy = list(money.list_awaited_budgets().values_list("tenant_id", "pk")[:AT_ONCE])
    return sum(_try(release, tenant_id, budget_id) or 0 for tenant_id, budget_id in roomy)


def release_leftovers() -> int:
    """Give back what is kept for runs that have ended; returns how many reservations."""
    with system_scope():
        found = list(leftovers().values_list("tenant_id", "run_id")[:AT_ONCE])
    runs_of: dict[UUID, list[UUID]] = {}
    for tenant_id, run_id in found:
        runs_of.setdefault(tenant_id, []).append(run_id)
    for tenant_id, run_ids in runs_of.items():
        with tenant_scope(tenant_id):
            money.release(tenant_id, run_ids)
    return len(found)


def release(tenant_id: UUID, budget_id: UUID) -> int:
    """Release as much of the work that waits for the budget as it has room for; returns how many activities.

    A released activity asks for room again when it starts, so releasing one too many costs a start and nothing else.
    """
    chosen = _choose_waiting(tenant_id, budget_id)
    released = _let_go(tenant_id, chosen)
    _note_who_is_left(tenant_id, budget_id)
    return released


def _note_who_is_left(tenant_id: UUID, budget_id: UUID) -> None:
    with tenant_scope(tenant_id):
        budget = Budget.objects.for_tenant(tenant_id).filter(pk=budget_id)
        # Locked before looking: anyone who begins to wait now waits for this first, and then says so itself.
        if budget.select_for_update().first() is None:
            return
        left = BudgetWait.objects.for_tenant(tenant_id).filter(budget_id=budget_id)
        remaining = left.aggregate(since=Min("since"), wanted=Min("amount"))
        budget.update(waiting_since=remaining["since"], wanted=remaining["wanted"])


def _choose_waiting(tenant_id: UUID, budget_id: UUID) -> list[UUID]:
    """Who may go on. The budget is not locked any more when their rows are: activities come before budgets."""
    with tenant_scope(tenant_id):
        rows = Budget.objects.for_tenant(tenant_id).select_for_update()
        budget = rows.filter(pk=budget_id).first()
        if budget is None:
            return []
        if budget.deleted_at is None:
            money.roll(budget)
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
        activity_tree.lock(tenant_id, activity_ids)
        wakes = Wake.objects.for_tenant(tenant_id).filter(
            activity_id__in=activity_ids, state="pending", cause=CAUSE, due_at=NEVER
        )
        # A date that was set meanwhile holds, and is no wait for money any more.
        dated = Activity.objects.filter(pk=OuterRef("activity_id"), not_before__gt=Now())
        put_off = wakes.filter(Exists(dated))
        woken = put_off.update(due_at=Subquery(dated.values("not_before")), cause="wake")
        woken += wakes.update(due_at=Now())
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
