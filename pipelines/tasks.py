"""Celery's entry points, each one call long."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task

from activities import background_tasks
from agents.routing import DELIVERABLE_PERIODS, SCHEDULES, SYSTEM_QUEUE
from pipelines.periods import monthly_job
from pipelines.schedules import beat, firing, system_jobs
from tenants import tracing

from . import waiting_steps


@shared_task(name=monthly_job.TASK, ignore_result=False)
@tracing.background_task
def start_new_period(*, tenant: str) -> int:
    """The monthly job of one tenant. Safe to deliver twice, late or not at all."""
    return monthly_job.run(UUID(tenant))


@shared_task(name=monthly_job.MADE_UP_TASK, ignore_result=False)
@tracing.background_task
def start_missed_periods() -> int:
    """The monthly jobs that were never sent or got lost."""
    return monthly_job.run_missed()


@shared_task(name=beat.TASK, ignore_result=True)
@tracing.background_task
def fire_schedule(*, tenant: str, schedule: str) -> int:
    """Beat has ticked for one schedule. Safe to deliver twice, late or not at all."""
    return system_jobs.fire_one(UUID(tenant), UUID(schedule))


@shared_task(name=beat.CHECK_TASK, ignore_result=True)
@tracing.background_task
def check_schedules() -> int:
    """Beat has ticked for all schedules. Safe to deliver twice, late or not at all."""
    return system_jobs.check()


@shared_task(name="schedules.fire_due", ignore_result=True)
@tracing.background_task
def fire_due_schedules() -> int:
    """The times that have come. Safe to deliver twice, late or not at all."""
    return system_jobs.fire()


@shared_task(name="schedules.expand", ignore_result=True)
@tracing.background_task
def expand_executions() -> int:
    """Executions without all of their jobs. Safe to deliver twice, late or not at all."""
    return system_jobs.expand()


@shared_task(name="schedules.settle", ignore_result=True)
@tracing.background_task
def settle_executions() -> int:
    """Batches to let go, and executions that end. Safe to deliver twice, late or not at all."""
    return system_jobs.settle()


@shared_task(name="schedules.close", ignore_result=True)
@tracing.background_task
def close_executions() -> int:
    """Jobs of cancelled executions that go on. Safe to deliver twice, late or not at all."""
    return system_jobs.close()


@shared_task(name=waiting_steps.DECIDE_TASK, ignore_result=True)
@tracing.background_task
def decide_steps() -> int:
    """Conditions that read what is in MongoDB by now. Safe to deliver twice, late or not at all."""
    return waiting_steps.decide_waiting()


@shared_task(name=waiting_steps.ADMIT_TASK, ignore_result=True)
@tracing.background_task
def admit_steps() -> int:
    """Steps for which there was no room in a backlog. Safe to deliver twice, late or not at all."""
    return waiting_steps.admit_steps()


@shared_task(name=waiting_steps.OVERDUE_TASK, ignore_result=True)
@tracing.background_task
def fail_overdue_steps() -> int:
    """Steps that have waited too long. Safe to deliver twice, late or not at all."""
    return waiting_steps.fail_overdue()


background_tasks.register(
    background_tasks.BackgroundTask(
        "undecided-steps", SYSTEM_QUEUE, waiting_steps.DECIDE_TASK, waiting=waiting_steps.runs_undecided
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        "steps-without-room", SYSTEM_QUEUE, waiting_steps.ADMIT_TASK, waiting=waiting_steps.steps_unadmitted
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        "overdue-steps", SYSTEM_QUEUE, waiting_steps.OVERDUE_TASK, waiting=waiting_steps.steps_overdue
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        "missed-periods", DELIVERABLE_PERIODS, monthly_job.MADE_UP_TASK, waiting=monthly_job.missed
    )
)
for _name, _task, _waiting in (
    ("schedules-due", "schedules.fire_due", firing.due),
    ("schedules-unexpanded", "schedules.expand", system_jobs.unexpanded),
    ("schedules-unsettled", "schedules.settle", system_jobs.unsettled),
    ("schedules-uncancelled", "schedules.close", system_jobs.uncancelled),
):
    background_tasks.register(background_tasks.BackgroundTask(_name, SCHEDULES, _task, waiting=_waiting))
