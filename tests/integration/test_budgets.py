"""Runs start and continue only while their budgets cover their costs."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError
from psycopg.errors import LockNotAvailable

from activities import background_tasks, cancellation, reassignment, wait_reasons
from activities import budgets as activity_budgets
from activities.execution import agent_tools, reports, results
from activities.maintenance import recovery
from activities.models import Alert, Wake
from activities.states import Status
from agents import configuration
from agents.contracts import AgentRequest, RunLink
from agents.exceptions import RetryableAgentError
from agents.response_parser import read_completed
from pipelines.models import Deliverable
from tenants import clock, money
from tenants.context import system_scope, tenant_scope
from tenants.models import Budget, Tenant
from tests.batching import with_options
from tests.engine import Engine, simultaneously
from tests.open_questions import open_approval
from tests.spending import (
    accept,
    accept_run,
    broken_invariants,
    complete_at_cost,
    dollars,
    ledger_total,
    make_budget,
    release_waiting_work,
    reload,
    reserved_amounts,
    result_costing,
    run_token_of,
    spent_and_reserved,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_run_is_counted_when_it_ends_and_its_reservation_is_released(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme)
    engine.agent.behaviour = complete_at_cost("0.25")
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert engine.status(acme, activity_id) == "done"
    assert (spent_and_reserved(budget), reserved_amounts(acme), ledger_total(acme)) == (
        ("0.25", "0.00"),
        [],
        Decimal("0.25"),
    )
    assert broken_invariants() == []


def test_the_cost_of_an_invalid_answer_is_spent_before_its_reservation_is_released(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next attempt, or other work, starts with money that is already spent."""
    budget, record_failed, after = make_budget(acme), results.record_failed, []

    def record_and_look(*arguments: Any, **more: Any) -> Any:
        moved = record_failed(*arguments, **more)
        after.append(spent_and_reserved(budget))
        return moved

    monkeypatch.setattr(results, "record_failed", record_and_look)
    engine.agent.behaviour = lambda request: read_completed({"output": 1, "usage": {"cost_usd": 0.25}})
    engine.submit(acme)

    engine.drain()

    assert after == [("0.25", "0.00")]


def test_a_budget_for_three_starts_three_and_the_others_hold_no_slot(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme)
    engine.agent.behaviour = accept
    ids = engine.submit(acme, count=20)

    engine.drain()

    statuses = [engine.status(acme, one) for one in ids]
    assert (statuses.count("in_progress"), statuses.count("created")) == (3, 17)
    assert spent_and_reserved(budget) == ("0.00", "0.90")
    with tenant_scope(acme.pk):
        assert set(Wake.objects.filter(state="pending").values_list("cause", "due_at")) == {
            ("budget", activity_budgets.NEVER)
        }
    assert engine.messages() == 0
    assert broken_invariants() == []


def test_a_run_whose_report_crosses_the_cap_is_told_to_stop_and_uses_up_no_attempt(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme)
    run, other = accept_run(engine, acme), accept_run(engine, acme)

    assert reports.beat(run, progress=None, usage=dollars("0.69")) is None
    reason = reports.beat(run, progress=None, usage=dollars("0.80"))

    assert "All of it is used up: 0.8 of 1 dollars spent" in str(reason)
    stopped = engine.get(acme, run.activity_id)
    assert (stopped.status, stopped.attempts, (stopped.error or {})["code"]) == ("created", 0, "budget")
    assert reports.beat(other, progress=None, usage=dollars("0.10")) is None, (
        "the other run has its own reservation"
    )
    with pytest.raises(reports.RunOver, match="used up"):
        reports.beat(run, progress=None, usage=dollars("0.81"))
    assert (spent_and_reserved(budget), f"{reload(budget).overshoot:.2f}") == (("0.91", "0.20"), "0.11")
    assert broken_invariants() == []


def test_a_budget_of_runs_stops_no_run_that_has_begun(engine: Engine, acme: Tenant) -> None:
    run, late = accept_run(engine, acme), accept_run(engine, acme)
    budget = make_budget(acme, "1", unit="runs")  # two are spent already
    assert reload(budget).spent == 2

    assert reports.beat(run, progress=None, usage=dollars("0.10")) is None
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(0)})
    assert reports.beat(late, progress=None, usage=dollars("0.10")) is None

    assert engine.status(acme, run.activity_id) == Status.IN_PROGRESS
    assert broken_invariants() == []


