"""Budgets and the usage ledger in the admin: superusers can read them, nobody can change them."""

from __future__ import annotations

from django.test import Client
from django.urls import reverse

from activities.execution import reports
from tenants.context import tenant_scope
from tenants.models import Budget, BudgetWait, Reservation, Tenant, UsageEntry
from tests.browsing import list_url, page_url, visible_text
from tests.engine import Engine
from tests.spending import accept_run, make_budget, result_costing


def test_budgets_and_usage_entries_are_displayed(root: Client, engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    budget = make_budget(tenant, "5", agent_role="qa", name="Questions")
    run = accept_run(engine, tenant)
    reports.complete(run, result_costing("0.40"), actor="test")
    with tenant_scope(tenant.pk):
        entry = UsageEntry.objects.get(runs=0)

    listed, page = visible_text(root.get(list_url(Budget))), visible_text(root.get(page_url(budget)))
    assert "Questions" in listed
    assert "role qa" in listed
    assert "0.4" in page
    assert "0.4" in visible_text(root.get(list_url(UsageEntry)))
    assert str(run.run_id) in visible_text(root.get(page_url(entry)))
    assert "0.4" in visible_text(root.get(list_url(UsageEntry), {"q": str(run.activity_id)}))


def test_reservations_and_waits_of_a_budget_are_displayed(
    root: Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    budget = make_budget(tenant, "0.40", name="Little")
    run = accept_run(engine, tenant)
    (waiting_id,) = engine.submit(tenant)
    engine.drain()
    with tenant_scope(tenant.pk):
        reservation, wait = budget.reservations.get(), budget.waits.get()

    assert str(run.run_id) in visible_text(root.get(list_url(Reservation)))
    assert str(waiting_id) in visible_text(root.get(list_url(BudgetWait)))
    for row in (reservation, wait):
        assert "Little" in visible_text(root.get(page_url(row)))


def test_budgets_and_usage_entries_cannot_be_added_changed_or_deleted(
    root: Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    budget = make_budget(tenant)
    accept_run(engine, tenant)
    with tenant_scope(tenant.pk):
        entry = UsageEntry.objects.get()

    for row in (budget, entry):
        assert root.get(page_url(row)).status_code == 200
        assert root.post(page_url(row), {"cap": "0"}).status_code == 403
        assert (
            root.post(f"{page_url(row).removesuffix('change/')}delete/", {"post": "yes"}).status_code == 403
        )
        assert root.get(reverse(f"admin:tenants_{row._meta.model_name}_add")).status_code == 403
