"""Progress of a period: its counts, its risks, and its cancellation."""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, connections

from activities import cancellation, relay
from activities.human_tasks import human_work
from activities.models import Alert
from pipelines import deliverables, period_counts
from pipelines.cancellation import cancel_run
from pipelines.exceptions import PeriodNotPlanning, PipelineError
from pipelines.models import Deliverable, DeliverablePeriod, PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, simultaneously
from tests.integration.periods.months import (
    MAY,
    PLAN,
    activity_of_step,
    answering,
    count,
    counts,
    planner,
    reloaded,
    risk,
    runs,
    save,
)
from tests.integration.test_retention import age, purge
from tests.integration.test_retention_of_runs import age_run, age_work_of

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_failed_run_is_counted_and_puts_the_period_at_risk(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.agent.behaviour = answering(PLAN, failing="b")

    engine.drain()

    assert counts(acme, may) == ("completed", 2, 0, 2, 0)
    assert risk(acme, may) == (True, "Bees failed; Honey failed.")
    assert count(acme, Alert, kind="period_at_risk") == 1


def test_a_period_that_cannot_reach_its_target_is_at_risk(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    deliverables.change(acme.pk, blog.pk, {"target": 2})
    engine.agent.behaviour = answering(PLAN)
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)
    engine.deliver()  # runs the planner
    assert risk(acme, period) == (False, "")
    bees, _ = runs(acme, period)

    cancel_run(acme.pk, bees.pk, actor="test")

    assert risk(acme, period) == (True, "1 of 2 runs can be completed at most.")
    assert count(acme, Alert, kind="period_at_risk") == 1
    deliverables.change(acme.pk, blog.pk, {"target": 1})
    assert risk(acme, period) == (False, "")
    engine.drain()
    assert counts(acme, period) == ("completed", 2, 1, 0, 1)
    assert risk(acme, period) == (False, "")


def test_a_plan_below_the_target_puts_the_period_at_risk(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    deliverables.change(acme.pk, blog.pk, {"target": 3})
    engine.agent.behaviour = answering(PLAN)
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)

    engine.deliver()

    assert risk(acme, period) == (True, "2 of 3 runs can be completed at most.")
    (request,) = [call for call in engine.agent.calls if call.agent_role == "activity-planner"]
    assert request.params["period"]["target"] == 3
    assert "At least 3 runs should be completed." in request.prompt


def test_a_run_that_ends_at_once_raises_no_alert_about_those_that_are_started_after_it(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    save(acme, "instant", {"id": "never", "agent_role": "qa", "when": "params.tone == 'loud'"})
    deliverables.change(acme.pk, blog.pk, {"pipelines": ["flow", "instant"], "target": 2})
    engine.agent.behaviour = answering({"items": [{"pipeline": "instant"}, {"pipeline": "flow"}]})
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)

    engine.deliver()  # runs the planner

    assert counts(acme, period) == ("active", 2, 1, 0, 0)
    assert count(acme, Alert, kind="period_at_risk") == 0


def test_a_run_that_recovers_after_a_retry_ends_the_risk(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.agent.behaviour = answering(PLAN, failing="b")
    engine.drain()
    engine.agent.behaviour = answering(PLAN)
    bees, honey = runs(acme, may)

    cancellation.retry(acme.pk, activity_of_step(acme, bees, "b").pk, actor="user:ann")

    assert counts(acme, may) == ("active", 2, 0, 1, 0)
    assert reloaded(acme, may).ended_at is None
    engine.drain()
    assert counts(acme, may) == ("completed", 2, 1, 1, 0)
    assert risk(acme, may) == (True, "Honey failed.")
    cancellation.retry(acme.pk, activity_of_step(acme, honey, "b").pk, actor="user:ann")
    assert risk(acme, may) == (False, "")
    engine.drain()
    assert counts(acme, may) == ("completed", 2, 2, 0, 0)


def test_runs_of_a_period_are_kept_as_long_as_a_failed_one_may_be_retried(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    """Otherwise the period would count fewer runs when it continues."""
    save(acme, "frail", {"id": "bad", "agent_role": "qa"})
    deliverables.change(acme.pk, blog.pk, {"pipelines": ["flow", "frail"], "target": 2})
    plan = {"items": [{"pipeline": "flow"}, {"pipeline": "frail"}]}
    engine.agent.behaviour = answering(plan, failing="bad")
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)
    engine.drain()
    assert counts(acme, period) == ("completed", 2, 1, 1, 0)
    good, frail = runs(acme, period)
    age_run(good.pk)
    age_work_of(good.pk)
    while_new = purge(acme, "pipeline_runs")
    age("pipelines_deliverableperiod", [period.pk], "ended_at")
    age_run(frail.pk)
    age_work_of(frail.pk)

    while_failed = purge(acme, "pipeline_runs")
    cancellation.retry(acme.pk, activity_of_step(acme, frail, "bad").pk, actor="user:ann")
    engine.agent.behaviour = answering(plan)
    engine.drain()

    assert (while_new, while_failed) == (0, 0)
    assert counts(acme, period) == ("completed", 2, 2, 0, 0)
    assert risk(acme, period) == (False, "")


def test_a_dead_letter_on_the_critical_path_puts_the_period_at_risk(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    save(
        acme, "flow", {"id": "bad", "agent_role": "qa"},
        {"id": "beside", "human_role": "editor", "depends_on": []},
    )  # fmt: skip
    engine.agent.behaviour = answering({"items": [{"pipeline": "flow"}]}, failing="bad")
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)

    engine.drain()

    assert counts(acme, period) == ("active", 1, 0, 0, 0)
    assert risk(acme, period) == (True, "flow failed at bad.")
    (run,) = runs(acme, period)
    cancellation.retry(acme.pk, activity_of_step(acme, run, "bad").pk, actor="user:ann")
    assert risk(acme, period) == (False, "")


@pytest.mark.parametrize("policy", ["continue", "skip"])
def test_a_dead_letter_that_its_run_tolerates_is_no_risk(
    engine: Engine, acme: Tenant, blog: Deliverable, policy: str
) -> None:
    save(
        acme, "flow", {"id": "bad", "agent_role": "qa"},
        {"id": "after", "agent_role": "dev", "depends_on": ["bad"], "on_upstream_failure": policy},
    )  # fmt: skip
    engine.agent.behaviour = answering({"items": [{"pipeline": "flow"}]}, failing="bad")
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)

    engine.drain()

    assert counts(acme, period) == ("completed", 1, 1, 0, 0)
    assert risk(acme, period) == (False, "")
    assert count(acme, Alert, kind="period_at_risk") == 0


def test_concurrent_ends_of_the_last_runs_complete_the_period(
    engine: Engine, acme: Tenant, blog: Deliverable
) -> None:
    save(acme, "flow", {"id": "only", "human_role": "editor"})
    engine.agent.behaviour = answering({"items": [{"pipeline": "flow"}] * 6})
    for attempt in range(3):
        (period,) = deliverables.start_new_periods(acme.pk, today=date(2026, 5 + attempt, 1))
        engine.drain()
        tasks = [activity_of_step(acme, run, "only").pk for run in runs(acme, period)]
        finish = [partial(human_work.complete, acme.pk, task, actor="user:ann") for task in tasks[:4]]
        cancel = [partial(cancel_run, acme.pk, run.pk, actor="user:ann") for run in runs(acme, period)[4:]]

        outcomes = simultaneously(*finish, *cancel)

        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert counts(acme, period) == ("completed", 6, 4, 0, 2)


def test_cancelled_runs_are_counted_and_the_last_one_completes_the_period(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()
    bees, honey = runs(acme, may)

    cancel_run(acme.pk, bees.pk, actor="user:ann")
    assert counts(acme, may) == ("active", 2, 0, 0, 1)
    cancel_run(acme.pk, honey.pk, actor="user:ann")

    assert counts(acme, may) == ("completed", 2, 0, 0, 2)


def test_a_recount_changes_nothing(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    engine.agent.behaviour = answering(PLAN, failing="b")
    engine.drain()
    before = reloaded(acme, may)

    with tenant_scope(acme.pk):
        period_counts.recount(acme.pk, may.pk)
        period_counts.recount(acme.pk, may.pk)

    after = reloaded(acme, may)
    assert {f.name: getattr(after, f.attname) for f in after._meta.fields} == {
        f.name: getattr(before, f.attname) for f in before._meta.fields
    }
    assert count(acme, Alert, kind="period_at_risk") == 1


def test_a_reason_names_three_failures_and_counts_the_rest(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    items = [{"pipeline": "flow", "name": f"Run {number}"} for number in range(5)]
    engine.agent.behaviour = answering({"items": items}, failing="a")

    engine.drain()

    assert risk(acme, may) == (True, "Run 0 failed; Run 1 failed; Run 2 failed; and 2 more.")


def test_cancelling_a_period_cancels_its_planner(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    deliverables.cancel_period(acme.pk, may.pk, actor="user:ann", reason="No budget.")

    engine.drain()

    assert planner(acme, may).status == "cancelled"
    assert counts(acme, may) == ("cancelled", 0, 0, 0, 0)
    assert risk(acme, may) == (False, "")
    assert reloaded(acme, may).ended_at is not None
    with pytest.raises(PeriodNotPlanning):
        deliverables.ask_again(acme.pk, may.pk, actor="user:ann")


def test_cancelling_a_period_cancels_its_runs_once(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()
    bees, honey = runs(acme, may)
    cancel_run(acme.pk, bees.pk, actor="user:ann")

    deliverables.cancel_period(acme.pk, may.pk, actor="user:ann")
    deliverables.cancel_period(acme.pk, may.pk, actor="user:ann")

    assert counts(acme, may) == ("cancelled", 2, 0, 0, 2)
    assert activity_of_step(acme, honey, "a").status == "cancelled"


def test_cancelling_a_period_again_after_its_runs_were_deleted_changes_no_figures(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()  # runs the planner
    deliverables.cancel_period(acme.pk, may.pk, actor="user:ann")
    age("pipelines_deliverableperiod", [may.pk], "ended_at")
    for run in runs(acme, may):
        age_run(run.pk)
        age_work_of(run.pk)
    assert purge(acme, "pipeline_runs") == 2

    deliverables.cancel_period(acme.pk, may.pk, actor="user:ann")

    assert counts(acme, may) == ("cancelled", 2, 0, 0, 2)


def test_cancelling_a_period_while_its_plan_arrives_leaves_nothing_running(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    for attempt in range(3):
        period = (
            may
            if not attempt
            else deliverables.start_new_periods(acme.pk, today=date(2026, 5 + attempt, 1))[0]
        )

        outcomes = simultaneously(
            engine.deliver, partial(deliverables.cancel_period, acme.pk, period.pk, actor="user:ann")
        )

        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert reloaded(acme, period).status == "cancelled"
        assert not [run for run in runs(acme, period) if run.status == "running"]
        engine.drain()


def test_a_completed_period_cannot_be_cancelled(engine: Engine, acme: Tenant, may: DeliverablePeriod) -> None:
    engine.drain()

    with pytest.raises(PipelineError, match="completed"):
        deliverables.cancel_period(acme.pk, may.pk, actor="user:ann")


def test_a_run_without_a_period_takes_no_queries_about_periods(engine: Engine, acme: Tenant) -> None:
    queries: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        queries.append(sql)
        return execute(sql, params, many, context)

    start_run(acme.pk, "flow", NewRun(), actor="test")
    with connections["default"].execute_wrapper(note):
        engine.drain()

    assert queries
    assert not [sql for sql in queries if "deliverableperiod" in sql]
    relay.flush()


def test_a_unique_index_keeps_an_item_of_a_plan_from_running_twice(
    engine: Engine, acme: Tenant, may: DeliverablePeriod
) -> None:
    engine.deliver()
    first: UUID = runs(acme, may)[0].pk

    with pytest.raises(IntegrityError), tenant_scope(acme.pk):
        PipelineRun.objects.filter(period=may).exclude(pk=first).update(plan_item=0)
