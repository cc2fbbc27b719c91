"""Budgets during simultaneous starts, reports, ends and changes of caps."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from activities import budgets as activity_budgets
from activities import tasks
from activities.exceptions import RunSuperseded
from activities.execution import reports, results
from agents.contracts import Accepted, AgentRequest
from tenants import money
from tenants.models import Tenant
from tests.engine import Engine, simultaneously
from tests.spending import (
    accept_run,
    broken_invariants,
    dollars,
    make_budget,
    release_waiting_work,
    reload,
    result_costing,
    spent_and_reserved,
)

pytestmark = [pytest.mark.concurrency, pytest.mark.usefixtures("one_at_a_time")]


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant, max_concurrency=20)
    return tenant


@pytest.fixture
def wide(database: None) -> Iterator[Engine]:
    """An engine with one role and twenty seats."""
    running = Engine(["qa"], seats=20)
    yield running
    running.close()


def test_twenty_simultaneous_starts_begin_only_as_many_runs_as_the_cap_allows(
    wide: Engine, tenant: Tenant
) -> None:
    engine, acme = wide, tenant
    engine.serve(acme, max_concurrency=20)
    budget = make_budget(acme)
    seen: list[Decimal] = []

    def accept(request: AgentRequest) -> Accepted:
        found = reload(budget)
        seen.append(found.spent + found.reserved)
        return Accepted()

    engine.agent.behaviour = accept
    ids = engine.submit(acme, count=20)
    messages: list[Any] = [engine.take() for _ in range(20)]
    assert all(messages)

    simultaneously(*(partial(tasks.run, **message) for message in messages))

    statuses = [engine.status(acme, one) for one in ids]
    assert (statuses.count("in_progress"), statuses.count("created")) == (3, 17)
    assert spent_and_reserved(budget) == ("0.00", "0.90")
    assert max(seen) <= 1
    assert broken_invariants() == []


def test_simultaneous_reports_ends_and_starts_leave_budget_figures_exact(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme, "3.00")
    runs = [accept_run(engine, acme) for _ in range(8)]
    waiting = engine.submit(acme, count=4)

    actions: list[Any] = [partial(reports.beat, run, progress=None, usage=dollars("0.20")) for run in runs]
    actions += [partial(reports.complete, run, result_costing("0.25"), actor="test") for run in runs[:4]]
    actions += [partial(results.record_stalled, run) for run in runs[3:6]]
    actions += [engine.deliver, partial(money.change_budget, acme.pk, budget.pk, {"cap": Decimal("2.50")})]
    outcomes = simultaneously(*actions)

    expected = (RunSuperseded, reports.RunOver)
    assert [one for one in outcomes if isinstance(one, Exception) and not isinstance(one, expected)] == []
    assert broken_invariants() == []
    assert all(engine.status(acme, one) in ("created", "in_progress") for one in waiting)


def test_raising_a_cap_while_work_is_deferred_leaves_none_behind(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme, "0.10")
    ids = engine.submit(acme, count=6)
    messages: list[Any] = [engine.take() for _ in range(6)]

    simultaneously(
        *(partial(tasks.run, **message) for message in messages),
        partial(money.change_budget, acme.pk, budget.pk, {"cap": Decimal(10)}),
        activity_budgets.release_where_room,
    )
    release_waiting_work(engine)
    engine.drain()

    assert [engine.status(acme, one) for one in ids] == ["done"] * 6
    assert broken_invariants() == []


def test_simultaneous_reports_of_one_run_count_each_dollar_once(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme, "10")
    run = accept_run(engine, acme)

    costs = ["0.10", "0.40", "0.40", "0.20", "0.30", "0.40"]
    simultaneously(
        *(partial(reports.beat, run, progress=None, usage=dollars(cost, tokens=7)) for cost in costs),
        partial(reports.complete, run, result_costing("0.40"), actor="test"),
    )

    assert spent_and_reserved(budget) == ("0.40", "0.00")
    assert broken_invariants() == []