def test_an_agent_in_a_worker_is_told_through_its_link_to_stop(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents import adapters

    make_budget(acme)
    answers: list[Any] = []

    class Inside:
        def run(self, request: AgentRequest, *, link: RunLink) -> Any:
            answers.extend(
                [link.count_usage(dollars("0.90")), link.count_usage(dollars("1.10")), link.stop_reason()]
            )
            return result_costing("1.10")

    monkeypatch.setattr(adapters, "get", lambda name: Inside())
    (activity_id,) = engine.submit(acme)

    engine.drain()

    assert answers[0] is None
    assert "used up" in answers[1]
    assert "used up" in answers[2]
    assert (engine.status(acme, activity_id), ledger_total(acme)) == ("created", Decimal("1.10"))
    assert engine.messages() == 0
    assert wait_reasons.why(acme.pk, activity_id).code == "budget"


def test_a_higher_cap_releases_only_as_much_waiting_work_as_it_holds(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme, "0.50")
    engine.agent.behaviour = complete_at_cost("0.30")
    ids = engine.submit(acme, count=6)
    engine.drain()
    assert release_waiting_work(engine) == 0, "without room no work is released"

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal("1.25")})
    assert "budgets" in background_tasks.Reminder().remind(), (
        "the leader sends a hint for the background task"
    )
    assert release_waiting_work(engine) == 3
    assert "budgets" not in background_tasks.Reminder().remind()
    engine.drain()

    assert [engine.status(acme, one) for one in ids].count("done") == 4
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(100)})
    assert release_waiting_work(engine) == 2
    engine.drain()
    assert [engine.status(acme, one) for one in ids] == ["done"] * 6
    assert reload(budget).waiting_since is None
    assert broken_invariants() == []


@pytest.mark.parametrize("estimate", [Decimal("0.30"), None])
def test_a_lower_estimate_releases_waiting_work(
    engine: Engine, acme: Tenant, estimate: Decimal | None
) -> None:
    budget = make_budget(acme, "0.34", estimate=Decimal(5))
    engine.agent.behaviour = complete_at_cost("0.30")
    ids = engine.submit(acme, count=2)
    engine.drain()

    money.change_budget(acme.pk, budget.pk, {"estimate": estimate})
    release_waiting_work(engine)
    engine.drain()

    assert sorted(engine.status(acme, one) for one in ids) == ["created", "done"]
    assert release_waiting_work(engine) == 0, "the rest does not fit"
    assert broken_invariants() == []


def test_a_lower_estimate_of_the_role_releases_waiting_work(engine: Engine, acme: Tenant) -> None:
    make_budget(acme, estimate=None)
    engine.agent.behaviour = complete_at_cost("0.10")
    with with_options(estimate_usd=5):
        (activity_id,) = engine.submit(acme)
        engine.drain()
        assert activity_budgets.estimate_again() == 0
    assert engine.status(acme, activity_id) == "created"

    assert activity_budgets.estimate_again() == 1
    release_waiting_work(engine)
    engine.drain()

    assert engine.status(acme, activity_id) == "done"
    assert broken_invariants() == []


@pytest.mark.parametrize("estimate", ["none", 1e17, -5, True, [1]], ids=str)
def test_an_invalid_estimate_of_a_role_is_ignored(engine: Engine, acme: Tenant, estimate: Any) -> None:
    make_budget(acme, estimate=None)
    engine.agent.behaviour = accept
    with with_options(estimate_usd=estimate):
        (activity_id,) = engine.submit(acme)
        engine.drain()

    assert engine.status(acme, activity_id) == "in_progress"
    assert reserved_amounts(acme) == [Decimal(str(settings.ORCHESTRATOR_RUN_ESTIMATE_USD))]


def test_a_budget_releases_the_most_urgent_work_first_and_then_the_oldest(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme, "0.10")
    (late,) = engine.submit(acme, priority=15)
    (urgent,) = engine.submit(acme, priority=1)
    engine.drain()

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal("0.30")})
    engine.agent.behaviour = complete_at_cost("0.30")
    release_waiting_work(engine)
    engine.drain()

    assert (engine.status(acme, urgent), engine.status(acme, late)) == ("done", "created")


def test_work_that_fits_continues_past_more_work_than_one_pass_reads_that_does_not(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_budgets, "AT_ONCE", 2)
    budget = make_budget(acme, "0", estimate=None)
    with with_options(estimate_usd=5):
        engine.submit(acme, count=2)
        engine.drain()
    (fits,) = engine.submit(acme)
    engine.drain()
    engine.agent.behaviour = complete_at_cost("0.05")

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(1)})
    release_waiting_work(engine)
    engine.drain()

    assert engine.status(acme, fits) == "done"


