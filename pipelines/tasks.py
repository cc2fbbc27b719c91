"""Celery's entry points, each one call long."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task

from activities import errands
from agents.routing import DELIVERABLE_PERIODS, SYSTEM_QUEUE
from pipelines import monthly, overdue, undecided


@shared_task(name=monthly.TASK, ignore_result=True)
def start_new_period(*, tenant: str) -> None:
    """The monthly job of one tenant. Safe to deliver twice, late or not at all."""
    monthly.run(UUID(tenant))


@shared_task(name=monthly.MADE_UP_TASK, ignore_result=True)
def start_missed_periods() -> None:
    """The monthly jobs that were never sent or got lost."""
    monthly.run_missed()


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
