"""Where signals of the apps below reach pipelines. `connect` is the one place where they are wired."""

from __future__ import annotations

from typing import Any

from activities import transitions
from activities.signals import activity_buried, activity_reopened, activity_settled, planned_roles_asked
from agents import registry
from pipelines.deliverables import monthly_job
from tenants.signals import tenant_changed

from . import deliverables, jobs, progression, references, versions


def connect() -> None:
    transitions.end_steps_with(progression.FOLLOWING)
    activity_settled.connect(advance_run_of_activity, dispatch_uid="pipelines.advance_run")
    activity_settled.connect(follow_job, dispatch_uid="pipelines.follow_job")
    activity_reopened.connect(follow_job, dispatch_uid="pipelines.job_reopened")
    activity_settled.connect(follow_planner, dispatch_uid="pipelines.follow_planner")
    activity_reopened.connect(reopen_run_of_activity, dispatch_uid="pipelines.reopen_run")
    activity_reopened.connect(look_at_period_of_planner, dispatch_uid="pipelines.planner_reopened")
    activity_buried.connect(look_at_period_of_dead_letter, dispatch_uid="pipelines.dead_letter")
    planned_roles_asked.connect(tell_planned_roles, dispatch_uid="pipelines.planned_roles")
    tenant_changed.connect(keep_monthly_job, dispatch_uid="pipelines.monthly_job")
    registry.provide_references("pipelines", references.SOURCE)


def advance_run_of_activity(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    progression.advance(activity)


def follow_job(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    jobs.activity_changed(activity)


def follow_planner(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    deliverables.follow_planner(activity)


def reopen_run_of_activity(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    progression.reopen(activity)


def look_at_period_of_planner(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    deliverables.planner_changed(activity)


def look_at_period_of_dead_letter(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    deliverables.heed_dead_letter(activity)


def tell_planned_roles(sender: Any, *, activity: Any, **kwargs: Any) -> frozenset[str] | None:
    return versions.list_planned_roles(activity)


def keep_monthly_job(sender: Any, *, tenant: Any, **kwargs: Any) -> None:
    monthly_job.keep(tenant)
