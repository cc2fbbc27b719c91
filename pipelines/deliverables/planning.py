"""Turns the planner's answer into runs. A plan is accepted once; a plan with errors goes back to the planner.

This happens in the transaction that settles the planner's activity, under the lock of the period, and only for the activity that the period
names as its planner. So a duplicate or late answer, or the answer of an activity that was replaced, changes nothing.

Lock order: activity, period, then the pipelines of the plan by their ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F

from activities import activity_tree, cancellation, states
from activities.alerts import raise_alert
from activities.decision_rules import GENERAL_ROLE
from activities.human_tasks import revisions
from activities.models import Activity, OutputSpool
from activities.models.alert import AlertKind
from activities.states import LinkKind, Status, WakeReason
from activities.submission import NewActivity, submit
from pipelines import period_counts
from pipelines.definition.errors import InputError
from pipelines.deliverables import plans
from pipelines.deliverables.plans import Offer, Plan, PlanInvalid, PlanItem
from pipelines.exceptions import NotFound, PeriodNotPlanning, PipelineError
from pipelines.models import Deliverable, DeliverablePeriod, Pipeline, PipelineRun, PipelineVersion
from pipelines.models.deliverable import PeriodState, end_of
from pipelines.submission import NewRun, WhenFull, errors_of, start_runs
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.wording import describe_count

ACTOR = "period"
_GOOD = (Status.DONE, Status.APPROVED)
_RETIRED = "The period gets its plan from somewhere else."


def follow_planner(activity: Any) -> None:
    """Accept the plan of a planner that has just settled, or record its outcome. `activity` is a `transitions.Moved`."""
    period_id = period_of(activity)
    if period_id is None:
        return
    period = period_counts.lock_periods(activity.tenant_id).filter(pk=period_id).first()
    if period is None or period.status != PeriodState.PLANNING or period.planner_activity_id != activity.id:
        return
    if activity.status in _GOOD:
        try:
            _start_runs(period, _read(period, _answer_of(activity)), ACTOR)
        except PlanInvalid as refusal:
            _refuse_plan(period, activity.id, refusal.errors)
    elif successor := activity_tree.successors_of(activity.tenant_id, activity.id).first():
        _update(period, planner_activity_id=successor.pk)
    period_counts.recount(period.tenant_id, period.pk)


def planner_changed(activity: Any) -> None:
    """Recount the period of a planner that has failed finally, or that is retried."""
    period_id = period_of(activity)
    if period_id is None:
        return
    period = period_counts.lock_periods(activity.tenant_id).filter(pk=period_id).first()
    if period is not None and period.planner_activity_id == activity.id:
        period_counts.recount(period.tenant_id, period.pk)


def follow_dead_letter(activity: Any) -> None:
    """Flag the period of a step or a planner that has just failed finally. `activity` is a row of Activity."""
    if activity.pipeline_run_id is None:
        planner_changed(activity)
    else:
        runs = PipelineRun.objects.for_tenant(activity.tenant_id).filter(pk=activity.pipeline_run_id)
        period_counts.run_changed(runs.only("tenant_id", "period_id", "schedule_id").get())


def ask_again(tenant_id: UUID, period_id: UUID, *, actor: str) -> DeliverablePeriod:
    """Ask the planner again after it produced no plan. Cancels open questions to people about the last attempt.

    Raises `NotFound`, `PeriodNotPlanning`, and `PipelineError` while the planner works.
    """
    with tenant_scope(tenant_id):
        period = _lock_unplanned_period(tenant_id, period_id, actor)
        deliverable = Deliverable.objects.for_tenant(tenant_id).get(pk=period.deliverable_id)
        offers = offers_for(tenant_id, [deliverable])[deliverable.pk]
        last = last_periods(tenant_id, [deliverable.pk], period.starts_on).get(deliverable.pk)
        question = planner_question(deliverable, period, offers.values(), last, activity_id=uuid7())
        submit([question], actor=actor)
        _update(period, planner_activity_id=question.id, plan_faults=[])
        return _recount_period(period)


def accept_plan(
    tenant_id: UUID, period_id: UUID, document: Any, *, actor: str, requested_identity: str = ""
) -> DeliverablePeriod:
    """Accept a person's plan after the planner produced none. `requested_identity` is that of the person.

    Raises `PlanInvalid` with every error, and the errors of `ask_again`.
    """
    with tenant_scope(tenant_id):
        period = _lock_unplanned_period(tenant_id, period_id, actor)
        _start_runs(period, _read(period, document), actor, requested_identity)
        return _recount_period(period)


def errors_of_plan(tenant_id: UUID, period_id: UUID, document: Any) -> list[InputError]:
    """Return the errors of a plan for this period, without accepting it. Call it within a `tenant_scope`."""
    period = DeliverablePeriod.objects.for_tenant(tenant_id).get_or_raise(NotFound, "period", period_id)
    try:
        _read(period, document)
    except PlanInvalid as refusal:
        return refusal.errors
    return []


def _lock_unplanned_period(tenant_id: UUID, period_id: UUID, actor: str) -> DeliverablePeriod:
    """Lock and return a period without a plan, and retire its planner."""
    known = DeliverablePeriod.objects.for_tenant(tenant_id).get_or_raise(NotFound, "period", period_id)
    # Lock the planner first: a transaction that moves it locks it before the period.
    _retire_planner(tenant_id, known.planner_activity_id, actor)
    period = period_counts.lock_periods(tenant_id).get(pk=period_id)
    if period.status != PeriodState.PLANNING:
        raise PeriodNotPlanning(f"The period is {period.status}; only a period without a plan can get one.")
    if period.planner_activity_id != known.planner_activity_id:
        raise PipelineError(
            f"Activity {period.planner_activity_id} has just started to plan.", code="planner_at_work"
        )
    return period


def _retire_planner(tenant_id: UUID, activity_id: UUID, actor: str) -> None:
    """Cancel what is still open of a planner that produced no plan, including questions to people."""
    planning = activity_tree.lock(tenant_id, [activity_id]).get(activity_id)
    if planning is None:
        return
    if planning.agent_role and planning.status not in states.SETTLED:
        raise PipelineError(
            f"Activity {planning.pk} is still planning; wait for it, or cancel it first.",
            code="planner_at_work",
        )
    if planning.status not in states.FINAL:
        cancellation.cancel(tenant_id, planning.pk, actor=actor, reason=_RETIRED)
    for question in activity_tree.open_children(tenant_id, planning.pk, (LinkKind.ESCALATION,)):
        cancellation.cancel(tenant_id, question.pk, actor=actor, reason=_RETIRED)


def _answer_of(activity: Any) -> Any:
    """Return the output's data, or the plan in its content. The same transaction has written it to the spool."""
    spool = OutputSpool.objects.for_tenant(activity.tenant_id).filter(pk=activity.output_ref)
    data, content = spool.values_list("data", "content").first() or (None, None)
    return plans.extract_plan(content) if data is None and content else data


