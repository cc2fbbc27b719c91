"""Runs start and continue only while their budgets cover their costs."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from activities import background_tasks, cancellation, wait_reasons
from activities import budgets as activity_budgets
from activities.execution import agent_tools, reports, results
from activities.maintenance import recovery
from activities.models import Alert, Wake
from activities.states import Status
from agents import configuration
from agents.contracts import AgentRequest, RunLink
from agents.exceptions import RetryableAgentError
from tenants import clock, money
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.spending import (
    accepted,
    accepting,
    broken_invariants,
    capped,
    costing,
    dollars,
    entered,
    finished,
    kept,
    let_go,
    now,
    standing,
    token_of,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_run_is_counted_when_it_ends_and_its_reservation_is_released(engine: Engine, acme: Tenant) -> None:
    budget = capped(acme)
    engine.agent.behaviour = costing("0.25")
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert engine.status(acme, activity_id) == "done"
    assert (standing(budget), kept(acme), entered(acme)) == (("0.25", "0.00"), [], Decimal("0.25"))
    assert broken_invariants() == []


def test_a_budget_for_three_starts_three_and_the_others_hold_no_slot(engine: Engine, acme: Tenant) -> None:
    budget = capped(acme)
    engine.agent.behaviour = accepting
    ids = engine.submit(acme, count=20)

    engine.drain()

    statuses = [engine.status(acme, one) for one in ids]
    assert (statuses.count("in_progress"), statuses.count("created")) == (3, 17)
    assert standing(budget) == ("0.00", "0.90")
    with tenant_scope(acme.pk):
        assert set(Wake.objects.filter(state="pending").values_list("cause", "due_at")) == {
            ("budget", activity_budgets.NEVER)
        }
    assert engine.messages() == 0
    assert broken_invariants() == []


def test_a_run_whose_report_crosses_the_cap_is_told_to_stop_and_uses_up_no_attempt(
    engine: Engine, acme: Tenant
) -> None:
    budget = capped(acme)
    run, other = accepted(engine, acme), accepted(engine, acme)

    assert reports.beat(run, progress=None, usage=dollars("0.69")) is None
    reason = reports.beat(run, progress=None, usage=dollars("0.80"))

    assert "All of it is used up: 0.8 of 1 dollars spent" in str(reason)
    stopped = engine.get(acme, run.activity_id)
    assert (stopped.status, stopped.attempts, (stopped.error or {})["code"]) == ("created", 0, "budget")
    assert reports.beat(other, progress=None, usage=dollars("0.10")) is None, "what is kept for it is its own"
    with pytest.raises(reports.RunOver, match="used up"):
        reports.beat(run, progress=None, usage=dollars("0.81"))
    assert (standing(budget), f"{now(budget).overshoot:.2f}") == (("0.91", "0.20"), "0.11")
    assert broken_invariants() == []


def test_an_agent_in_a_worker_is_told_through_its_link_to_stop(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents import adapters

    capped(acme)
    answers: list[Any] = []

    class Inside:
        def run(self, request: AgentRequest, *, link: RunLink) -> Any:
            answers.extend(
                [link.count_usage(dollars("0.90")), link.count_usage(dollars("1.10")), link.stop_reason()]
            )
            return finished("1.10")

    monkeypatch.setattr(adapters, "get", lambda name: Inside())
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert answers[0] is None
    assert "used up" in answers[1]
    assert "used up" in answers[2]
    assert (engine.status(acme, activity_id), entered(acme)) == ("created", Decimal("1.10"))
    assert engine.messages() == 0
    assert wait_reasons.why(acme.pk, activity_id).code == "budget"


def test_a_higher_cap_releases_only_as_much_waiting_work_as_it_holds(engine: Engine, acme: Tenant) -> None:
    budget = capped(acme, "0.50")
    engine.agent.behaviour = costing("0.30")
    ids = engine.submit(acme, count=6)
    engine.drain()
    assert let_go(engine) == 0, "nothing is asked of those that wait"

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal("1.25")})
    assert "budgets" in background_tasks.Reminder().remind(), "so the keeper asks for the errand"
    assert let_go(engine) == 3
    assert "budgets" not in background_tasks.Reminder().remind()
    engine.drain()

    assert [engine.status(acme, one) for one in ids].count("done") == 4
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(100)})
    assert let_go(engine) == 2
    engine.drain()
    assert [engine.status(acme, one) for one in ids] == ["done"] * 6
    assert now(budget).waiting_since is None
    assert broken_invariants() == []


def test_a_budget_releases_the_most_urgent_work_first_and_then_the_oldest(
    engine: Engine, acme: Tenant
) -> None:
    budget = capped(acme, "0.10")
    (late,) = engine.submit(acme, priority=15)
    (urgent,) = engine.submit(acme, priority=1)
    engine.drain()

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal("0.30")})
    engine.agent.behaviour = costing("0.30")
    let_go(engine)
    engine.drain()

    assert (engine.status(acme, urgent), engine.status(acme, late)) == ("done", "created")


def test_released_reservations_release_waiting_work(engine: Engine, acme: Tenant) -> None:
    capped(acme, "0.30")
    run = accepted(engine, acme)
    (waits,) = engine.submit(acme)
    engine.drain()
    assert engine.status(acme, waits) == "created"

    reports.complete(run, finished("0"), actor="test")
    assert let_go(engine) == 1
    engine.drain()

    assert engine.status(acme, waits) == "in_progress"


def test_a_deleted_budget_holds_nothing_back(engine: Engine, acme: Tenant) -> None:
    budget = capped(acme, "0")
    (waits,) = engine.submit(acme)
    engine.drain()

    money.delete_budget(acme.pk, budget.pk)
    configuration.forget()
    assert let_go(engine) == 1
    engine.drain()

    assert engine.status(acme, waits) == "done"


@pytest.mark.parametrize(("period", "today"), [("day", date(2026, 3, 4)), ("month", date(2026, 3, 31))])
def test_a_new_period_begins_with_nothing_spent_and_releases_waiting_work(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, period: str, today: date
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(clock, "today", lambda: today)
        budget = capped(acme, "0.30", period=period)
        engine.agent.behaviour = costing("0.30")
        first, waits = engine.submit(acme, count=2)
        engine.drain()
        assert [engine.status(acme, one) for one in (first, waits)] == ["done", "created"]

    assert let_go(engine) == 1, "by the calendar of today"
    engine.drain()

    assert engine.status(acme, waits) == "done"
    assert standing(budget) == ("0.30", "0.00")
    with tenant_scope(acme.pk):
        assert Alert.objects.filter(kind="budget_warning").count() == 2, "one in each period"


def test_people_are_warned_once_for_each_cap_even_by_simultaneous_reports(
    engine: Engine, acme: Tenant
) -> None:
    budget = capped(acme, "1.00", estimate=Decimal("0.10"))
    runs = [accepted(engine, acme) for _ in range(4)]

    at_once(*(partial(reports.beat, run, progress=None, usage=dollars("0.225")) for run in runs))
    reports.beat(runs[0], progress=None, usage=dollars("0.23"))

    def warnings() -> int:
        with tenant_scope(acme.pk):
            return Alert.objects.filter(kind="budget_warning").count()

    assert warnings() == 1
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal("1.10")})
    reports.beat(runs[0], progress=None, usage=dollars("0.24"))
    reports.beat(runs[0], progress=None, usage=dollars("0.25"))
    assert warnings() == 2
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(10)})
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal("1.10")})
    reports.beat(runs[0], progress=None, usage=dollars("0.26"))
    assert warnings() == 2, "of this cap they were told"


ENDS: dict[str, Any] = {
    "failed": lambda run: results.record_failed(run, RetryableAgentError("no")),
    "stalled": results.record_stalled,
    "cancelled": lambda run: cancellation.cancel(run.tenant_id, run.activity_id, actor="test"),
    "put aside": lambda run: agent_tools.receive_call(
        run, "report_blocker", {"type": "api_outage", "message": "away"}, key="1"
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_a_run_releases_its_reservation(engine: Engine, acme: Tenant, end: str) -> None:
    budget = capped(acme)
    run = accepted(engine, acme)
    reports.beat(run, progress=None, usage=dollars("0.10"))
    assert standing(budget) == ("0.10", "0.20")

    ENDS[end](run)

    assert (standing(budget), kept(acme)) == (("0.10", "0.00"), [])
    assert broken_invariants() == []


def test_usage_that_a_superseded_run_reports_is_counted(engine: Engine, acme: Tenant) -> None:
    budget = capped(acme, "10")
    first = accepted(engine, acme)
    results.record_stalled(first)
    engine.drain()
    second = token_of(acme, first.activity_id)
    assert second.fence > first.fence

    with pytest.raises(reports.RunOver):
        reports.complete(first, finished("0.40"), actor="test")
    with pytest.raises(reports.RunOver):
        reports.beat(first, progress=None, usage=dollars("0.30"))
    reports.complete(second, finished("0.50"), actor="test")
    reports.complete(second, finished("0.50"), actor="test")

    assert (entered(acme), standing(budget)) == (Decimal("0.90"), ("0.90", "0.00"))
    assert broken_invariants() == []


def test_a_worker_that_dies_between_claim_and_report_leaves_nothing_behind(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from activities import dispatch

    budget = capped(acme)

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    (activity_id,) = engine.submit(acme)
    with monkeypatch.context() as dying:
        dying.setattr(dispatch, "_call", die)
        with pytest.raises(Killed):
            engine.deliver()
    assert standing(budget) == ("0.00", "0.30")

    with system_scope():
        from activities.models import WorkerProcess

        worker = WorkerProcess.objects.get()
    recovery.declare_lost(worker)
    assert recovery.reclaim_runs_of_ended_workers() == 1

    assert (standing(budget), engine.status(acme, activity_id)) == (("0.00", "0.00"), "created")
    assert broken_invariants() == []


def test_a_reservation_that_outlived_its_run_is_detected(engine: Engine, acme: Tenant) -> None:
    from activities import transitions

    budget = capped(acme)
    run = accepted(engine, acme)
    with tenant_scope(acme.pk):  # an end that does not release its reservation
        transitions.apply(run.activity_id, "cancel", actor="test")
        transitions.end_run(tenant_id=acme.pk, activity_id=run.activity_id, run_status="cancelled")
    assert broken_invariants() == ["I41"]
    assert "reservations" in background_tasks.Reminder().remind()

    assert activity_budgets.release_stale_reservations() == 1

    assert (standing(budget), broken_invariants(), activity_budgets.release_stale_reservations()) == (
        ("0.00", "0.00"),
        [],
        0,
    )


def test_the_wait_reason_names_the_budget_and_the_time_when_work_may_continue(
    engine: Engine, acme: Tenant
) -> None:
    budget = capped(acme, "0.20", period="day", name="Daily bread")
    (activity_id,) = engine.submit(acme)
    engine.drain()

    reason = wait_reasons.why(acme.pk, activity_id)
    with tenant_scope(acme.pk):
        brief = wait_reasons.explain_many(acme.pk, [engine.get(acme, activity_id)])[activity_id]

    assert (reason.code, brief.code) == ("budget", "budget")
    assert reason.holder == f"budget Daily bread ({budget.pk})"
    assert "0 of 0.2 dollars spent" in reason.detail
    assert reason.since is not None
    assert 0 < (reason.estimate_seconds or 0) <= 86_400
    assert engine.status(acme, activity_id) == Status.CREATED


def test_a_wake_of_work_that_waits_for_a_budget_starts_nothing_and_is_not_lost(
    engine: Engine, acme: Tenant
) -> None:
    from activities import outbox, relay

    budget = capped(acme, "0")
    (activity_id,) = engine.submit(acme)
    engine.drain()
    with tenant_scope(acme.pk):
        outbox.record(engine.get(acme, activity_id), "new_task", payload={"again": True})
    relay.flush()
    engine.drain()
    assert engine.status(acme, activity_id) == "created"

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(1)})
    let_go(engine)
    engine.drain()

    assert (engine.status(acme, activity_id), len(engine.agent.calls)) == ("done", 1)
    assert len(engine.agent.calls[0].wakes) == 2
