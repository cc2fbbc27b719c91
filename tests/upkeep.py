"""Upkeep in the process of the test: a leader that runs its system jobs one after the other."""

from __future__ import annotations

from typing import Any

from celery import current_app

import activities.tasks  # noqa: F401
import pipelines.tasks  # noqa: F401
from activities.maintenance import Leader, Scheduler
from activities.models import LeaderLease
from tenants.context import system_scope


def leading() -> Scheduler:
    """Return a scheduler that leads, even if another process led before."""
    with system_scope():
        LeaderLease.objects.update(expires_at="2020-01-01T00:00:00Z")
    leader = Leader()
    assert leader.campaign()
    return Scheduler(leader)


def tick() -> None:
    """Everything that is due for a leader that has just taken over."""
    leading().tick()


def carry_out(task: str, **arguments: Any) -> Any:
    """Run a background task as a worker does when its message arrives."""
    return current_app.tasks[task](**arguments)