def _read(period: DeliverablePeriod, document: Any) -> Plan:
    deliverable = Deliverable.objects.for_tenant(period.tenant_id).get(pk=period.deliverable_id)
    offered = offers_for(period.tenant_id, [deliverable], lock=True)[deliverable.pk]

    def errors_of_params(key: str, params: Sequence[Mapping[str, Any]]) -> list[list[InputError]]:
        return errors_of(period.tenant_id, key, [{**deliverable.params, **each} for each in params])

    return plans.read(
        document, offered=offered, ends_at=end_of(period.ends_on), errors_of_params=errors_of_params
    )


def _start_runs(period: DeliverablePeriod, plan: Plan, actor: str, requested_identity: str = "") -> None:
    """Start one run for each item, and the period. The caller holds the period's lock and has checked that it has no plan."""
    deliverable = Deliverable.objects.for_tenant(period.tenant_id).get(pk=period.deliverable_id)
    by_pipeline: dict[str, list[NewRun]] = defaultdict(list)
    for place, item in enumerate(plan.items):
        by_pipeline[item.pipeline].append(_new_run(period, deliverable, place, item, requested_identity))
    _update(period, status=PeriodState.ACTIVE, plan=plan.document, plan_faults=[], planned=len(plan.items))
    for key, runs in by_pipeline.items():
        start_runs(period.tenant_id, key, runs, actor=actor, when_full=WhenFull.WAIT)


