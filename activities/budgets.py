"""Spending of runs: reserves money before a run starts, counts the usage that it reports, and lets work wait for a budget.

The ledger and the budgets change in the transaction of the event: a claim without room in the budgets is rolled back, and the end of a
run releases its reservations. For tenants without a budget only the ledger's rows are written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Least, Now
from psycopg.types.json import Jsonb

from activities import activity_tree
from activities.alerts import raise_alert
from activities.exceptions import OutOfBudget
from activities.models import Activity, ActivityRun, Wake
from activities.models.alert import AlertKind
from activities.run_tokens import RunToken
from activities.states import Status
from agents import prices
from agents.configuration import RoleSettings
from agents.contracts import Usage
from agents.models import Agent
from agents.response_parser import MAX_COST_USD, MAX_MODEL, MAX_TOKENS
from tenants import clock, money, outages, sweeps
from tenants.caches import TtlCache
from tenants.context import APP, tenant_scope
from tenants.models import Budget, BudgetUnit, BudgetWait, Reservation
from tenants.money import BudgetedRun, Standing, plain
from tenants.sql import Statement
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

_RECOUNTS, _AWAITED, _ESTIMATES, _RESERVATIONS = (Sweep[Any]() for _ in range(4))

AVERAGE_PERIOD = timedelta(days=7)  # the estimate is the average of the runs of this period
MOST_ENTRIES = 2_000
_COUNT = Statement.load(Path(__file__).parent / "sql", "count_usage")
_EXACT = Decimal("1e-12")  # the last decimal place of the ledger
_averages: TtlCache[tuple[Decimal, Decimal]] = TtlCache(seconds=60.0, entries=10_000)


def reserve(row: Any, run_id: UUID, role: RoleSettings) -> None:
    """Reserve in every budget what the run that was just claimed may need. In the transaction of the claim.

    Raises `OutOfBudget` if a budget has no room; the caller must then undo the claim.
    """
    bearer = BudgetedRun(row.tenant_id, run_id, row.id, row.agent_role, row.deliverable_id)
    dollars, tokens = estimate(row.tenant_id, row.agent_role, role.adapter.options)
    standings = money.reserve(bearer, dollars=dollars, tokens=tokens)
    for budget in standings:
        if not budget.has_room:
            raise OutOfBudget(budget, budget.need)
    _warn(row.tenant_id, standings)


def estimate(tenant_id: UUID, role: str, options: Mapping[str, Any]) -> tuple[Decimal, Decimal]:
    """Return the dollars and tokens that a run of this role may need.

    Uses the role's own estimate among its options, or else the average of its recent runs, or else the platform's estimate.
    """
    dollars, tokens = (_read_estimate(options.get(name)) for name in ("estimate_usd", "estimate_tokens"))
    if dollars is None or tokens is None:
        average = _average(tenant_id, role)
        dollars, tokens = (
            average[0] if dollars is None else dollars,
            average[1] if tokens is None else tokens,
        )
    return dollars.quantize(_EXACT), tokens.quantize(_EXACT)


def _read_estimate(value: Any) -> Decimal | None:
    """Return an estimate of the registry, or None if it is absent or invalid. An error here would keep the role's work from starting."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and 0 <= amount <= MAX_TOKENS else None


def _average(tenant_id: UUID, role: str) -> tuple[Decimal, Decimal]:
    key = f"{tenant_id}:{role}"
    if (cached := _averages.recall(key)) is not None:
        return cached
    since = clock.today() - AVERAGE_PERIOD
    average = money.average_of(tenant_id, role, since=since, most=MOST_ENTRIES)
    default = (
        Decimal(str(settings.ORCHESTRATOR_RUN_ESTIMATE_USD)),
        Decimal(settings.ORCHESTRATOR_RUN_ESTIMATE_TOKENS),
    )
    return _averages.keep(key, average or default)


@dataclass(frozen=True, slots=True)
class UsageCount:
    """Whether the run is still live, and the exhausted budget that stops it, if there is one."""

    live: bool
    refusal: OutOfBudget | None = None


