"""Keeps a periodic task of Celery beat for each schedule, and one that checks everything once per check interval.

Beat only sends hints that a time may have come. `firing` decides from the schedule itself whether it has. So a late, missing, duplicate or
manually edited beat only affects how soon a schedule is checked. If beat cannot express a cron, it ticks every minute.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from celery import schedules as celery_schedules
from django.core.exceptions import ValidationError
from django.db import transaction
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

from agents import scheduler_settings
from agents.routing import SCHEDULES
from pipelines import timing
from pipelines.models import Schedule
from pipelines.timing import cron
from tenants import outages
from tenants.context import SYSTEM, system_scope
from tenants.models import Tenant

logger = logging.getLogger(__name__)

TASK = "schedules.fire"
PREFIX = "schedule: "
CHECK_TASK = "schedules.check"
CHECK_NAME = "schedules: check"
TICK_SECONDS = 60  # for crons that beat cannot express; the background task `schedules-due` is faster
HINT_SECONDS = 60  # an older hint is useless, because another has followed
LONGEST_NAME = 200

Row = Mapping[str, Any]


def sync(schedule: Schedule, slug: str) -> None:
    """Write the schedule's periodic task, and its id into the schedule. Idempotent. Call it within a transaction."""
    fields = {**_when(*_kind_of(schedule)), "name": _name(schedule, slug), **_plain_fields(schedule)}
    task = PeriodicTask.objects.filter(pk=schedule.beat_task_id, task=TASK).first()
    if task is None:
        # The id may be deleted or belong to another row by now; the arguments identify the schedule.
        task = PeriodicTask.objects.filter(task=TASK, kwargs=fields["kwargs"]).first() or PeriodicTask()
    _write(task, fields)
    if task.pk != schedule.beat_task_id:
        Schedule.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pk).update(beat_task_id=task.pk)
        schedule.beat_task_id = task.pk


def forget(schedule: Schedule) -> None:
    """Delete the periodic task of a schedule. Idempotent. Call it within a transaction."""
    for task in PeriodicTask.objects.filter(task=TASK, kwargs=_arguments(schedule)):
        task.delete()  # One by one, because only `delete` notifies beat.


def stop(schedule: Schedule) -> None:
    """Disable the periodic task of a schedule that has ended. Idempotent. Call it within a transaction."""
    for task in PeriodicTask.objects.filter(task=TASK, kwargs=_arguments(schedule), enabled=True):
        task.enabled = False
        task.save()


def repair() -> None:
    """Update the periodic tasks of all schedules. Correct tasks are not touched."""
    with system_scope():
        sync_check()
        slugs = dict(Tenant.objects.values_list("pk", "slug"))
        present: dict[str, PeriodicTask] = {}
        for task in PeriodicTask.objects.filter(task=TASK).select_related(*_KINDS).order_by("pk"):
            if present.setdefault(task.kwargs, task) is not task:
                task.delete()  # a copy
        for schedule in Schedule.objects.order_by("pk").iterator():
            own, slug = present.pop(_arguments(schedule), None), slugs.get(schedule.tenant_id, "")
            if own is None or not _is_correct(own, schedule, slug):
                # A schedule that fails fires without its task as well.
                with (
                    outages.one_of_many(
                        logger, "Periodic task of a schedule could not be updated", action="beat_row_not_kept",
                        schedule=str(schedule.pk),
                    ),
                    transaction.atomic(using=SYSTEM),
                ):  # fmt: skip
                    sync(schedule, slug)
        for task in present.values():
            if not _belongs_to_a_schedule(task):
                task.delete()


def _is_correct(task: PeriodicTask, schedule: Schedule, slug: str) -> bool:
    """Compare without queries, because there may be many thousands of schedules."""
    kind, fields = _kind_of(schedule)
    when = getattr(task, kind)
    return (
        task.pk == schedule.beat_task_id
        and task.name in _names(schedule, slug)
        and when is not None
        and all(getattr(when, name) == value for name, value in fields.items())
        and not _differs(task, _plain_fields(schedule))
    )