def _new_run(
    period: DeliverablePeriod, deliverable: Deliverable, place: int, item: PlanItem, requested_identity: str
) -> NewRun:
    return NewRun(
        requested_identity=requested_identity,
        name=item.name,
        params={**deliverable.params, **item.params},
        input=item.input,
        priority=item.priority,
        not_before=item.not_before,
        deliverable_id=deliverable.pk,
        period_id=period.pk,
        plan_item=place,
    )


def _refuse_plan(period: DeliverablePeriod, activity_id: UUID, errors: Sequence[InputError]) -> None:
    """Ask the planner for a revision with the errors. After too many rounds, or for a person's plan, escalate to people."""
    refused = Activity.objects.for_tenant(period.tenant_id).get(pk=activity_id)
    listed = "\n".join(f"- {error}" for error in errors)
    _update(period, plan_faults=[{"path": error.path, "message": error.message} for error in errors])
    if refused.agent_role is None or refused.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        _give_up(period, refused, listed)
        return
    notes = f"The plan was refused. Correct it and answer with the whole plan again.\n{listed}"
    _update(period, planner_activity_id=revisions.submit_revision(refused, notes=notes, actor=ACTOR))


def _give_up(period: DeliverablePeriod, refused: Activity, errors: str) -> None:
    deliverable = Deliverable.objects.for_tenant(period.tenant_id).get(pk=period.deliverable_id)
    title = f"No plan for {period.starts_on:%B %Y} of {deliverable.name}"[:200]
    escalation = NewActivity(
        name=title,
        description="Every plan was refused. Correct the planner or its instructions and ask it again, or submit a plan yourself:"
        f" POST /api/v1/deliverable-periods/{period.pk}/plan/",
        human_role=GENERAL_ROLE,
        priority=states.BANDS["urgent"],
        parent_id=refused.pk,
        link_kind=LinkKind.ESCALATION,
        deliverable_id=period.deliverable_id,
        period_id=period.pk,
        reviewer_notes=errors,
    )
    submit([escalation], actor=ACTOR)
    raise_alert(
        period.tenant_id,
        AlertKind.PLAN_INVALID,
        title,
        body=errors,
        activity_id=refused.pk,
        facts={"period": str(period.pk), "deliverable": str(period.deliverable_id)},
        dedup_key=f"plan_invalid:{refused.pk}",
    )


def _update(period: DeliverablePeriod, **changes: Any) -> None:
    DeliverablePeriod.objects.for_tenant(period.tenant_id).filter(pk=period.pk).update(**changes)


def _recount_period(period: DeliverablePeriod) -> DeliverablePeriod:
    period_counts.recount(period.tenant_id, period.pk)
    period.refresh_from_db()
    return period


# The planner's activity. Its parameters contain all that it needs: the form of a plan, the available pipelines, and the outcome of the last
# period.


ROLE = "activity-planner"
#: In the metadata of a planner's activity and its successors: the period that it plans. Callers may write the same into the metadata of
#: other activities, so it is only a hint: the period itself names its planner.
MARK = "deliverable_period"

_TASK = """\
Plan {month} of the deliverable "{name}".

Answer with a plan in the form of the parameter `plan_schema`, as the output's `data` or as JSON in its `content`. Each item becomes one
run of one of the `pipelines`. All of them start when the plan is accepted, or at the item's `not_before`. The period is from {starts_on} to
{ends_on}, in UTC. `last_period` has the outcome of the period before, if there was one.{target}"""
_TARGET = " At least {runs} should be completed."


