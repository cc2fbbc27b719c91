"""Budgets and the usage ledger in the admin: superusers can read them, nobody can change them."""

from __future__ import annotations

from django.test import Client
from django.urls import reverse

from activities.execution import reports
from tenants.context import tenant_scope
from tenants.models import Budget, BudgetWait, Reservation, Tenant, UsageEntry
from tests.browsing import list_of, page_of, words
from tests.engine import Engine
from tests.spending import accepted, capped, finished


def test_budgets_and_usage_entries_are_displayed(root: Client, engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    budget = capped(tenant, "5", agent_role="qa", name="Questions")
    run = accepted(engine, tenant)
    reports.complete(run, finished("0.40"), actor="test")
    with tenant_scope(tenant.pk):
        entry = UsageEntry.objects.get(runs=0)

    listed, page = words(root.get(list_of(Budget))), words(root.get(page_of(budget)))
    assert "Questions" in listed
    assert "role qa" in listed
    assert "0.4" in page
    assert "0.4" in words(root.get(list_of(UsageEntry)))
    assert str(run.run_id) in words(root.get(page_of(entry)))
    assert "0.4" in words(root.get(list_of(UsageEntry), {"q": str(run.activity_id)}))


def test_reservations_and_waits_of_a_budget_are_displayed(
    root: Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    budget = capped(tenant, "0.40", name="Little")
    run = accepted(engine, tenant)
    (waiting_id,) = engine.submit(tenant)
    engine.drain()
    with tenant_scope(tenant.pk):
        reservation, wait = budget.reservations.get(), budget.waits.get()

    assert str(run.run_id) in words(root.get(list_of(Reservation)))
    assert str(waiting_id) in words(root.get(list_of(BudgetWait)))
    for row in (reservation, wait):
        assert "Little" in words(root.get(page_of(row)))


def test_budgets_and_usage_entries_cannot_be_added_changed_or_deleted(
    root: Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    budget = capped(tenant)
    accepted(engine, tenant)
    with tenant_scope(tenant.pk):
        entry = UsageEntry.objects.get()

    for row in (budget, entry):
        assert root.get(page_of(row)).status_code == 200
        assert root.post(page_of(row), {"cap": "0"}).status_code == 403
        assert root.post(f"{page_of(row).removesuffix('change/')}delete/", {"post": "yes"}).status_code == 403
        assert root.get(reverse(f"admin:tenants_{row._meta.model_name}_add")).status_code == 403
