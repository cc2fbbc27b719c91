"""Beat's scheduler: that of django-celery-beat, which here also catches up on missed times, and sends only our own tasks (ticks).

The original loads crontabs only in the four hours around their time. So a beat that was down at midnight of the first and returns in the
morning would not check the monthly jobs before the evening.

Beat sends nothing but ticks, because otherwise everybody who can write the table of periodic tasks could run any task with any arguments.
A row whose times cannot be computed is left out, where the original would end beat at every start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from copy import copy
from typing import Any

import structlog
from celery import schedules
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, close_old_connections
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from django_celery_beat.schedulers import NEVER_CHECK_TIMEOUT, DatabaseScheduler, ModelEntry

from orchestrator.celery import app, ensure
from pipelines.deliverables import monthly_job
from pipelines.schedules import beat
from tenants import outages
from tenants.context import APP

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # while PostgreSQL does not answer


class Entry(ModelEntry):
    """A row of the table. An error in a row is logged, and the other rows are sent."""

    def __init__(self, model: PeriodicTask, app: Any = None) -> None:
        """Raise `ValueError` for a row that cannot be read, which the scheduler leaves out."""
        try:
            if reason := error_of_interval(model.interval):
                raise ValueError(reason)
            super().__init__(model, app=app)
        except Exception as error:
            if outages.may_pass(error):
                raise
            _log_error(model, error)
            raise ValueError(str(error)) from error

    def is_due(self) -> schedules.schedstate:
        try:
            return super().is_due()
        except Exception as error:
            if outages.may_pass(error):
                raise
            _log_error(self.model, error)
            return schedules.schedstate(is_due=False, next=NEVER_CHECK_TIMEOUT)


def _log_error(row: PeriodicTask, error: Exception) -> None:
    facts = {
        "action": "periodic_task_faulty",
        "periodic_task": row.name,
        "reason": f"{type(error).__name__}: {error}",
    }
    logger.error("Periodic task cannot be sent", extra=facts)


class PatientScheduler(DatabaseScheduler):
    """Checks every enabled task at any hour, and sends only ticks."""

    Entry = Entry

    def setup_schedule(self) -> None:
        """Read the schedule for the first time. Wait for PostgreSQL as a worker does when it starts."""
        ensure(super().setup_schedule)

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Send what is due. Wait while PostgreSQL does not answer, where Celery would end beat, because a restart would not help."""
        try:
            wait: float = super().tick(*arguments, **options)
        except Exception as error:
            if not outages.may_pass(error):
                raise
            facts = {"action": "beat_waits", "reason": type(error).__name__}
            logger.warning("Beat waits for PostgreSQL", extra=facts)
            close_old_connections()
            # Read everything again, because the schedule may be half read and its change is signalled only once.
            self._initial_read, self._heap = True, None
            return RETRY_SECONDS
        return wait

    def enabled_models_qs(self) -> Any:
        return self.Model.objects.enabled().filter(task__in=TICKS)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a due task, unless its row was changed into something that is not a tick."""
        if is_tick(entry.task, entry.args, entry.kwargs):
            with structlog.contextvars.bound_contextvars(tick=str(entry.name)):
                super().apply_entry(entry, producer=producer)
            return
        facts = {"action": "foreign_task_refused", "periodic_task": str(entry.name)}
        logger.error("Foreign periodic task refused", extra=facts)


#: The ticks: by task, the names of its arguments.
TICKS: dict[str, frozenset[str]] = {
    beat.TASK: frozenset({"tenant", "schedule"}),
    beat.CHECK_TASK: frozenset(),
    monthly_job.TASK: frozenset({"tenant"}),
    monthly_job.MADE_UP_TASK: frozenset(),
    "celery.backend_cleanup": frozenset(),  # created by beat
}


def is_tick(task: str, args: Any, kwargs: Any) -> bool:
    """Return whether beat may send this. The arguments are JSON from the table, or already parsed by beat."""
    try:
        arguments = json.loads(kwargs or "{}") if isinstance(kwargs, str) else dict(kwargs or {})
        positional = json.loads(args or "[]") if isinstance(args, str) else args
    except (TypeError, ValueError):
        return False
    all_text = isinstance(arguments, dict) and all(isinstance(value, str) for value in arguments.values())
    return task in TICKS and not positional and all_text and arguments.keys() == TICKS[task]


def find_foreign_tasks() -> list[PeriodicTask]:
    """Return the periodic tasks that are not ticks, enabled or not."""
    rows = PeriodicTask.objects.order_by("pk").only("name", "task", "args", "kwargs", "enabled")
    return [row for row in rows.iterator() if not is_tick(row.task, row.args, row.kwargs)]


def error_of(row: PeriodicTask) -> str:
    """Return why beat cannot compute when to send this tick, or nothing. Changes neither the row nor the object."""
    if reason := error_of_interval(row.interval):
        return reason
    trial = copy(row)
    # Otherwise Celery would disable a row that has expired or was sent.
    trial.enabled, trial.expires, trial.one_off = True, None, False
    try:
        ModelEntry(trial, app=app).is_due()
    except Exception as error:
        if outages.may_pass(error):
            raise
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def error_of_interval(interval: IntervalSchedule | None) -> str:
    """Return why beat sends nothing at this interval, or nothing: a shorter one would keep it busy. Schedules have the same limit."""
    is_short = (
        interval is not None
        and interval.period == IntervalSchedule.MICROSECONDS
        and interval.every < 1_000_000
    )
    return "the interval must be at least one second" if is_short else ""


@register(Tags.database)
def check_periodic_tasks(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report at `manage.py check --database default` the periodic tasks that beat does not send: foreign ones, and impossible ones."""
    if APP not in (databases or ()):
        return []
    try:
        rows = find_foreign_tasks()
        enabled = PeriodicTask.objects.filter(enabled=True).order_by("pk")
        impossible = [
            (row, reason)
            for row in enabled.select_related("interval", "crontab", "solar", "clocked").iterator()
            if is_tick(row.task, row.args, row.kwargs) and (reason := error_of(row))
        ]
    except DatabaseError as error:
        return [Error(f"The periodic tasks cannot be read: {error}", id="orchestrator.E002")]
    errors: list[CheckMessage] = [
        Error(
            f"Beat cannot send the periodic task {row.name!r}: {reason}",
            hint="Correct or delete it in the admin (Periodic tasks).",
            id="orchestrator.E003",
        )
        for row, reason in impossible
    ]
    return errors + [
        Error(
            f"The periodic task {row.name!r} is not one of the system's tasks: it would run {row.task!r}.",
            hint="Find out who created it, then delete it. Beat refuses to send it.",
            id="orchestrator.E001",
        )
        for row in rows
    ]
