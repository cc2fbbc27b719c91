"""Counts the outcomes of a period's runs, and flags the period when it is at risk.

The figures are counted from the runs, under the lock of the period's row, in the transaction that changed a run. So nothing is counted
twice, and when two runs end at once the later transaction counts both. The flag is removed as soon as its reason is gone.

A period is at risk if:

    no plan    its planner failed, was cancelled, or its plan was refused too often
    run        one of its runs failed
    target     it cannot reach its target even if all running runs complete
    step       a step failed whose failure will fail its run, while other steps of the run are still active

Lock order: activity, pipeline run, period.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from django.db.models import Count, F, QuerySet
from django.db.models.functions import Coalesce, Now

from activities import states
from activities.alerts import raise_alert
from activities.models import Activity
from activities.models.alert import AlertKind
from activities.states import Status
from pipelines import jobs, versions
from pipelines.graph import StepState
from pipelines.models import DeliverablePeriod, PipelineRun, StepRun
from pipelines.models.deliverable import PeriodState
from pipelines.models.run import RunState

MOST_NAMED = 3  # problems that a reason lists; it counts the rest


def run_changed(run: Any) -> None:
    """Update the period and the schedule's job of a run that has ended or continues.

    `run` is its row; the caller holds its lock.
    """
    jobs.run_changed(run)
    if run.period_id is not None:
        recount(run.tenant_id, run.period_id)


def recount(tenant_id: UUID, period_id: UUID) -> None:
    """Update the period's figures, status and flag. Idempotent. Call it within a transaction."""
    # Lock before counting: two runs that end together would otherwise each miss the other.
    period = lock_periods(tenant_id).get(pk=period_id)
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(period_id=period_id)
    counts = Counter(dict(runs.values_list("status").annotate(Count("pk"))))
    status = _status(period, counts)
    problems = _problems(period, counts) if status != PeriodState.CANCELLED else []
    named = "; ".join(problems[:MOST_NAMED])
    more = len(problems) - MOST_NAMED
    reason = f"{named}; and {more} more." if more > 0 else f"{named}." if named else ""
    if reason and not period.at_risk and status != PeriodState.PLANNING:
        # Problems of a planner have their own alerts.
        raise_alert(
            period.tenant_id,
            AlertKind.PERIOD_AT_RISK,
            f"{period.deliverable.name} is at risk in {period.starts_on:%B %Y}",
            body=reason,
            facts={"period": period.pk, "deliverable": period.deliverable_id},
        )
    DeliverablePeriod.objects.for_tenant(tenant_id).filter(pk=period_id).update(
        status=status,
        completed=counts[RunState.COMPLETED],
        failed=counts[RunState.FAILED],
        cancelled=counts[RunState.CANCELLED],
        at_risk=bool(reason),
        at_risk_reason=reason,
        ended_at=Coalesce(F("ended_at"), Now()) if status in _ENDED else None,
    )


def lock_periods(tenant_id: UUID) -> QuerySet[DeliverablePeriod]:
    """Return periods as rows that are locked when read. Every change of a period takes this lock first.

    It is a NO KEY lock: updating a run twice in one transaction checks its foreign key, which takes a shared key lock on the period. With a
    stronger lock, two runs that end at once would each hold that shared lock and wait for the other.
    """
    periods: QuerySet[DeliverablePeriod] = DeliverablePeriod.objects.for_tenant(tenant_id)
    return periods.select_for_update(of=("self",), no_key=True)


_ENDED = (PeriodState.COMPLETED, PeriodState.CANCELLED)


def _status(period: DeliverablePeriod, counts: Counter[str]) -> str:
    if period.status in (PeriodState.PLANNING, PeriodState.CANCELLED):
        return str(period.status)
    return PeriodState.ACTIVE if counts[RunState.RUNNING] else PeriodState.COMPLETED


def _problems(period: DeliverablePeriod, counts: Counter[str]) -> list[str]:
    if period.status == PeriodState.PLANNING:
        return _problems_of_planner(period)
    problems = _short_of_target(period, counts)
    problems += _list_failed_runs(period) if counts[RunState.FAILED] else []
    return problems + _list_failed_steps(period) if counts[RunState.RUNNING] else problems


def _short_of_target(period: DeliverablePeriod, counts: Counter[str]) -> list[str]:
    # The first runs of a plan may end at once, before its other runs are created.
    to_come = max(period.planned - counts.total(), 0)
    within_reach = counts[RunState.COMPLETED] + counts[RunState.RUNNING] + to_come
    if period.target is None or within_reach >= period.target:
        return []
    return [f"{within_reach} of {period.target} runs can be completed at most"]


def _problems_of_planner(period: DeliverablePeriod) -> list[str]:
    planner = Activity.objects.for_tenant(period.tenant_id).filter(pk=period.planner_activity_id).first()
    if planner is None or planner.status not in states.SETTLED:
        return []
    if planner.status in (Status.DONE, Status.APPROVED):
        return ["The plan was refused" if period.plan_faults else "The planner returned no plan"]
    return [f"The planner's activity is {planner.status.replace('_', ' ')}, and there is no plan"]


def _list_failed_runs(period: DeliverablePeriod) -> list[str]:
    runs = PipelineRun.objects.for_tenant(period.tenant_id).filter(
        period_id=period.pk, status=RunState.FAILED
    )
    return [
        f"{_name_run(run)} failed"
        for run in runs.select_related("version__pipeline").order_by("plan_item", "pk")
    ]


def _list_failed_steps(period: DeliverablePeriod) -> list[str]:
    """List failed steps that will fail their run, in runs that are still running."""
    steps = (
        StepRun.objects.for_tenant(period.tenant_id)
        .filter(run__period_id=period.pk, run__status=RunState.RUNNING, status=StepState.FAILED)
        .select_related("run__version__pipeline")
        .order_by("run__plan_item", "run_id", "position")
    )
    problems = (
        f"{_name_run(step.run)} failed at {step.step}"
        for step in steps
        if versions.compile_version(step.run.version_id).graph.fails_run(step.step)
    )
    return list(dict.fromkeys(problems))  # a step with many branches is one problem


def _name_run(run: PipelineRun) -> str:
    return run.name or run.version.pipeline.key
