"""Receives signals of the apps below. `connect` is the only place that connects them for pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.dispatch import Signal

from activities import transitions
from activities.signals import (
    activity_dead_lettered,
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
from pipelines import deliverables, jobs, progression, references, versions
from pipelines.deliverables import monthly_job
from pipelines.models import Deliverable, Pipeline, Schedule
from pipelines.schedules import firing
from tenants import owned_ids
from tenants.models import PauseKind
from tenants.signals import tenant_changed, work_resumed


def connect() -> None:
    transitions.end_steps_with(progression.FOLLOWING)
    for signal, name, function in (
        (activity_settled, "advance_run", lambda activity: progression.advance(activity)),
        (activity_settled, "follow_job", jobs.activity_changed),
        (activity_reopened, "job_reopened", jobs.activity_changed),
        (activity_settled, "follow_planner", deliverables.follow_planner),
        (activity_reopened, "reopen_run", progression.reopen),
        (activity_reopened, "planner_reopened", deliverables.planner_changed),
        (
            activity_dead_lettered,
            "dead_letter",
            lambda activity, **_: deliverables.follow_dead_letter(activity),
        ),
        (planned_roles_asked, "planned_roles", versions.list_planned_roles),
        (cancelled_work_asked, "cancelled_work", progression.of_cancelled_runs),
        (replayed_work_asked, "replayed_work", progression.of_repeated_runs),
        (revisable_work_asked, "revisable_work", progression.find_revisable),
        (gates_beside_asked, "gates_beside", progression.find_gates_beside),
        (work_resumed, "times_of_pause", miss_times_of_pause),
        (scheduling_resumed, "times_of_all", firing.miss_times_of_all),
        (tenant_changed, "monthly_job", monthly_job.update),
    ):
        signal.connect(receiver_of(function), weak=False, dispatch_uid=f"pipelines.{name}")
    registry.provide_references("pipelines", references.SOURCE)
    owned_ids.provide("deliverable", owned_ids.rows_of(Deliverable))
    owned_ids.provide("pipeline", owned_ids.rows_of(Pipeline))


def receiver_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a receiver that calls the function with what the signal carries."""

    def receive(sender: Any, signal: Signal, **facts: Any) -> Any:
        return function(**facts)

    return receive


def miss_times_of_pause(*, tenant_id: UUID, kind: str | None, subject: str) -> None:
    schedules = Schedule.objects.for_tenant(tenant_id)
    if kind is None:
        firing.miss_times(schedules)
    elif kind == PauseKind.SCHEDULE:
        firing.miss_times(schedules.filter(pk=subject))