def planner_question(
    deliverable: Deliverable,
    period: DeliverablePeriod,
    offers: Iterable[Offer],
    last: DeliverablePeriod | None,
    *,
    activity_id: UUID,
) -> NewActivity:
    """Return the planner's activity for this period."""
    return NewActivity(
        id=activity_id,
        name=f"Plan {period.starts_on:%B %Y}: {deliverable.name}"[:200],
        description=_TASK.format(
            month=f"{period.starts_on:%B %Y}",
            name=deliverable.name,
            starts_on=period.starts_on,
            ends_on=period.ends_on,
            target=_TARGET.format(runs=describe_count(period.target, "run")) if period.target else "",
        ),
        agent_role=ROLE,
        params={
            "deliverable": {
                name: getattr(deliverable, name) for name in ("key", "name", "description", "params")
            },
            "period": {"id": str(period.pk), **_days(period), "target": period.target},
            "pipelines": [offer.to_dict() for offer in offers],
            "last_period": _figures(last) if last else None,
            "plan_schema": plans.SCHEMA,
        },
        metadata={MARK: str(period.pk)},
        deliverable_id=deliverable.pk,
        period_id=period.pk,
        dedup_key=f"{period.tenant_id}:{period.pk}:{WakeReason.SCHEDULED}",
        wake_reason=WakeReason.SCHEDULED,
    )


def period_of(activity: Any) -> UUID | None:
    """Return the period in the activity's metadata, or None. `activity` is a row of Activity."""
    if activity.pipeline_run_id is not None:
        return None
    try:
        return UUID((activity.metadata or {}).get(MARK))
    except (TypeError, ValueError, AttributeError):
        return None


def offers_for(
    tenant_id: UUID, deliverables: Sequence[Deliverable], *, lock: bool = False
) -> dict[UUID, dict[str, Offer]]:
    """Return the pipelines that each deliverable's plans may use: those that it names and that are enabled.

    With `lock` they cannot change until the transaction ends.
    """
    keys = {key for deliverable in deliverables for key in deliverable.pipelines}
    if lock:
        rows = Pipeline.objects.for_tenant(tenant_id).filter(key__in=keys).order_by("pk")
        list(rows.select_for_update(no_key=True).values_list("pk", flat=True))
    newest = (
        PipelineVersion.objects.for_tenant(tenant_id)
        .filter(pipeline__key__in=keys, pipeline__enabled=True, number=F("pipeline__latest"))
        .values_list("pipeline__key", "pipeline__name", "pipeline__description", "definition__params")
    )
    offers = {key: Offer(key, name, description, params or {}) for key, name, description, params in newest}
    return {
        deliverable.pk: {key: offers[key] for key in deliverable.pipelines if key in offers}
        for deliverable in deliverables
    }


def last_periods(
    tenant_id: UUID, deliverable_ids: Iterable[UUID], before: date
) -> Mapping[UUID, DeliverablePeriod]:
    """Return the latest period of each deliverable that started before this day."""
    rows = DeliverablePeriod.objects.for_tenant(tenant_id).filter(
        deliverable_id__in=list(deliverable_ids), starts_on__lt=before
    )
    newest = rows.order_by("deliverable_id", "-starts_on").distinct("deliverable_id")
    return {period.deliverable_id: period for period in newest}


def _days(period: DeliverablePeriod) -> dict[str, str]:
    return {"starts_on": period.starts_on.isoformat(), "ends_on": period.ends_on.isoformat()}


def _figures(period: DeliverablePeriod) -> dict[str, Any]:
    figures = ("status", "target", "planned", "completed", "failed", "cancelled", "at_risk", "at_risk_reason")
    return {**_days(period), **{name: getattr(period, name) for name in figures}}
