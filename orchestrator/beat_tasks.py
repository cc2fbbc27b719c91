"""The ticks: the only tasks that beat sends. Whoever can write the table of periodic tasks could otherwise run any task of ours with any
arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError
from django_celery_beat.models import PeriodicTask

from pipelines.deliverables import monthly_job
from pipelines.schedules import beat
from tenants.context import APP

#: The task, and the names of the arguments that it is sent with.
TICKS: dict[str, frozenset[str]] = {
    beat.TASK: frozenset({"tenant", "schedule"}),
    beat.CHECK_TASK: frozenset(),
    monthly_job.TASK: frozenset({"tenant"}),
    monthly_job.MADE_UP_TASK: frozenset(),
    "celery.backend_cleanup": frozenset(),  # beat makes it by itself
}


def is_tick(task: str, args: Any, kwargs: Any) -> bool:
    """Whether beat may send this. Arguments come as JSON from the table, or as beat has read them."""
    try:
        given = json.loads(kwargs or "{}") if isinstance(kwargs, str) else dict(kwargs or {})
        positional = json.loads(args or "[]") if isinstance(args, str) else args
    except (TypeError, ValueError):
        return False
    texts = isinstance(given, dict) and all(isinstance(value, str) for value in given.values())
    return task in TICKS and not positional and texts and given.keys() == TICKS[task]


def foreign() -> list[PeriodicTask]:
    """Periodic tasks that are no ticks, whether they are enabled or not."""
    rows = PeriodicTask.objects.order_by("pk").only("name", "task", "args", "kwargs", "enabled")
    return [row for row in rows.iterator() if not is_tick(row.task, row.args, row.kwargs)]


@register(Tags.database)
def only_ticks(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """`manage.py check --database default` fails while there are others. Beat does not send them either way."""
    if APP not in (databases or ()):
        return []
    try:
        found = foreign()
    except DatabaseError as error:
        return [Error(f"The periodic tasks cannot be read: {error}", id="orchestrator.E002")]
    return [
        Error(
            f"The periodic task {row.name!r} is none of ours: it would run {row.task!r}.",
            hint="Delete it, after finding out who made it. Beat refuses to send it.",
            id="orchestrator.E001",
        )
        for row in found
    ]
