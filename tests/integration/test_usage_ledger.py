"""The usage ledger: each token and dollar is entered once, however often and in whatever order agents report."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from django.db import ProgrammingError
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.execution import reports, results
from activities.models import ActivityRun
from agents import prices
from agents.contracts import Usage
from agents.prices import price_of
from tenants import money
from tenants.context import tenant_scope
from tenants.models import Tenant, UsageEntry
from tests.damage import without_guards
from tests.engine import Engine
from tests.spending import (
    accept_run,
    broken_invariants,
    ledger_total,
    make_budget,
    reload,
    result_costing,
    run_token_of,
)

SONNET = "claude-sonnet-4-5"
TOTALS = st.builds(
    Usage,
    input_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(0, 10**6),
    cost_usd=st.none() | st.decimals(0, 100, places=4),
    model=st.just(SONNET),
)
#: The reports of a run, in any order and some repeated, and how many of them come before its end.
STORY = st.lists(TOTALS, min_size=1, max_size=6).flatmap(
    lambda reports_sent: st.tuples(
        st.permutations(reports_sent + reports_sent[:2]), st.integers(0, len(reports_sent))
    )
)


def report(run: Any, usage: Usage) -> None:
    with suppress(reports.RunOver):
        reports.beat(run, progress=None, usage=usage)


@pytest.mark.usefixtures("one_at_a_time")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stories=st.lists(STORY, min_size=1, max_size=3))
def test_the_ledger_adds_up_exactly_to_what_runs_have_reported(
    engine: Engine, acme: Tenant, stories: list[Any]
) -> None:
    before = ledger_total(acme)
    expected = Decimal(0)
    for reports_sent, ends_after in stories:
        run = accept_run(engine, acme)
        for usage in reports_sent[:ends_after]:
            report(run, usage)
        results.record_stalled(run)  # the remaining reports arrive late
        for usage in reports_sent[ends_after:]:
            report(run, usage)
        engine.drain()
        reports.complete(run_token_of(acme, run.activity_id), result_costing("0"), actor="test")
        expected += _cost_of(reports_sent)

    assert ledger_total(acme) - before == expected
    assert _entries_that_differ_from_reports(acme) == []
    with tenant_scope(acme.pk):
        rows = money.ledger_entries(acme.pk)
        total = rows.aggregate(**money.FIGURES)
        for column in ("agent_role", "activity_id", "run_id", "day", "model", "deliverable_id"):
            groups = rows.values(column).annotate(**money.FIGURES)
            assert {name: sum(group[name] for group in groups) for name in total} == total


def _entries_that_differ_from_reports(tenant: Tenant) -> list[Any]:
    with tenant_scope(tenant.pk):
        entries = (
            money.ledger_entries(tenant.pk)
            .values("run_id")
            .annotate(
                sum_input=Sum("input_tokens"),
                sum_output=Sum("output_tokens"),
                sum_dollars=Sum("dollars"),
                sum_runs=Sum("runs"),
            )
        )
        usages = dict(ActivityRun.objects.values_list("id", "usage"))
        return [
            group
            for group in entries
            if (group["sum_runs"], group["sum_input"], group["sum_output"], group["sum_dollars"])
            != _reported(usages[group["run_id"]])
        ]


def _reported(usage: Any) -> tuple[int, int, int, Decimal]:
    return 1, usage["input_tokens"], usage["output_tokens"], Decimal(usage["cost_usd"] or 0)


def _cost_of(reports_sent: list[Usage]) -> Decimal:
    costs = [usage.cost_usd for usage in reports_sent if usage.cost_usd is not None]
    if costs:
        return max(costs)
    price = price_of(SONNET)
    assert price is not None
    most_in, most_out = (
        max(one.input_tokens for one in reports_sent),
        max(one.output_tokens for one in reports_sent),
    )
    return most_in * price.input + most_out * price.output


def test_a_run_is_entered_at_its_start_and_its_entries_say_what_was_paid_for(
    engine: Engine, acme: Tenant
) -> None:
    run = accept_run(engine, acme)

    reports.beat(run, progress=None, usage=Usage(1000, 100, None, SONNET))
    reports.complete(run, result_costing("0.02"), actor="test")

    with tenant_scope(acme.pk):
        first, estimated, reported = UsageEntry.objects.order_by("id")
    assert (first.runs, first.run_id, first.agent_role) == (1, run.run_id, "qa")
    assert (estimated.dollars, estimated.input_tokens, estimated.model) == (Decimal("0.0045"), 1000, SONNET)
    assert (reported.dollars, reported.input_tokens) == (Decimal("0.0155"), 0), (
        "the reported cost replaces the estimate"
    )
    assert broken_invariants() == []


def test_tokens_of_a_model_without_a_price_are_counted_and_marked(engine: Engine, acme: Tenant) -> None:
    run = accept_run(engine, acme)

    reports.beat(run, progress=None, usage=Usage(10, 5, None, "homemade-1"))

    with tenant_scope(acme.pk):
        entry = UsageEntry.objects.order_by("id").last()
        assert entry is not None
        assert (entry.dollars, entry.input_tokens, entry.unpriced) == (0, 10, True)
        assert ActivityRun.objects.get(pk=run.run_id).usage["cost_usd"] is None


def test_nonsense_from_an_adapter_changes_no_sum(engine: Engine, acme: Tenant) -> None:
    run = accept_run(engine, acme)

    for nonsense in (Decimal("NaN"), Decimal("Infinity"), Decimal(-1)):
        assert reports.count_usage(run, Usage(-5, 10**30, nonsense, "x" * 999 + "\x00")) is None
    assert reports.count_usage(run, Usage(1, 0, Decimal("1e30"))) is None

    assert ledger_total(acme) == 1_000_000
    with tenant_scope(acme.pk):
        tokens = money.ledger_entries(acme.pk).aggregate(**money.FIGURES)["sum_output_tokens"]
    assert tokens == 10**12
    assert broken_invariants() == []


def test_an_estimate_is_the_average_cost_of_runs_of_the_role(engine: Engine, acme: Tenant) -> None:
    from activities import budgets

    for cost in ("0.10", "0.30"):
        reports.complete(accept_run(engine, acme), result_costing(cost), actor="test")
    budgets._averages.clear()
    budget = make_budget(acme, estimate=None)

    accept_run(engine, acme)

    assert reload(budget).reserved == Decimal("0.20")


def test_entries_of_the_ledger_can_only_be_added(engine: Engine, acme: Tenant) -> None:
    accept_run(engine, acme)

    with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(acme.pk):
        UsageEntry.objects.update(dollars=0)
    with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(acme.pk):
        UsageEntry.objects.filter(runs=1).delete()


def test_configured_prices_come_first_and_the_bundled_list_works_without_the_library(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ORCHESTRATOR_MODEL_PRICES = {SONNET: ["1.5", 6]}
    assert price_of(SONNET) == prices.Price(Decimal("0.0000015"), Decimal("0.000006"))

    settings.ORCHESTRATOR_MODEL_PRICES = {}
    prices._find_in_list.cache_clear()
    monkeypatch.setattr(prices, "_by_library", lambda model: None)
    try:
        assert price_of(SONNET) == prices.Price(Decimal("0.000003"), Decimal("0.000015"))
        mini = price_of("openai/gpt-4o-mini-2024-07-18")
        assert mini is not None
        assert mini.input == Decimal("0.00000015"), "the longest matching name"
        assert price_of("homemade-1") is None
        assert price_of(None) is None
    finally:
        prices._find_in_list.cache_clear()


@pytest.mark.parametrize(
    ("invariant", "damage"),
    [
        ("I41", "UPDATE tenants_reservation SET amount = amount + 1"),
        ("I42", "UPDATE tenants_usageentry SET dollars = dollars + 1 WHERE runs = 0"),
        ("I42", "DELETE FROM tenants_usageentry WHERE runs = 1"),
        ("I43", "UPDATE tenants_budget SET spent = cap + 1"),
    ],
)
def test_damaged_figures_are_reported_as_broken_invariants(
    engine: Engine, acme: Tenant, invariant: str, damage: str
) -> None:
    make_budget(acme)
    reports.beat(accept_run(engine, acme), progress=None, usage=Usage(1, 1, Decimal("0.10")))
    assert broken_invariants() == []

    with without_guards() as run:
        assert run(damage)

    assert broken_invariants() == [invariant]
