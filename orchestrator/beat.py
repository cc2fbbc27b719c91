"""Beat's scheduler: django-celery-beat's, which here also makes up for what fell due while no beat was running, and sends our ticks alone.

Its own leaves crontabs out of its memory but for the four hours around theirs. A beat that was down at midnight of the first and is back
in the morning would not look at the monthly jobs before the evening. And whatever somebody writes into its table would be run.

Ticks are the only tasks that beat sends. A person who can write the table of periodic tasks could otherwise run any task of ours with any
arguments.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import structlog
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, close_old_connections
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler

from pipelines.deliverables import monthly_job
from pipelines.schedules import beat
from tenants import outages
from tenants.context import APP

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0  # after a look that an outage has kept from happening


class PatientScheduler(DatabaseScheduler):
    """Every enabled task is looked at, whatever the hour. Only ticks of ours are sent."""

    def tick(self, *arguments: Any, **options: Any) -> float:
        """As long as PostgreSQL is away nothing is due. Celery would end beat, and nothing is gained by starting it again."""
        try:
            wait: float = super().tick(*arguments, **options)
        except Exception as error:
            if not outages.may_pass(error):
                raise
            facts = {"action": "beat_waits", "reason": type(error).__name__}
            logger.warning("Beat waits for PostgreSQL", extra=facts)
            close_old_connections()
            # What was being read may be half read, and that it has changed is not told twice.
            self._initial_read, self._heap = True, None
            return AGAIN_SECONDS
        return wait

    def enabled_models_qs(self) -> Any:
        return self.Model.objects.enabled().filter(task__in=TICKS)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send one that is due, unless somebody has made it into something else."""
        if is_tick(entry.task, entry.args, entry.kwargs):
            with structlog.contextvars.bound_contextvars(tick=str(entry.name)):
                super().apply_entry(entry, producer=producer)
            return
        facts = {"action": "foreign_task_refused", "periodic_task": str(entry.name)}
        logger.error("A periodic task is none of ours", extra=facts)


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
        arguments = json.loads(kwargs or "{}") if isinstance(kwargs, str) else dict(kwargs or {})
        positional = json.loads(args or "[]") if isinstance(args, str) else args
    except (TypeError, ValueError):
        return False
    texts = isinstance(arguments, dict) and all(isinstance(value, str) for value in arguments.values())
    return task in TICKS and not positional and texts and arguments.keys() == TICKS[task]


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