def sync_check() -> None:
    """Write the periodic task that checks everything once per check interval."""
    seconds = max(1, scheduler_settings.current().check_interval_ms // 1000)
    fields = {
        "name": CHECK_NAME, "task": CHECK_TASK, "kwargs": "{}", "queue": SCHEDULES, "enabled": True, "one_off": False,
        **_when("interval", _seconds(seconds)), "expire_seconds": HINT_SECONDS,
        "description": "Checks all schedules and their executions. Maintained by the system.",
    }  # fmt: skip
    first, *more = PeriodicTask.objects.filter(task=CHECK_TASK).order_by("pk") or [PeriodicTask()]
    for task in more:
        task.delete()
    _write(first, fields)


def _belongs_to_a_schedule(task: PeriodicTask) -> bool:
    """Whether the task's schedule exists, because it was created after the list was read."""
    try:
        return Schedule.objects.filter(pk=json.loads(task.kwargs)["schedule"]).exists()
    except (ValueError, KeyError, TypeError, ValidationError):
        return False


def _plain_fields(schedule: Schedule) -> Row:
    return {
        "task": TASK,
        "kwargs": _arguments(schedule),
        "queue": SCHEDULES,
        "enabled": schedule.enabled and schedule.next_run_at is not None,
        "one_off": schedule.repeat == "once",
        "start_time": None if schedule.repeat == "once" else schedule.start_at,
        "expire_seconds": HINT_SECONDS,
        "description": _in_words(schedule),
    }


def _arguments(schedule: Schedule) -> str:
    return json.dumps({"tenant": str(schedule.tenant_id), "schedule": str(schedule.pk)})


def _name(schedule: Schedule, slug: str) -> str:
    """Return the task's name in beat's admin. A name that is taken or too long gets the schedule's id."""
    name, with_id = _names(schedule, slug)
    others = PeriodicTask.objects.filter(name=name).exclude(task=TASK, kwargs=_arguments(schedule))
    return name if len(name) <= LONGEST_NAME and not others.exists() else with_id


def _names(schedule: Schedule, slug: str) -> tuple[str, str]:
    name, suffix = f"{PREFIX}{slug}/{schedule.name}", f" ({schedule.pk})"
    return name, name[: LONGEST_NAME - len(suffix)] + suffix


def _in_words(schedule: Schedule) -> str:
    try:
        return timing.in_words(schedule.timing())
    except (timing.TimingError, cron.CronError):
        return "The timing of this schedule cannot be read."


def _differs(task: PeriodicTask, fields: Row) -> bool:
    return task.pk is None or any(getattr(task, name) != value for name, value in fields.items())


def _write(task: PeriodicTask, fields: Row) -> None:
    """Save the task if a field differs, because every save notifies beat."""
    if _differs(task, fields):
        for name, value in fields.items():
            setattr(task, name, value)
        task.save()


def _when(kind: str, fields: Row) -> dict[str, Any]:
    """Return one of beat's kinds, and None for the others. Beat's tables may hold equal rows, so take the first."""
    model = _KINDS[kind]
    row = model.objects.filter(**fields).order_by("pk").first() or model.objects.create(**fields)
    return {"solar": None, **dict.fromkeys(_KINDS), kind: row}


_KINDS: dict[str, Any] = {
    "crontab": CrontabSchedule,
    "interval": IntervalSchedule,
    "clocked": ClockedSchedule,
}


def _kind_of(schedule: Schedule) -> tuple[str, Row]:
    """Return beat's kind for the schedule, and the fields of its row."""
    if schedule.repeat == "once":
        return "clocked", {"clocked_time": schedule.start_at or schedule.created_at}
    if schedule.interval_ms:
        # Beat counts whole seconds; `firing` computes the exact times.
        return "interval", _seconds(max(1, schedule.interval_ms // 1000))
    crontab = _crontab(schedule)
    return ("crontab", crontab) if crontab else ("interval", _seconds(TICK_SECONDS))


def _seconds(number: int) -> Row:
    return {"every": number, "period": IntervalSchedule.SECONDS}


def _crontab(schedule: Schedule) -> Row | None:
    """Return the cron for beat, or None if beat cannot express it, such as the last day of the month."""
    try:
        minute, hour, day, month, weekday = cron.cron_of(schedule.cron).text.lower().split(" ")
        fields = {
            "minute": minute, "hour": hour, "day_of_month": day, "month_of_year": month, "day_of_week": weekday,
        }  # fmt: skip
        celery_schedules.crontab(**fields)
        zone = ZoneInfo(schedule.timezone)
        CrontabSchedule(**fields, timezone=zone).clean_fields()
    except (ValueError, KeyError, OSError, celery_schedules.ParseException, cron.CronError, ValidationError):
        return None
    return {**fields, "timezone": zone}
