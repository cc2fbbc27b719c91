"""From the planner's answer to runs: a plan is taken up once, and one that has faults goes back to the planner.

Everything happens in the transaction that settled the planner's activity, under the lock of the period, and only for the activity that
the period names as its planner: an answer that comes twice or late, or of an activity that was replaced, changes nothing.

Lock order: activity, period, and then the pipelines of the plan by their ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import approvals, cancellation, families, states
from activities.alerts import raise_alert
from activities.decision_rules import GENERAL_ROLE
from activities.models import Activity, OutputSpool
from activities.models.alert import AlertKind
from activities.states import LinkKind, Status
from activities.submission import NewActivity, submit
from pipelines import tally
from pipelines.definition.faults import Fault
from pipelines.exceptions import PeriodNotFound, PeriodNotPlanning, PlannerAtWork
from pipelines.models import Deliverable, DeliverablePeriod, PipelineRun
from pipelines.models.deliverable import PeriodState
from pipelines.months import end_of
from pipelines.periods import planner, plans
from pipelines.periods.plans import Plan, PlanInvalid, PlanItem
from pipelines.submission import NewRun, WhenFull, start_runs
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

ACTOR = "period"
_GOOD = (Status.DONE, Status.APPROVED)
_RETIRED = "The period gets its plan in another way."


def follow_planner(activity: Any) -> None:
    """Take up the plan of a planner that has just settled, or note what became of it. `activity` is a `transitions.Moved`."""
    period_id = planner.period_of(activity)
    if period_id is None:
        return
    period = tally.locked(activity.tenant_id).filter(pk=period_id).first()
    if period is None or period.status != PeriodState.PLANNING or period.planner_activity_id != activity.id:
        return
    if activity.status in _GOOD:
        _take_up_answer(period, activity)
    elif successor := _successor(activity):
        _update(period, planner_activity_id=successor)
    tally.recount(period.tenant_id, period.pk)


def planner_changed(activity: Any) -> None:
    """A planner has failed for good, or one that had is tried again: the period is at risk for it, or no longer is."""
    period_id = planner.period_of(activity)
    if period_id is None:
        return
    period = tally.locked(activity.tenant_id).filter(pk=period_id).first()
    if period is not None and period.planner_activity_id == activity.id:
        tally.recount(period.tenant_id, period.pk)


def heed_dead_letter(activity: Any) -> None:
    """Flag the period of a step, or of a planner, that has just failed for good. `activity` is a row of Activity."""
    if activity.pipeline_run_id is None:
        planner_changed(activity)
    else:
        runs = PipelineRun.objects.for_tenant(activity.tenant_id).filter(pk=activity.pipeline_run_id)
        tally.run_changed(runs.only("tenant_id", "period_id", "schedule_id").get())


def ask_again(tenant_id: UUID, period_id: UUID, *, actor: str) -> DeliverablePeriod:
    """Ask the planner anew, when the one before came to no plan. What people were asked because of that one is withdrawn.

    Raises `PeriodNotFound`, `PeriodNotPlanning`, `PlannerAtWork`.
    """
    with tenant_scope(tenant_id):
        period = _without_plan(tenant_id, period_id, actor)
        deliverable = Deliverable.objects.for_tenant(tenant_id).get(pk=period.deliverable_id)
        offers = planner.offers_for(tenant_id, [deliverable])[deliverable.pk]
        last = planner.last_periods(tenant_id, [deliverable.pk], period.starts_on).get(deliverable.pk)
        asked = planner.question(deliverable, period, offers.values(), last, activity_id=uuid7())
        submit([asked], actor=actor)
        _update(period, planner_activity_id=asked.id, plan_faults=[])
        return _counted(period)


def take_up(tenant_id: UUID, period_id: UUID, document: Any, *, actor: str) -> DeliverablePeriod:
    """Take up a person's plan, when the planner came to none. Raises `PlanInvalid` with every fault, else as `ask_again` does."""
    with tenant_scope(tenant_id):
        period = _without_plan(tenant_id, period_id, actor)
        _start_runs(period, _read(period, document), actor)
        return _counted(period)


def _without_plan(tenant_id: UUID, period_id: UUID, actor: str) -> DeliverablePeriod:
    """The period, locked, for which somebody has to see to a plan. Nobody else does so any more."""
    known = DeliverablePeriod.objects.for_tenant(tenant_id).filter(pk=period_id).first()
    if known is None:
        raise PeriodNotFound(f"There is no period {period_id}.")
    # The planner first, as whoever moves it holds it when asking for the period.
    _retire_planner(tenant_id, known.planner_activity_id, actor)
    period = tally.locked(tenant_id).get(pk=period_id)
    if period.status != PeriodState.PLANNING:
        raise PeriodNotPlanning(f"The period is {period.status}; plans are for periods that have none.")
    if period.planner_activity_id != known.planner_activity_id:
        raise PlannerAtWork(f"Activity {period.planner_activity_id} has begun to plan in this moment.")
    return period