def count_usage(run: RunToken, usage: Usage, *, beat: bool = False, progress: Any = None) -> UsageCount:
    """Record the total that a run has consumed; `beat` also records a heartbeat of its agent.

    Usage counts even if the run has ended, because the money is spent. In a `tenant_scope`, as the last lock of the transaction.
    """
    usage, day = _sanitise(usage), clock.today()
    price = prices.price_of(usage.model, in_batch=usage.in_batch)
    rows = _COUNT.run(
        {
            "tenant": run.tenant_id,
            "run": run.run_id,
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
    if not rows:
        return UsageCount(live=False)
    (new,) = rows
    return UsageCount(new.live, _settle_run(run, new, day) if new.budgeted else None)


def _sanitise(usage: Usage) -> Usage:
    """Limit every figure. Final answers are validated earlier, but progress reports of adapters are not, and must not corrupt the sums."""
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
    """Count the usage of a run that has ended in this transaction, and release its reservations. `end` is the row of its end."""
    if usage is not None:
        count_usage(run, usage)
    elif end.reserved:
        money.release(run.tenant_id, [run.run_id])


def _warn(tenant_id: UUID, standings: list[Standing]) -> None:
    for budget in standings:
        if budget.warned:
            _alert_people(tenant_id, budget)


def _alert_people(tenant_id: UUID, budget: Standing | Budget) -> None:
    raise_alert(
        tenant_id,
        AlertKind.BUDGET_WARNING,
        f"The budget {budget.name} is nearly used up",
        body=f"{plain(budget.spent)} of {plain(budget.cap)} {budget.unit} are spent. New work waits once the cap is reached.",
        facts={"budget": budget.id, "spent": budget.spent, "cap": budget.cap, "unit": budget.unit},
        dedup_key=f"budget:{budget.id}:{budget.period_start}:{plain(budget.cap)}",
    )


# Work that waits for a budget holds no slot. Its wakes are due at the end of time, so the promoter never selects them.
#
# A background task finds budgets that have room again (the cap was raised, the period is over, reservations were released) and releases
# as many activities as fit: the most urgent first, then the oldest.

CAUSE = "budget"
#: `due_at` of a wake that waits for a budget.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
AT_ONCE = 500  # activities released, and budgets checked, in one pass


def postpone(tenant_id: UUID, activity_id: UUID, refusal: OutOfBudget) -> None:
    """Let an activity wait for the budget that had no room for it. Idempotent; does nothing if the activity is running already."""
    with tenant_scope(tenant_id):
        activity = activity_tree.lock(tenant_id, [activity_id]).get(activity_id)
        if activity is None or activity.status != Status.CREATED:
            return
        pending = Wake.objects.for_tenant(tenant_id).filter(activity_id=activity_id, state="pending")
        if pending.filter(Q(due_at=None) | Q(due_at__lte=Now())).update(due_at=NEVER, cause=CAUSE):
            note_wait(activity, refusal)


def note_wait(activity: Any, refusal: OutOfBudget) -> None:
    """Record which budget an activity waits for. In the transaction that postpones its wakes."""
    tenant_id = activity.tenant_id
    # The budget first, as at the start of a run, so that a change of the budget may change what waits for it.
    Budget.objects.for_tenant(tenant_id).filter(pk=refusal.budget_id).update(
        waiting_since=Coalesce(F("waiting_since"), Now()),
        wanted=Least(Coalesce(F("wanted"), Value(refusal.need)), Value(refusal.need)),
    )
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
    _warn_of_wait(tenant_id, refusal.budget_id)


def _warn_of_wait(tenant_id: UUID, budget_id: UUID) -> None:
    """Warn people of a budget that was new, or got a lower cap, when most of it was spent already: no report of a run has warned them."""
    budget = Budget.objects.for_tenant(tenant_id).filter(pk=budget_id, warned_at=None)
    row = budget.filter(spent__gte=F("cap") * F("warning_share")).first()
    if row is None or money.has_turned(row):  # in a new period nothing is spent yet
        return
    budget.update(warned_at=Now())
    _alert_people(tenant_id, row)


def end_wait(tenant_id: UUID, activity_id: UUID) -> None:
    """Delete the budget wait of an activity that has ended. In the transaction of its end."""
    BudgetWait.objects.for_tenant(tenant_id).filter(activity_id=activity_id).delete()


def waits_of(tenant_id: UUID, activity_ids: Sequence[UUID]) -> dict[UUID, BudgetWait]:
    """Return the budget waits of these activities, by activity id, each with its budget. In the caller's `tenant_scope`.

    Without those for a deleted budget, which releases its work soon.
    """
    if not activity_ids:
        return {}
    rows = BudgetWait.objects.for_tenant(tenant_id).filter(
        activity_id__in=activity_ids, budget__deleted_at=None
    )
    return {wait.activity_id: wait for wait in rows.select_related("budget")}


def needing_work() -> QuerySet[Any]:
    """Return budgets with activities to release or figures to recount."""
    return money.list_awaited_budgets() | money.to_recount()


def stale_reservations() -> QuerySet[Any]:
    """Return reservations whose run has ended, because it was cancelled or lost."""
    live = ActivityRun.objects.filter(pk=OuterRef("run_id"), status="running")
    return Reservation.objects.filter(~Exists(live))


def release_where_room() -> int:
    """Recount budgets, and release activities that now fit; returns how many. Safe to run in several processes at once."""
    for budget_id, tenant_id in _RECOUNTS.turn(sweeps.pages(money.to_recount(), "pk", "tenant_id")):
        with _one_of_many(budget_id):
            money.recount(tenant_id, budget_id)
    released = 0
    for budget_id, tenant_id in _AWAITED.turn(sweeps.pages(money.list_awaited_budgets(), "pk", "tenant_id")):
        with _one_of_many(budget_id):
            released += release(tenant_id, budget_id)
    return released


def _one_of_many(budget_id: UUID) -> AbstractContextManager[None]:
    return outages.one_of_many(
        logger, "Budget could not be processed", action="budget_failed", budget=str(budget_id)
    )


def release_stale_reservations() -> int:
    """Release the reservations of runs that have ended; returns how many."""
    released = 0
    for _, run_id, tenant_id in _RESERVATIONS.turn(
        sweeps.pages(stale_reservations(), "pk", "run_id", "tenant_id")
    ):
        with (
            outages.one_of_many(
                logger, "Reservations not released", action="reservations_kept", tenant=str(tenant_id)
            ),
            tenant_scope(tenant_id),
        ):
            money.release(tenant_id, [run_id])
            released += 1
    return released


def release(tenant_id: UUID, budget_id: UUID) -> int:
    """Release as many of the activities that wait for the budget as it has room for; returns how many.

    A released activity reserves again when it starts, so releasing one too many only costs a start.
    """
    activity_ids = _choose_waiting(tenant_id, budget_id)
    released = _release_activities(tenant_id, activity_ids)
    _update_waiting(tenant_id, budget_id)
    return released


def _update_waiting(tenant_id: UUID, budget_id: UUID) -> None:
    with tenant_scope(tenant_id):
        budget = Budget.objects.for_tenant(tenant_id).filter(pk=budget_id)
        # Lock before reading: an activity that begins to wait now waits for this lock, and then updates the budget again.
        if budget.select_for_update().first() is None:
            return
        waits = BudgetWait.objects.for_tenant(tenant_id).filter(budget_id=budget_id)
        remaining = waits.aggregate(since=Min("since"), wanted=Min("amount"))
        budget.update(waiting_since=remaining["since"], wanted=remaining["wanted"])


def estimate_again() -> int:
    """Update what work needs that waits for a budget without an estimate, because the role's estimate or its average may have changed.

    Returns for how many activities it has changed. What fits now is released as after any other change.
    """
    changed = 0
    for budget_id, tenant_id in _ESTIMATES.turn(
        sweeps.pages(money.list_awaited_estimates(), "pk", "tenant_id")
    ):
        with _one_of_many(budget_id):
            changed += _estimate_waiting(tenant_id, budget_id)
    return changed


def _estimate_waiting(tenant_id: UUID, budget_id: UUID) -> int:
    changed = 0
    with tenant_scope(tenant_id):
        budget = Budget.objects.for_tenant(tenant_id).select_for_update().get(pk=budget_id)
        waits = BudgetWait.objects.for_tenant(tenant_id).filter(budget_id=budget_id)
        activities = Activity.objects.for_tenant(tenant_id)
        waiting = activities.filter(pk__in=waits.values("activity_id"))
        agents = Agent.objects.filter(role__in=waiting.values("agent_role"))
        for role, options in agents.values_list("role", "options"):
            dollars, tokens = estimate(tenant_id, role, options)
            need = dollars if budget.unit == BudgetUnit.DOLLARS else tokens
            of_role = activities.filter(agent_role=role, pk=OuterRef("activity_id"))
            changed += waits.filter(Exists(of_role)).exclude(amount=need).update(amount=need)
    if changed:
        _update_waiting(tenant_id, budget_id)
    return changed


def _choose_waiting(tenant_id: UUID, budget_id: UUID) -> list[UUID]:
    """Choose the activities to release. In a transaction of its own, because activities must be locked before budgets."""
    with tenant_scope(tenant_id):
        rows = Budget.objects.for_tenant(tenant_id).select_for_update()
        budget = rows.filter(pk=budget_id).first()
        if budget is None:
            return []
        queue = (
            BudgetWait.objects.for_tenant(tenant_id).filter(budget_id=budget_id).order_by("priority", "since")
        )
        if budget.deleted_at is not None:
            return list(queue.values_list("activity_id", flat=True)[:AT_ONCE])
        money.roll(budget)
        budget.save()
        room = budget.cap - budget.spent - budget.reserved
        # What does not fit must not fill the page, or it would hold back what fits.
        first = list(queue.filter(amount__lte=room).values_list("activity_id", "amount")[:AT_ONCE])
    fitting = []
    for activity_id, amount in first:
        if amount <= room and room > 0:
            room -= amount
            fitting.append(activity_id)
    return fitting


def _release_activities(tenant_id: UUID, activity_ids: list[UUID]) -> int:
    if not activity_ids:
        return 0
    with tenant_scope(tenant_id):
        activity_tree.lock(tenant_id, activity_ids)
        wakes = Wake.objects.for_tenant(tenant_id).filter(
            activity_id__in=activity_ids, state="pending", cause=CAUSE, due_at=NEVER
        )
        # A start date that was set meanwhile still applies; such a wake no longer waits for the budget.
        dated = Activity.objects.filter(pk=OuterRef("activity_id"), not_before__gt=Now())
        postponed = wakes.filter(Exists(dated))
        count = postponed.update(due_at=Subquery(dated.values("not_before")), cause="wake")
        count += wakes.update(due_at=Now())
        BudgetWait.objects.for_tenant(tenant_id).filter(activity_id__in=activity_ids).delete()
    logger.info("Work released by a budget", extra={"action": "budget_released", "count": count})
    return len(activity_ids)
