"""Receives signals of the apps below. `connect` is the only place that connects them for pipelines."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from activities import transitions
from activities.signals import (
    activity_buried,
    activity_reopened,
    activity_settled,
    cancelled_work_asked,
    gates_beside_asked,
    planned_roles_asked,
    replayed_work_asked,
    revisable_work_asked,
)
from agents import registry
from agents.signals import scheduling_resumed
from pipelines.deliverables import monthly_job
from pipelines.models import Deliverable, Pipeline, Schedule
from pipelines.schedules import firing
from tenants import owned_ids
from tenants.models import PauseKind
from tenants.signals import tenant_changed, work_resumed

from . import deliverables, jobs, progression, references, versions


def connect() -> None:
    transitions.end_steps_with(progression.FOLLOWING)
    activity_settled.connect(advance_run_of_activity, dispatch_uid="pipelines.advance_run")
    activity_settled.connect(follow_job, dispatch_uid="pipelines.follow_job")
    activity_reopened.connect(follow_job, dispatch_uid="pipelines.job_reopened")
    activity_settled.connect(follow_planner, dispatch_uid="pipelines.follow_planner")
    activity_reopened.connect(reopen_run_of_activity, dispatch_uid="pipelines.reopen_run")
    activity_reopened.connect(follow_reopened_planner, dispatch_uid="pipelines.planner_reopened")
    activity_buried.connect(follow_dead_letter, dispatch_uid="pipelines.dead_letter")
    planned_roles_asked.connect(list_planned_roles, dispatch_uid="pipelines.planned_roles")
    cancelled_work_asked.connect(list_cancelled_work, dispatch_uid="pipelines.cancelled_work")
    replayed_work_asked.connect(list_replayed_work, dispatch_uid="pipelines.replayed_work")
    revisable_work_asked.connect(list_revisable_work, dispatch_uid="pipelines.revisable_work")
    gates_beside_asked.connect(list_gates_beside, dispatch_uid="pipelines.gates_beside")
    work_resumed.connect(miss_times_of_pause, dispatch_uid="pipelines.times_of_pause")
    scheduling_resumed.connect(miss_times_of_all, dispatch_uid="pipelines.times_of_all")
    tenant_changed.connect(update_monthly_job, dispatch_uid="pipelines.monthly_job")
    registry.provide_references("pipelines", references.SOURCE)
    owned_ids.provide("deliverable", owned_ids.rows_of(Deliverable))
    owned_ids.provide("pipeline", owned_ids.rows_of(Pipeline))


def advance_run_of_activity(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    progression.advance(activity)


def follow_job(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    jobs.activity_changed(activity)


def follow_planner(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    deliverables.follow_planner(activity)


def reopen_run_of_activity(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    progression.reopen(activity)


def follow_reopened_planner(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    deliverables.planner_changed(activity)


def follow_dead_letter(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    deliverables.follow_dead_letter(activity)


def list_cancelled_work(sender: Any, *, tenant_id: UUID, activities: Any, **kwargs: Any) -> set[UUID]:
    return progression.of_cancelled_runs(tenant_id, activities)


def list_replayed_work(
    sender: Any, *, tenant_id: UUID, activities: Any, together: bool, **kwargs: Any
) -> set[UUID]:
    return progression.of_repeated_runs(tenant_id, activities, together=together)


def list_revisable_work(sender: Any, *, tenant_id: UUID, activity_ids: Any, **kwargs: Any) -> set[UUID]:
    return progression.find_revisable(tenant_id, activity_ids)


def list_gates_beside(sender: Any, *, tenant_id: UUID, activity_ids: Any, **kwargs: Any) -> set[UUID | None]:
    return progression.find_gates_beside(tenant_id, activity_ids)


def list_planned_roles(sender: Any, *, activity: Any, **kwargs: Any) -> frozenset[str] | None:
    return versions.list_planned_roles(activity)


def update_monthly_job(sender: Any, *, tenant: Any, **kwargs: Any) -> None:
    monthly_job.update(tenant)


def miss_times_of_pause(
    sender: Any, *, tenant_id: UUID, kind: str | None, subject: str, **kwargs: Any
) -> None:
    schedules = Schedule.objects.for_tenant(tenant_id)
    if kind is None:
        firing.miss_times(schedules)
    elif kind == PauseKind.SCHEDULE:
        firing.miss_times(schedules.filter(pk=subject))


def miss_times_of_all(sender: Any, **kwargs: Any) -> None:
    firing.miss_times_of_all()
