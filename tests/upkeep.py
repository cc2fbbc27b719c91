"""System jobs and background tasks in the process of the test."""

from __future__ import annotations

from typing import Any

from celery import current_app

import activities.tasks  # noqa: F401
import pipelines.tasks  # noqa: F401
from activities.maintenance import Leader, Scheduler
from activities.models import LeaderLease
from tenants.context import system_scope


def new_leader() -> Scheduler:
    """Return a scheduler that leads, even if another process led before."""
    with system_scope():
        LeaderLease.objects.update(expires_at="2020-01-01T00:00:00Z")
    leader = Leader()
    assert leader.campaign()
    return Scheduler(leader)


def run_due_jobs() -> None:
    """Run every system job once, as a leader that has just taken over."""
    new_leader().tick()


def run_task(task: str, **arguments: Any) -> Any:
    """Run a background task as a worker does when its message arrives."""
    return current_app.tasks[task](**arguments)
