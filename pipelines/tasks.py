"""Celery's entry points, each one call long."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task

from activities import errands
from agents.routing import DELIVERABLE_PERIODS
from pipelines import monthly


@shared_task(name=monthly.TASK, ignore_result=True)
def start_new_period(*, tenant: str) -> None:
    """The monthly job of one tenant. Safe to deliver twice, late or not at all."""
    monthly.run(UUID(tenant))


@shared_task(name=monthly.MADE_UP_TASK, ignore_result=True)
def start_missed_periods() -> None:
    """The monthly jobs that were never sent or got lost."""
    monthly.run_missed()


errands.register(
    errands.Errand("missed-periods", DELIVERABLE_PERIODS, monthly.MADE_UP_TASK, waiting=monthly.missed)
)
