"""What each statement of budgets writes: reservations, the begin of a period, and warnings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.db.models.functions import Now

from tenants import money
from tenants.context import tenant_scope
from tenants.models import Budget, BudgetWait, Reservation, Tenant
from tenants.money import BudgetedRun, Standing
from tests.engine import eventually, in_another_thread, somebody_waits_for_a_lock
from tests.spending import make_budget, reload

pytestmark = pytest.mark.usefixtures("database")

LONG_AGO = date(2020, 1, 1)


def new_run(tenant: Tenant) -> BudgetedRun:
    return BudgetedRun(tenant.pk, uuid4(), uuid4(), "qa", None)


def reserve(run: BudgetedRun) -> list[Standing]:
    with tenant_scope(run.tenant_id):
        return money.reserve(run, dollars=Decimal(0), tokens=Decimal(0))


def settle(run: BudgetedRun, dollars: str, *, ended: bool = False) -> list[Standing]:
    with tenant_scope(run.tenant_id):
        return money.settle(run, dollars=Decimal(dollars), tokens=0, ended=ended)


def change(budget: Budget, **fields: Any) -> None:
    with tenant_scope(budget.tenant_id):
        Budget.objects.filter(pk=budget.pk).update(**fields)


def test_a_run_reserves_in_all_its_budgets_and_waits_no_longer_or_in_none(tenant: Tenant) -> None:
    budgets = [make_budget(tenant), make_budget(tenant, "9", unit="runs")]
    full = make_budget(tenant, "0.25", estimate=Decimal(0))
    change(full, spent=Decimal("0.25"))
    run = new_run(tenant)

    def left() -> tuple[int, int, list[Decimal]]:
        with tenant_scope(tenant.pk):
            figures = [each.spent + each.reserved for each in map(reload, budgets)]
            return Reservation.objects.count(), BudgetWait.objects.count(), figures

    with tenant_scope(tenant.pk):
        BudgetWait.objects.create(
            tenant=tenant, budget=full, activity_id=run.activity_id, amount=0, priority=1
        )
    assert {each.id: each.has_room for each in reserve(run)} == {
        budgets[0].pk: True,
        budgets[1].pk: True,
        full.pk: False,
    }
    assert left() == (0, 1, [0, 0])

    change(full, deleted_at=Now())
    assert all(each.has_room for each in reserve(run))
    assert left() == (1, 0, [Decimal("0.30"), 1])


def test_a_run_without_budgets_waits_for_none(tenant: Tenant) -> None:
    budget, run = make_budget(tenant), new_run(tenant)
    with tenant_scope(tenant.pk):
        BudgetWait.objects.create(
            tenant=tenant, budget=budget, activity_id=run.activity_id, amount=0, priority=1
        )
    change(budget, deleted_at=Now())

    assert reserve(run) == []

    with tenant_scope(tenant.pk):
        assert not BudgetWait.objects.exists()


def test_a_budget_of_runs_counts_and_warns_anew_in_each_period(tenant: Tenant) -> None:
    budget = make_budget(tenant, "5", unit="runs", period="day")
    dollars = make_budget(tenant, "1.00", estimate=Decimal(0))
    change(budget, spent=4, overshoot=3, period_start=LONG_AGO, warned_at=Now())
    change(dollars, spent=Decimal("0.90"))

    warned = [each.id for _ in range(4) for each in reserve(new_run(tenant)) if each.warned]
    first = reload(budget)
    warned += [each.id for each in reserve(new_run(tenant)) if each.warned]

    assert (first.spent, first.overshoot, warned) == (4, 0, [budget.pk])
    assert reload(budget).warned_at == first.warned_at


def test_the_warning_of_an_earlier_period_replaces_none(tenant: Tenant) -> None:
    of_runs, dollars = make_budget(tenant, "1", unit="runs", period="day"), make_budget(tenant, period="day")
    for budget in (of_runs, dollars):
        change(budget, spent=1, overshoot=3, period_start=LONG_AGO, warned_at="2020-01-01T00:00:00Z")
    run = new_run(tenant)
    warned = [each.id for each in reserve(run) if each.warned]
    change(dollars, spent=1, overshoot=3, period_start=LONG_AGO, warned_at="2020-01-01T00:00:00Z")

    warned += [each.id for each in settle(run, "0.80") if each.warned]

    assert warned == [of_runs.pk, dollars.pk]
    for budget in map(reload, (of_runs, dollars)):
        assert (budget.period_start, budget.overshoot) == (money.start_of("day"), 0)
        assert budget.warned_at is not None
        assert budget.warned_at.date() > LONG_AGO
    first = reload(dollars)
    assert first.spent == Decimal("0.80")
    assert [each.warned for each in settle(run, "0.30")] == [False] * 2
    assert (reload(dollars).warned_at, reload(dollars).overshoot) == (first.warned_at, Decimal("0.10"))
    settle(run, "-0.30")
    assert reload(dollars).overshoot == Decimal("0.10"), "the cap was exceeded once"


def test_a_report_in_a_new_period_starts_it_without_a_warning(tenant: Tenant) -> None:
    budget = make_budget(tenant, period="day")
    change(budget, spent=1, period_start=LONG_AGO, warned_at=Now())

    assert [each.warned for each in settle(new_run(tenant), "0.10")] == [False]

    now = reload(budget)
    assert (now.spent, now.warned_at) == (Decimal("0.10"), None)


def test_a_run_is_over_although_it_has_a_reservation_only_if_the_cap_is_spent(tenant: Tenant) -> None:
    budget, run = make_budget(tenant), new_run(tenant)
    reserve(run)
    change(budget, cap=Decimal("0.20"))

    over = [settle(run, dollars)[0].over for dollars in ("0.10", "0.10", "0.01")]

    assert over == [False, False, True]


def test_a_corrected_cost_does_not_raise_the_reservation(tenant: Tenant) -> None:
    budget, run = make_budget(tenant), new_run(tenant)
    reserve(run)

    settle(run, "0.10")
    settle(run, "-0.05")

    now = reload(budget)
    assert (now.spent, now.reserved) == (Decimal("0.05"), Decimal("0.20"))


@pytest.mark.parametrize("is_of_one_run", [True, False])
@pytest.mark.parametrize("is_late", [True, False])
def test_a_report_and_a_release_at_the_same_time_deduct_each_reservation_once(
    tenant: Tenant, is_of_one_run: bool, is_late: bool
) -> None:
    budget, run, other = make_budget(tenant), new_run(tenant), new_run(tenant)
    for each in (run, other, new_run(tenant)):
        reserve(each)
    released = run if is_of_one_run else other

    def release() -> None:
        with tenant_scope(tenant.pk):
            money.release(tenant.pk, [released.run_id])

    def report() -> None:
        settle(run, "0.10", ended=True)

    first, second = (release, report) if is_late else (report, release)
    with ThreadPoolExecutor(1) as pool:
        with tenant_scope(tenant.pk):
            first()
            late = pool.submit(in_another_thread, second)
            eventually(somebody_waits_for_a_lock)
        late.result()

    assert reload(budget).reserved == Decimal("0.60" if is_of_one_run else "0.30")
    with tenant_scope(tenant.pk):
        assert Reservation.objects.count() == (2 if is_of_one_run else 1)
