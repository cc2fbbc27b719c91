"""The ledger: whatever agents report, how often and in which order, each token and each dollar is entered once."""

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
from tests.damage import past_all_guards
from tests.engine import Engine
from tests.spending import accepted, broken_invariants, capped, entered, finished, now, token_of

SONNET = "claude-sonnet-4-5"
TOTALS = st.builds(
    Usage,
    input_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(0, 10**6),
    cost_usd=st.none() | st.decimals(0, 100, places=4),
    model=st.just(SONNET),
)
#: What a run says, in any order and repeated, and how many of these before its end.
STORY = st.lists(TOTALS, min_size=1, max_size=6).flatmap(
    lambda said: st.tuples(st.permutations(said + said[:2]), st.integers(0, len(said)))
)


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    return tenant


def told(run: Any, usage: Usage) -> None:
    with suppress(reports.RunOver):
        reports.beat(run, progress=None, usage=usage)


@pytest.mark.usefixtures("one_at_a_time")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stories=st.lists(STORY, min_size=1, max_size=3))
def test_the_ledger_adds_up_to_what_runs_have_reported_to_the_last_digit(
    engine: Engine, acme: Tenant, stories: list[Any]
) -> None:
    before = entered(acme)
    expected = Decimal(0)
    for said, ends_after in stories:
        run = accepted(engine, acme)
        for usage in said[:ends_after]:
            told(run, usage)
        results.record_stalled(run)  # the rest comes late
        for usage in said[ends_after:]:
            told(run, usage)
        engine.drain()
        reports.complete(token_of(acme, run.activity_id), finished("0"), actor="test")
        expected += _cost_of(said)

    assert entered(acme) - before == expected
    assert _of_which_the_ledger_says_otherwise(acme) == []
    with tenant_scope(acme.pk):
        rows = money.ledger_entries(acme.pk)
        total = rows.aggregate(**money.FIGURES)
        for column in ("agent_role", "activity_id", "run_id", "day", "model", "deliverable_id"):
            groups = rows.values(column).annotate(**money.FIGURES)
            assert {name: sum(group[name] for group in groups) for name in total} == total


def _of_which_the_ledger_says_otherwise(tenant: Tenant) -> list[Any]:
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
            != _said(usages[group["run_id"]])
        ]


def _said(usage: Any) -> tuple[int, int, int, Decimal]:
    return 1, usage["input_tokens"], usage["output_tokens"], Decimal(usage["cost_usd"] or 0)


def _cost_of(said: list[Usage]) -> Decimal:
    costs = [usage.cost_usd for usage in said if usage.cost_usd is not None]
    if costs:
        return max(costs)
    price = price_of(SONNET)
    assert price is not None
    most_in, most_out = max(one.input_tokens for one in said), max(one.output_tokens for one in said)
    return most_in * price.input + most_out * price.output


def test_an_entry_tells_for_what_it_was_and_begins_with_the_run(engine: Engine, acme: Tenant) -> None:
    run = accepted(engine, acme)

    reports.beat(run, progress=None, usage=Usage(1000, 100, None, SONNET))
    reports.complete(run, finished("0.02"), actor="test")

    with tenant_scope(acme.pk):
        began, reckoned, said = UsageEntry.objects.order_by("id")
    assert (began.runs, began.run_id, began.agent_role) == (1, run.run_id, "qa")
    assert (reckoned.dollars, reckoned.input_tokens, reckoned.model) == (Decimal("0.0045"), 1000, SONNET)
    assert (said.dollars, said.input_tokens) == (Decimal("0.0155"), 0), "what the agent says takes its place"
    assert broken_invariants() == []


def test_tokens_of_a_model_without_a_price_are_counted_and_marked(engine: Engine, acme: Tenant) -> None:
    run = accepted(engine, acme)

    reports.beat(run, progress=None, usage=Usage(10, 5, None, "homemade-1"))

    with tenant_scope(acme.pk):
        entry = UsageEntry.objects.order_by("id").last()
        assert entry is not None
        assert (entry.dollars, entry.input_tokens, entry.unpriced) == (0, 10, True)
        assert ActivityRun.objects.get(pk=run.run_id).usage["cost_usd"] is None


def test_nonsense_of_an_adapter_spoils_no_sum(engine: Engine, acme: Tenant) -> None:
    run = accepted(engine, acme)

    for nonsense in (Decimal("NaN"), Decimal("Infinity"), Decimal(-1)):
        assert reports.count_usage(run, Usage(-5, 10**30, nonsense, "x" * 999 + "\x00")) is None
    assert reports.count_usage(run, Usage(1, 0, Decimal("1e30"))) is None

    assert entered(acme) == 1_000_000
    with tenant_scope(acme.pk):
        tokens = money.ledger_entries(acme.pk).aggregate(**money.FIGURES)["sum_output_tokens"]
    assert tokens == 10**12
    assert broken_invariants() == []


def test_an_estimate_follows_what_runs_of_the_role_took(engine: Engine, acme: Tenant) -> None:
    from activities import budgets

    for cost in ("0.10", "0.30"):
        reports.complete(accepted(engine, acme), finished(cost), actor="test")
    budgets._averages.clear()
    budget = capped(acme, estimate=None)

    accepted(engine, acme)

    assert now(budget).reserved == Decimal("0.20")


def test_the_ledger_is_only_ever_added_to(engine: Engine, acme: Tenant) -> None:
    accepted(engine, acme)

    with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(acme.pk):
        UsageEntry.objects.update(dollars=0)
    with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(acme.pk):
        UsageEntry.objects.filter(runs=1).delete()


def test_the_platform_s_own_prices_come_first_and_the_kept_list_serves_without_the_library(
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
        assert mini.input == Decimal("0.00000015"), "the longest name that fits"
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
def test_damage_to_figures_is_found(engine: Engine, acme: Tenant, invariant: str, damage: str) -> None:
    capped(acme)
    reports.beat(accepted(engine, acme), progress=None, usage=Usage(1, 1, Decimal("0.10")))
    assert broken_invariants() == []

    with past_all_guards() as run:
        assert run(damage)

    assert broken_invariants() == [invariant]
