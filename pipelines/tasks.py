"""Celery's entry points, each one call long."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task

from activities import errands
from agents.routing import DELIVERABLE_PERIODS, SCHEDULES, SYSTEM_QUEUE
from pipelines import monthly, overdue, undecided
from pipelines.schedules import beat, firing, tending


@shared_task(name=monthly.TASK, ignore_result=True)
def start_new_period(*, tenant: str) -> None:
    """The monthly job of one tenant. Safe to deliver twice, late or not at all."""
    monthly.run(UUID(tenant))


@shared_task(name=monthly.MADE_UP_TASK, ignore_result=True)
def start_missed_periods() -> None:
    """The monthly jobs that were never sent or got lost."""
    monthly.run_missed()


@shared_task(name=beat.TASK, ignore_result=True)
def fire_schedule(*, tenant: str, schedule: str) -> None:
    """Beat has ticked for one schedule. Safe to deliver twice, late or not at all."""
    tending.fire_one(UUID(tenant), UUID(schedule))


@shared_task(name=beat.CHECK_TASK, ignore_result=True)
def check_schedules() -> None:
    """Beat has ticked for all schedules. Safe to deliver twice, late or not at all."""
    tending.check()


@shared_task(name="schedules.fire_due", ignore_result=True)
def fire_due_schedules() -> None:
    """The times that have come. Safe to deliver twice, late or not at all."""
    tending.fire()


@shared_task(name="schedules.expand", ignore_result=True)
def expand_executions() -> None:
    """Executions without all of their jobs. Safe to deliver twice, late or not at all."""
    tending.expand()


@shared_task(name="schedules.settle", ignore_result=True)
def settle_executions() -> None:
    """Batches to let go, and executions that end. Safe to deliver twice, late or not at all."""
    tending.settle()


@shared_task(name="schedules.close", ignore_result=True)
def close_executions() -> None:
    """Jobs of cancelled executions that go on. Safe to deliver twice, late or not at all."""
    tending.close()


@shared_task(name=undecided.TASK, ignore_result=True)
def decide_steps() -> None:
    """Conditions that read what is in MongoDB by now. Safe to deliver twice, late or not at all."""
    undecided.decide_waiting()


@shared_task(name=overdue.TASK, ignore_result=True)
def fail_overdue_steps() -> None:
    """Steps that have waited too long. Safe to deliver twice, late or not at all."""
    overdue.fail_overdue()


errands.register(errands.Errand("undecided-steps", SYSTEM_QUEUE, undecided.TASK, waiting=undecided.waiting))
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