def test_released_reservations_release_waiting_work(engine: Engine, acme: Tenant) -> None:
    make_budget(acme, "0.30")
    run = accept_run(engine, acme)
    (waits,) = engine.submit(acme)
    engine.drain()
    assert engine.status(acme, waits) == "created"

    reports.complete(run, result_costing("0"), actor="test")
    assert release_waiting_work(engine) == 1
    engine.drain()

    assert engine.status(acme, waits) == "in_progress"


def test_a_deleted_budget_holds_nothing_back_and_counts_nothing(engine: Engine, acme: Tenant) -> None:
    deleted, _ = make_budget(acme, "0"), make_budget(acme)
    engine.agent.behaviour = complete_at_cost("0.25")
    (waits,) = engine.submit(acme)
    engine.drain()

    money.delete_budget(acme.pk, deleted.pk)
    configuration.forget()
    assert wait_reasons.why(acme.pk, waits).code == "queued"
    assert release_waiting_work(engine) == 1
    engine.drain()

    assert engine.status(acme, waits) == "done"
    assert spent_and_reserved(deleted) == ("0.00", "0.00")


def test_nothing_starts_once_all_is_spent_however_little_it_may_need(engine: Engine, acme: Tenant) -> None:
    make_budget(acme, "0.25", estimate=Decimal(0))
    engine.agent.behaviour = complete_at_cost("0.25")
    first, second = engine.submit(acme, count=2)

    engine.drain()

    assert (engine.status(acme, first), engine.status(acme, second)) == ("done", "created")


def test_people_are_warned_of_a_budget_of_runs_when_most_of_it_is_spent(engine: Engine, acme: Tenant) -> None:
    make_budget(acme, "5", unit="runs", estimate=None)
    warnings = []
    for _ in range(4):
        engine.submit(acme)
        engine.drain()
        with tenant_scope(acme.pk):
            warnings.append(Alert.objects.count())

    assert warnings == [0, 0, 0, 1]


@pytest.mark.parametrize("scope", ["agent_role", "deliverable_id", "activity_id"])
def test_a_budget_of_some_work_stops_and_counts_only_that_work(
    engine: Engine, acme: Tenant, scope: str
) -> None:
    of_all = make_budget(acme)
    engine.agent.behaviour = complete_at_cost("0.25")
    with tenant_scope(acme.pk):
        deliverable = Deliverable.objects.create(tenant=acme, name="Report")
    (concerned,), (other,) = engine.submit(acme, deliverable_id=deliverable.pk), engine.submit(acme, "dev")
    subjects = {"agent_role": "qa", "deliverable_id": deliverable.pk, "activity_id": concerned}
    of_some = make_budget(acme, "0.10", **{scope: subjects[scope]})

    engine.drain()
    assert (engine.status(acme, concerned), engine.status(acme, other)) == ("created", "done")
    assert spent_and_reserved(of_some) == ("0.00", "0.00")

    money.change_budget(acme.pk, of_some.pk, {"cap": Decimal("0.50")})
    release_waiting_work(engine)
    engine.drain()
    assert engine.status(acme, concerned) == "done"
    assert (spent_and_reserved(of_some), spent_and_reserved(of_all)) == (("0.25", "0.00"), ("0.50", "0.00"))


@pytest.mark.parametrize(("period", "today"), [("day", date(2026, 3, 4)), ("month", date(2026, 3, 31))])
def test_a_new_period_begins_with_nothing_spent_and_releases_waiting_work(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, period: str, today: date
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(clock, "today", lambda: today)
        budget = make_budget(acme, "0.30", period=period)
        engine.agent.behaviour = complete_at_cost("0.30")
        first, waits = engine.submit(acme, count=2)
        engine.drain()
        assert [engine.status(acme, one) for one in (first, waits)] == ["done", "created"]

    assert release_waiting_work(engine) == 1, "the budget has a new period"
    engine.drain()

    assert engine.status(acme, waits) == "done"
    assert spent_and_reserved(budget) == ("0.30", "0.00")
    with tenant_scope(acme.pk):
        assert Alert.objects.filter(kind="budget_warning").count() == 2, "one in each period"


def test_people_are_warned_once_for_each_cap_even_by_simultaneous_reports(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme, "1.00", estimate=Decimal("0.10"))
    runs = [accept_run(engine, acme) for _ in range(4)]

    simultaneously(*(partial(reports.beat, run, progress=None, usage=dollars("0.225")) for run in runs))
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
    assert warnings() == 2, "no second warning for the same cap"


def test_people_are_warned_once_of_a_cap_below_what_is_spent_when_work_waits_for_it(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme, "10.00")
    engine.agent.behaviour = complete_at_cost("0.50")
    engine.submit(acme)
    engine.drain()
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal("0.60")})

    engine.submit(acme, count=2)
    engine.drain()

    with tenant_scope(acme.pk):
        (alert,) = Alert.objects.filter(kind="budget_warning")
    assert alert.body.startswith("0.5 of 0.6 dollars are spent.")
    assert reload(budget).warned_at is not None