def _retire_planner(tenant_id: UUID, activity_id: UUID, actor: str) -> None:
    """Close what is left of a planner that came to no plan. A person who was to plan is no longer asked to."""
    planning = families.lock(tenant_id, [activity_id]).get(activity_id)
    if planning is None:
        return
    if planning.agent_role and planning.status not in states.SETTLED:
        raise PlannerAtWork(f"Activity {planning.pk} is still planning; wait for it, or cancel it first.")
    if planning.status not in states.FINAL:
        cancellation.cancel(tenant_id, planning.pk, actor=actor, reason=_RETIRED)
    for asked in families.open_children(tenant_id, planning.pk, (LinkKind.ESCALATION,)):
        cancellation.cancel(tenant_id, asked.pk, actor=actor, reason=_RETIRED)


def _take_up_answer(period: DeliverablePeriod, activity: Any) -> None:
    try:
        _start_runs(period, _read(period, _answer_of(activity)), ACTOR)
    except PlanInvalid as refusal:
        _send_back(period, activity.id, refusal.faults)


def _answer_of(activity: Any) -> Any:
    """The output's data. It lies in the spool: this is the transaction that has put it there."""
    spool = OutputSpool.objects.for_tenant(activity.tenant_id).filter(pk=activity.output_ref)
    return spool.values_list("data", flat=True).first()


def _read(period: DeliverablePeriod, document: Any) -> Plan:
    deliverable = Deliverable.objects.for_tenant(period.tenant_id).get(pk=period.deliverable_id)
    offered = planner.offers_for(period.tenant_id, [deliverable], lock=True)[deliverable.pk]
    return plans.read(document, offered=offered, ends_at=end_of(period.ends_on))


def _start_runs(period: DeliverablePeriod, plan: Plan, actor: str) -> None:
    """One run for each item, and the period is under way. Must hold the period's lock and have seen it without a plan."""
    deliverable = Deliverable.objects.for_tenant(period.tenant_id).get(pk=period.deliverable_id)
    by_pipeline: dict[str, list[NewRun]] = defaultdict(list)
    for place, item in enumerate(plan.items):
        by_pipeline[item.pipeline].append(_new_run(period, deliverable, place, item))
    _update(period, status=PeriodState.ACTIVE, plan=plan.document, plan_faults=[], planned=len(plan.items))
    for key, runs in by_pipeline.items():
        start_runs(period.tenant_id, key, runs, actor=actor, when_full=WhenFull.WAIT)


def _new_run(period: DeliverablePeriod, deliverable: Deliverable, place: int, item: PlanItem) -> NewRun:
    return NewRun(
        name=item.name,
        params={**deliverable.params, **item.params},
        input=item.input,
        priority=item.priority,
        not_before=item.not_before,
        deliverable_id=deliverable.pk,
        period_id=period.pk,
        plan_item=place,
    )


def _send_back(period: DeliverablePeriod, activity_id: UUID, faults: Sequence[Fault]) -> None:
    """The planner does it again, told what was wrong; after too many rounds people have to see to it, as with a person's plan."""
    refused = Activity.objects.for_tenant(period.tenant_id).get(pk=activity_id)
    told = "\n".join(f"- {fault}" for fault in faults)
    _update(period, plan_faults=[{"path": fault.path, "message": fault.message} for fault in faults])
    if refused.agent_role is None or refused.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        _give_up(period, refused, told)
        return
    notes = f"The plan cannot be taken up. Correct it and answer with the whole plan again.\n{told}"
    _update(period, planner_activity_id=approvals.revise(refused, notes=notes, actor=ACTOR))


def _give_up(period: DeliverablePeriod, refused: Activity, told: str) -> None:
    deliverable = Deliverable.objects.for_tenant(period.tenant_id).get(pk=period.deliverable_id)
    title = f"No plan for {period.starts_on:%B %Y} of {deliverable.name}"[:200]
    escalation = NewActivity(
        name=title,
        description="Every plan was refused. Mend the planner or its instructions and ask it again, or give the plan yourself:"
        f" POST /api/v1/deliverable-periods/{period.pk}/plan/",
        human_role=GENERAL_ROLE,
        priority=states.BANDS["urgent"],
        parent_id=refused.pk,
        link_kind=LinkKind.ESCALATION,
        deliverable_id=period.deliverable_id,
        reviewer_notes=told,
    )
    submit([escalation], actor=ACTOR)
    raise_alert(
        period.tenant_id,
        AlertKind.PLAN_INVALID,
        title,
        body=told,
        activity_id=refused.pk,
        facts={"period": str(period.pk), "deliverable": str(period.deliverable_id)},
        dedup_key=f"plan_invalid:{refused.pk}",
    )


def _successor(activity: Any) -> UUID | None:
    """What has taken the place of a planner that was rejected or reassigned."""
    children = Activity.objects.for_tenant(activity.tenant_id).filter(
        parent_id=activity.id, link_kind__in=families.SUCCESSORS
    )
    found: UUID | None = children.order_by("-pk").values_list("pk", flat=True).first()
    return found


def _update(period: DeliverablePeriod, **changes: Any) -> None:
    DeliverablePeriod.objects.for_tenant(period.tenant_id).filter(pk=period.pk).update(**changes)


def _counted(period: DeliverablePeriod) -> DeliverablePeriod:
    tally.recount(period.tenant_id, period.pk)
    period.refresh_from_db()
    return period
