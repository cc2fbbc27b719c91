"""Scopes and units of budgets, costs from before their creation, and the statements that they take."""

from __future__ import annotations

import time
from decimal import Decimal
from types import SimpleNamespace

import pytest

from activities import budgets as activity_budgets
from activities.execution import reports
from agents.contracts import Usage
from tenants import caches, money
from tenants.context import tenant_scope
from tenants.models import Budget, Tenant
from tests.engine import Engine
from tests.integration.test_costs import counted, keep_settings
from tests.spending import (
    accept,
    accept_run,
    broken_invariants,
    complete_at_cost,
    dollars,
    make_budget,
    reload,
    run_token_of,
    spent_and_reserved,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_the_smallest_room_of_all_matching_scopes_and_units_decides(engine: Engine, acme: Tenant) -> None:
    make_budget(acme, "100", name="all")
    two_runs = make_budget(acme, "2", unit="runs", agent_role="qa", name="two runs of qa")
    tokens = make_budget(
        acme, "1000", unit="tokens", estimate=Decimal(400), agent_role="dev", name="tokens of dev"
    )
    engine.agent.behaviour = accept
    of_qa, of_dev = engine.submit(acme, "qa", count=4), engine.submit(acme, "dev", count=4)
    (of_seo,) = engine.submit(acme, "seo")

    engine.drain()

    assert [engine.status(acme, one) for one in of_qa].count("in_progress") == 2
    assert [engine.status(acme, one) for one in of_dev].count("in_progress") == 2
    assert engine.status(acme, of_seo) == "in_progress"
    assert (reload(two_runs).spent, reload(tokens).reserved) == (2, 800)
    running = next(one for one in of_dev if engine.status(acme, one) == "in_progress")
    assert reports.beat(run_token_of(acme, running), progress=None, usage=Usage(500, 100)) is None
    assert "tokens" in str(reports.beat(run_token_of(acme, running), progress=None, usage=Usage(500, 200)))
    assert broken_invariants() == []


def test_a_new_budget_counts_earlier_usage_of_its_period(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = complete_at_cost("0.25")
    engine.submit(acme, count=2)
    engine.submit(acme, "dev")
    engine.drain()

    assert spent_and_reserved(make_budget(acme)) == ("0.75", "0.00")
    assert spent_and_reserved(make_budget(acme, agent_role="dev", period="month")) == ("0.25", "0.00")


def test_wrong_budget_figures_are_recounted(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme)
    run = accept_run(engine, acme)
    reports.beat(run, progress=None, usage=dollars("0.10"))
    with tenant_scope(acme.pk):
        Budget.objects.filter(pk=budget.pk).update(spent=0, reserved=5, recount_at="2026-01-01T00:00:00Z")

    activity_budgets.release_where_room()

    assert (spent_and_reserved(budget), reload(budget).recount_at) == (("0.10", "0.20"), None)


def test_budgets_of_different_tenants_are_separate(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    budget = make_budget(acme, "0")
    engine.agent.behaviour = complete_at_cost("5")
    (theirs,) = engine.submit(other_tenant)

    engine.drain()

    assert (engine.status(other_tenant, theirs), spent_and_reserved(budget)) == ("done", ("0.00", "0.00"))


@pytest.mark.parametrize(("cost", "more"), [(None, 2), ("0.10", 3)])
def test_a_budget_costs_one_statement_at_the_start_and_one_at_the_end_of_a_run(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, cost: str | None, more: int
) -> None:
    """A report takes one more statement, with or without budgets. `test_costs` counts those without budgets and reports."""
    make_budget(acme, "100")
    keep_settings(monkeypatch)
    if cost:
        engine.agent.behaviour = complete_at_cost(cost)
    engine.submit(acme)
    engine.drain()

    with counted(monkeypatch) as counts:
        engine.submit(acme)
        engine.drain()

    assert (counts["statements"], counts["transactions"]) == (6 + more, 3)


def test_a_new_budget_takes_effect_within_two_seconds(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.submit(acme)
    engine.drain()  # this process has cached that no budget exists
    money.create_budget(acme.pk, {"name": "Stop", "cap": Decimal(0)})
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2)

    monkeypatch.setattr(caches, "time", later)
    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert engine.status(acme, activity_id) == "created"
