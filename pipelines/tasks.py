"""Celery's entry points, each one call long."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task

from activities import errands
from agents.routing import DELIVERABLE_PERIODS, SCHEDULES, SYSTEM_QUEUE
from pipelines import monthly, overdue, unadmitted, undecided
from pipelines.schedules import beat, firing, tending
from tenants import tracing


@shared_task(name=monthly.TASK, ignore_result=True)
@tracing.errand
def start_new_period(*, tenant: str) -> int:
    """The monthly job of one tenant. Safe to deliver twice, late or not at all."""
    return monthly.run(UUID(tenant))


@shared_task(name=monthly.MADE_UP_TASK, ignore_result=True)
@tracing.errand
def start_missed_periods() -> int:
    """The monthly jobs that were never sent or got lost."""
    return monthly.run_missed()


@shared_task(name=beat.TASK, ignore_result=True)
@tracing.errand
def fire_schedule(*, tenant: str, schedule: str) -> int:
    """Beat has ticked for one schedule. Safe to deliver twice, late or not at all."""
    return tending.fire_one(UUID(tenant), UUID(schedule))


@shared_task(name=beat.CHECK_TASK, ignore_result=True)
@tracing.errand
def check_schedules() -> int:
    """Beat has ticked for all schedules. Safe to deliver twice, late or not at all."""
    return tending.check()


@shared_task(name="schedules.fire_due", ignore_result=True)
@tracing.errand
def fire_due_schedules() -> int:
    """The times that have come. Safe to deliver twice, late or not at all."""
    return tending.fire()


@shared_task(name="schedules.expand", ignore_result=True)
@tracing.errand
def expand_executions() -> int:
    """Executions without all of their jobs. Safe to deliver twice, late or not at all."""
    return tending.expand()


@shared_task(name="schedules.settle", ignore_result=True)
@tracing.errand
def settle_executions() -> int:
    """Batches to let go, and executions that end. Safe to deliver twice, late or not at all."""
    return tending.settle()


@shared_task(name="schedules.close", ignore_result=True)
@tracing.errand
def close_executions() -> int:
    """Jobs of cancelled executions that go on. Safe to deliver twice, late or not at all."""
    return tending.close()


@shared_task(name=undecided.TASK, ignore_result=True)
@tracing.errand
def decide_steps() -> int:
    """Conditions that read what is in MongoDB by now. Safe to deliver twice, late or not at all."""
    return undecided.decide_waiting()


@shared_task(name=unadmitted.TASK, ignore_result=True)
@tracing.errand
def admit_steps() -> int:
    """Steps for which there was no room in a backlog. Safe to deliver twice, late or not at all."""
    return unadmitted.admit_waiting()


@shared_task(name=overdue.TASK, ignore_result=True)
@tracing.errand
def fail_overdue_steps() -> int:
    """Steps that have waited too long. Safe to deliver twice, late or not at all."""
    return overdue.fail_overdue()


errands.register(errands.Errand("undecided-steps", SYSTEM_QUEUE, undecided.TASK, waiting=undecided.waiting))
errands.register(
    errands.Errand("steps-without-room", SYSTEM_QUEUE, unadmitted.TASK, waiting=unadmitted.waiting)
)
errands.register(errands.Errand("overdue-steps", SYSTEM_QUEUE, overdue.TASK, waiting=overdue.waiting))
errands.register(
    errands.Errand("missed-periods", DELIVERABLE_PERIODS, monthly.MADE_UP_TASK, waiting=monthly.missed)
)
for _name, _task, _waiting in (
    ("schedules-due", "schedules.fire_due", firing.due),
    ("schedules-unexpanded", "schedules.expand", tending.unexpanded),
    ("schedules-unsettled", "schedules.settle", tending.unsettled),
    ("schedules-uncancelled", "schedules.close", tending.uncancelled),
):
    errands.register(errands.Errand(_name, SCHEDULES, _task, waiting=_waiting))
