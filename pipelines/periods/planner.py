"""What the planner of a period is asked, and how its activity is recognised again.

The work is complete in itself: the form of a plan, the pipelines to choose from, and how the last period went are parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any
from uuid import UUID

from django.db.models import F

from activities.states import WakeReason
from activities.submission import NewActivity
from pipelines.models import Deliverable, DeliverablePeriod, Pipeline, PipelineVersion
from pipelines.periods import plans
from pipelines.periods.plans import Offer

ROLE = "activity-planner"
#: In the metadata of a planner's activity, and of what takes its place: the period that it plans. Callers may write the same into
#: metadata of theirs, so it only says where to look: the period itself names its planner.
MARK = "deliverable_period"

_TASK = """\
Plan {month} of the deliverable "{name}".

Answer with a plan as the output's `data`, in the form of the parameter `plan_schema`. Each item becomes one run of one of the
`pipelines`. All of them start when the plan is taken up, or at the item's `not_before`. The period is from {starts_on} to {ends_on},
in UTC. `last_period` says how the period before went, if there was one."""


def question(
    deliverable: Deliverable,
    period: DeliverablePeriod,
    offers: Iterable[Offer],
    last: DeliverablePeriod | None,
    *,
    activity_id: UUID,
) -> NewActivity:
    """The planner's activity for this period."""
    return NewActivity(
        id=activity_id,
        name=f"Plan {period.starts_on:%B %Y}: {deliverable.name}"[:200],
        description=_TASK.format(
            month=f"{period.starts_on:%B %Y}",
            name=deliverable.name,
            starts_on=period.starts_on,
            ends_on=period.ends_on,
        ),
        agent_role=ROLE,
        params={
            "deliverable": {
                name: getattr(deliverable, name) for name in ("key", "name", "description", "params")
            },
            "period": {"id": str(period.pk), **_days(period)},
            "pipelines": [offer.to_dict() for offer in offers],
            "last_period": _figures(last) if last else None,
            "plan_schema": plans.SCHEMA,
        },
        metadata={MARK: str(period.pk)},
        deliverable_id=deliverable.pk,
        dedup_key=f"{period.tenant_id}:{period.pk}:{WakeReason.SCHEDULED}",
        wake_reason=WakeReason.SCHEDULED,
    )


def period_of(activity: Any) -> UUID | None:
    """The period that this activity says it plans. `activity` is a row of Activity."""
    if activity.pipeline_run_id is not None:
        return None
    try:
        return UUID((activity.metadata or {}).get(MARK))
    except (TypeError, ValueError, AttributeError):
        return None


def offers_for(
    tenant_id: UUID, deliverables: Sequence[Deliverable], *, lock: bool = False
) -> dict[UUID, dict[str, Offer]]:
    """For each deliverable the pipelines that its plans may use: those that it names and that are switched on.

    With `lock` they stay as they are until the transaction ends.
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
    """The latest period of each deliverable that began before this day."""
    rows = DeliverablePeriod.objects.for_tenant(tenant_id).filter(
        deliverable_id__in=list(deliverable_ids), starts_on__lt=before
    )
    newest = rows.order_by("deliverable_id", "-starts_on").distinct("deliverable_id")
    return {period.deliverable_id: period for period in newest}


def _days(period: DeliverablePeriod) -> dict[str, str]:
    return {"starts_on": period.starts_on.isoformat(), "ends_on": period.ends_on.isoformat()}


def _figures(period: DeliverablePeriod) -> dict[str, Any]:
    figures = ("status", "planned", "completed", "failed", "cancelled", "at_risk", "at_risk_reason")
    return {**_days(period), **{name: getattr(period, name) for name in figures}}
