"""Celery's entry points, each one call long."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task

from activities import dispatch
from activities.admission import Grant
from agents.routing import RUN_TASK


@shared_task(name=RUN_TASK, ignore_result=True)
def run(*, tenant: str, activity: str, grant: str, role: str) -> None:
    """Run one granted activity. Safe to deliver twice, late or not at all."""
    dispatch.work(Grant(UUID(activity), UUID(tenant), role, grant, started=False))