def test_a_run_from_before_midnight_spends_nothing_of_the_new_period(engine: Engine, acme: Tenant) -> None:
    money_of_today = make_budget(acme, "1.00", period="day", estimate=Decimal("0.10"))
    runs_of_today = make_budget(acme, "9", period="day", unit="runs")
    tomorrow = clock.today() + timedelta(days=1)
    with tenant_scope(acme.pk):
        Budget.objects.update(spent=Decimal("0.50"), period_start=tomorrow)

    run = accept_run(engine, acme)
    reserved = reload(money_of_today).reserved
    reports.beat(run, progress=None, usage=dollars("0.04"))

    now = [reload(budget) for budget in (money_of_today, runs_of_today)]
    assert [(budget.period_start, budget.spent) for budget in now] == [(tomorrow, Decimal("0.50"))] * 2
    assert (reserved, now[0].reserved) == (Decimal("0.10"), Decimal("0.06"))


def test_nobody_is_warned_of_what_an_earlier_period_has_spent(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme, "0.50", period="day", estimate=Decimal("0.60"))
    with tenant_scope(acme.pk):
        Budget.objects.filter(pk=budget.pk).update(spent=Decimal("0.50"), period_start=date(2020, 1, 1))

    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert wait_reasons.why(acme.pk, activity_id).code == "budget"
    with tenant_scope(acme.pk):
        assert not Alert.objects.filter(kind="budget_warning").exists()


@pytest.mark.parametrize(
    "end",
    [
        partial(cancellation.cancel, actor="test"),
        partial(reassignment.reassign, human_role="editor", reason="Ours.", actor="test"),
    ],
    ids=["cancelled", "reassigned"],
)
@pytest.mark.parametrize("is_held", [False, True], ids=["waiting", "held by a question as well"])
def test_a_budget_whose_waiting_work_has_ended_no_longer_says_that_work_waits(
    engine: Engine, acme: Tenant, end: Any, is_held: bool
) -> None:
    budget = make_budget(acme, "0.20")
    (activity_id,) = engine.submit(acme)
    engine.drain()
    if is_held:
        open_approval(acme, [activity_id])
        assert engine.status(acme, activity_id) == "awaiting_review"
    assert reload(budget).waiting_since is not None

    end(acme.pk, activity_id)
    release_waiting_work(engine)

    assert reload(budget).waiting_since is None
    with system_scope():
        assert not activity_budgets.needing_work().exists()


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
    budget = make_budget(acme)
    run = accept_run(engine, acme)
    reports.beat(run, progress=None, usage=dollars("0.10"))
    assert spent_and_reserved(budget) == ("0.10", "0.20")

    ENDS[end](run)

    assert (spent_and_reserved(budget), reserved_amounts(acme)) == (("0.10", "0.00"), [])
    assert broken_invariants() == []


def test_usage_that_a_superseded_run_reports_is_counted(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme, "10")
    first = accept_run(engine, acme)
    results.record_stalled(first)
    engine.drain()
    second = run_token_of(acme, first.activity_id)
    assert second.fence > first.fence

    with pytest.raises(reports.RunOver):
        reports.complete(first, result_costing("0.40"), actor="test")
    with pytest.raises(reports.RunOver):
        reports.beat(first, progress=None, usage=dollars("0.30"))
    reports.complete(second, result_costing("0.50"), actor="test")
    reports.complete(second, result_costing("0.50"), actor="test")

    assert (ledger_total(acme), spent_and_reserved(budget)) == (Decimal("0.90"), ("0.90", "0.00"))
    assert broken_invariants() == []


