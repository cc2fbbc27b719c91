"""Where a period stands: how many of its runs have ended in which way, and whether it is at risk.

Everything is counted from the runs, under the lock of the period's row, in the transaction that changed one of them. So nothing is
counted twice, of two runs that end at once the later one sees both, and a flag goes as soon as nothing is wrong any more.

A period is at risk while one of these is so:

    no plan    the planner failed, was cancelled, or its plan was refused too often
    a run      of it failed
    target     it has one, and would not reach it even if all runs that are under way were completed
    a step     failed whose failure will fail its run, though other steps of the run are still at work

Lock order: activity, pipeline run, period.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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

NAMED = 3  # troubles that a reason names; it counts the rest


def run_changed(run: Any) -> None:
    """Count a run that has ended, or goes on again, in its period, and tell the schedule's job that it does.

    `run` is its row; the caller holds its lock.
    """
    jobs.run_changed(run)
    if run.period_id is not None:
        recount(run.tenant_id, run.period_id)


def recount(tenant_id: UUID, period_id: UUID) -> None:
    """Bring the period's figures, status and flag up to date. Idempotent. In the caller's transaction."""
    # Lock before counting: of two runs that end together, each would miss the other.
    period = lock_periods(tenant_id).get(pk=period_id)
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(period_id=period_id)
    counts = Counter(dict(runs.values_list("status").annotate(Count("pk"))))
    status = _status(period, counts)
    troubles = _troubles(period, counts) if status != PeriodState.CANCELLED else []
    reason = _in_words(troubles)
    if reason and not period.at_risk and status != PeriodState.PLANNING:
        _tell(period, reason)
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
    """Periods to lock: the lock that every change of a period takes first.

    Not the strongest one: a run that is updated twice in one transaction has its key to the period checked, which shares the period's key.
    Two runs that ended at once would both share it, and each wait for the other to release it.
    """
    periods: QuerySet[DeliverablePeriod] = DeliverablePeriod.objects.for_tenant(tenant_id)
    return periods.select_for_update(of=("self",), no_key=True)


_ENDED = (PeriodState.COMPLETED, PeriodState.CANCELLED)


def _status(period: DeliverablePeriod, counts: Counter[str]) -> str:
    if period.status in (PeriodState.PLANNING, PeriodState.CANCELLED):
        return str(period.status)
    return PeriodState.ACTIVE if counts[RunState.RUNNING] else PeriodState.COMPLETED


def _troubles(period: DeliverablePeriod, counts: Counter[str]) -> list[str]:
    if period.status == PeriodState.PLANNING:
        return _troubles_of_planner(period)
    found = _short_of_target(period, counts)
    found += _list_failed_runs(period) if counts[RunState.FAILED] else []
    return found + _list_failed_steps(period) if counts[RunState.RUNNING] else found


def _short_of_target(period: DeliverablePeriod, counts: Counter[str]) -> list[str]:
    """What is not completed and not under way will not be completed in this period."""
    within_reach = counts[RunState.COMPLETED] + counts[RunState.RUNNING]
    if period.target is None or within_reach >= period.target:
        return []
    return [f"{within_reach} of {period.target} runs can be completed at most"]


def _troubles_of_planner(period: DeliverablePeriod) -> list[str]:
    """The planner has ended, and there is no plan."""
    planner = Activity.objects.for_tenant(period.tenant_id).filter(pk=period.planner_activity_id).first()
    if planner is None or planner.status not in states.SETTLED:
        return []
    if planner.status in (Status.DONE, Status.APPROVED):
        return ["The plan was refused" if period.plan_faults else "The planner gave no plan"]
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
    """Steps on the critical path that have failed in runs that still go on."""
    steps = (
        StepRun.objects.for_tenant(period.tenant_id)
        .filter(run__period_id=period.pk, run__status=RunState.RUNNING, status=StepState.FAILED)
        .select_related("run__version__pipeline")
        .order_by("run__plan_item", "run_id", "position")
    )
    found = (
        f"{_name_run(step.run)} failed at {step.step}"
        for step in steps
        if versions.compile_version(step.run.version_id).graph.fails_run(step.step)
    )
    return list(dict.fromkeys(found))  # a step with many branches is one trouble


def _tell(period: DeliverablePeriod, reason: str) -> None:
    """Once, when the period becomes at risk. A planner without a plan has alerts of its own."""
    raise_alert(
        period.tenant_id,
        AlertKind.PERIOD_AT_RISK,
        f"{period.deliverable.name} is at risk in {period.starts_on:%B %Y}",
        body=reason,
        facts={"period": period.pk, "deliverable": period.deliverable_id},
    )


def _name_run(run: PipelineRun) -> str:
    return run.name or run.version.pipeline.key


def _in_words(troubles: Sequence[str]) -> str:
    named = "; ".join(troubles[:NAMED])
    more = len(troubles) - NAMED
    return f"{named}; and {more} more." if more > 0 else f"{named}." if named else ""