def test_a_worker_that_dies_between_claim_and_report_leaves_nothing_behind(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from activities import dispatch

    budget = make_budget(acme)

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    (activity_id,) = engine.submit(acme)
    with monkeypatch.context() as dying:
        dying.setattr(dispatch, "_call", die)
        with pytest.raises(Killed):
            engine.deliver()
    assert spent_and_reserved(budget) == ("0.00", "0.30")

    with system_scope():
        from activities.models import WorkerProcess

        worker = WorkerProcess.objects.get()
    recovery.declare_lost(worker)
    assert recovery.reclaim_runs_of_ended_workers() == 1

    assert (spent_and_reserved(budget), engine.status(acme, activity_id)) == (("0.00", "0.00"), "created")
    assert broken_invariants() == []


def meet_a_lock(*_: Any) -> None:
    raise OperationalError("lock timeout") from LockNotAvailable("lock timeout")


def test_a_reservation_that_outlived_its_run_is_detected(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from activities import transitions

    budget = make_budget(acme)
    run = accept_run(engine, acme)
    with tenant_scope(acme.pk):  # an end that does not release its reservation
        transitions.apply(run.activity_id, "cancel", actor="test")
        transitions.end_run(tenant_id=acme.pk, activity_id=run.activity_id, run_status="cancelled")
    assert broken_invariants() == ["I41"]
    assert "reservations" in background_tasks.Reminder().remind()

    with monkeypatch.context() as patched:
        patched.setattr(activity_budgets.money, "release", meet_a_lock)
        assert activity_budgets.release_stale_reservations() == 0
    assert activity_budgets.release_stale_reservations() == 1

    assert (
        spent_and_reserved(budget),
        broken_invariants(),
        activity_budgets.release_stale_reservations(),
    ) == (
        ("0.00", "0.00"),
        [],
        0,
    )


def test_the_wait_reason_names_the_budget_and_the_time_when_work_may_continue(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme, "0.50", period="day", name="Daily bread")
    engine.agent.behaviour = complete_at_cost("0.40")
    engine.submit(acme)
    engine.drain()
    (activity_id,) = engine.submit(acme)
    engine.drain()

    reason = wait_reasons.why(acme.pk, activity_id)
    with tenant_scope(acme.pk):
        brief = wait_reasons.explain_many(acme.pk, [engine.get(acme, activity_id)])[activity_id]

    assert (reason.code, brief.code) == ("budget", "budget")
    assert reason.holder == f"budget Daily bread ({budget.pk})"
    assert "0.4 of 0.5 dollars spent" in reason.detail
    assert reason.since is not None
    assert 0 < (reason.estimate_seconds or 0) <= 86_400
    assert engine.status(acme, activity_id) == Status.CREATED


@pytest.mark.parametrize(
    "budget", [{"cap": "0.20"}, {"cap": "0", "unit": "runs", "estimate": None}, {"cap": "0", "estimate": "0"}]
)
def test_work_that_needs_more_than_the_whole_cap_is_promised_no_time(
    engine: Engine, acme: Tenant, budget: dict[str, Any]
) -> None:
    make_budget(acme, period="day", name="Daily bread", **budget)
    (activity_id,) = engine.submit(acme)
    engine.drain()

    reason = wait_reasons.why(acme.pk, activity_id)

    assert reason.detail.endswith(" It continues when the cap is raised or less is needed.")
    assert (reason.code, reason.estimate_seconds) == ("budget", None)


def test_work_that_a_budget_has_just_released_does_not_seem_to_have_a_date(
    engine: Engine, acme: Tenant
) -> None:
    budget = make_budget(acme, "0")
    (activity_id,) = engine.submit(acme)
    engine.drain()
    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(1)})

    def codes() -> tuple[str | None, str | None]:
        with tenant_scope(acme.pk):
            brief = wait_reasons.explain_many(acme.pk, [engine.get(acme, activity_id)])[activity_id]
        return wait_reasons.why(acme.pk, activity_id).code, brief.code

    assert activity_budgets.release_where_room() == 1  # but the promoter has not offered it yet
    assert codes() == ("queued", "queued")
    with tenant_scope(acme.pk):  # as if it was released between two queries of one explanation
        Wake.objects.filter(activity_id=activity_id).update(due_at=activity_budgets.NEVER)
    assert codes() == ("queued", "queued")


def test_a_wake_of_work_that_waits_for_a_budget_starts_nothing_and_is_not_lost(
    engine: Engine, acme: Tenant
) -> None:
    from activities import outbox, relay

    budget = make_budget(acme, "0")
    (activity_id,) = engine.submit(acme)
    engine.drain()
    with tenant_scope(acme.pk):
        outbox.record(engine.get(acme, activity_id), "new_task", payload={"again": True})
    relay.flush()
    engine.drain()
    assert engine.status(acme, activity_id) == "created"

    money.change_budget(acme.pk, budget.pk, {"cap": Decimal(1)})
    release_waiting_work(engine)
    engine.drain()

    assert (engine.status(acme, activity_id), len(engine.agent.calls)) == ("done", 1)
    assert len(engine.agent.calls[0].wakes) == 2
