"""Beat's rows: each schedule has a periodic task, so that beat and its admin know of it. Beat only ticks.

What beat sends is a hint that a time may have come. Whether it has is decided by `firing` from the schedule itself, so a beat that is late,
absent, there twice or edited by hand changes nothing but how soon somebody looks. Times that beat's own cron does not know are ticked for
every minute. A periodic task of its own looks at everything once per check interval.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery import schedules as celery_schedules
from django.core.exceptions import ValidationError
from django.db import transaction
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

from agents import scheduler_settings
from agents.routing import SCHEDULES
from pipelines import timing
from pipelines.models import Schedule
from pipelines.schedules import plans
from pipelines.timing import cron
from tenants.context import SYSTEM, system_scope
from tenants.models import Tenant

logger = logging.getLogger(__name__)

TASK = "schedules.fire"
PREFIX = "schedule: "
CHECK_TASK = "schedules.check"
CHECK_NAME = "schedules: check"
TICK_SECONDS = (
    60  # for crons that beat cannot read: half a minute late on average, were it not for the errand
)
HINT_SECONDS = 60  # an older hint says nothing that the next one does not say
LONGEST_NAME = 200

Row = Mapping[str, Any]


def keep_in_step(schedule: Schedule, slug: str) -> None:
    """Write the schedule's row among the periodic tasks, and note its id on the schedule. In the caller's transaction. Idempotent."""
    fields = _fields(schedule, slug)
    task = PeriodicTask.objects.filter(pk=schedule.beat_task_id, task=TASK).first()
    if task is None:
        # The id may be gone, or belong to somebody else's row by now; the arguments tell whose a row is.
        task = PeriodicTask.objects.filter(task=TASK, kwargs=fields["kwargs"]).first() or PeriodicTask()
    if _differs(task, fields):
        for name, value in fields.items():
            setattr(task, name, value)
        task.save()
    if task.pk != schedule.beat_task_id:
        Schedule.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pk).update(beat_task_id=task.pk)
        schedule.beat_task_id = task.pk


def forget(schedule: Schedule) -> None:
    """Take the row of a schedule that is going away out of beat. In the caller's transaction. Idempotent."""
    for task in PeriodicTask.objects.filter(task=TASK, kwargs=_arguments(schedule)):
        task.delete()  # One by one: only so does beat hear of it.


def stop(schedule: Schedule) -> None:
    """Beat need not tick any more for a schedule that is over. In the caller's transaction. Idempotent."""
    for task in PeriodicTask.objects.filter(task=TASK, kwargs=_arguments(schedule), enabled=True):
        task.enabled = False
        task.save()


def mend() -> None:
    """Bring the rows of all schedules in step with them. What is right already is not touched."""
    with system_scope():
        keep_check()
        slugs = dict(Tenant.objects.values_list("pk", "slug"))
        known: set[str] = set()
        for schedule in Schedule.objects.order_by("pk").iterator():
            known.add(_arguments(schedule))
            with transaction.atomic(using=SYSTEM):
                _keep_whatever_comes(schedule, slugs.get(schedule.tenant_id, ""))
        for task in PeriodicTask.objects.filter(task=TASK):
            if task.kwargs not in known and not _belongs_to_a_schedule(task):
                task.delete()


def keep_check() -> None:
    """The row that looks at everything, as often as the settings say."""
    seconds = max(1, scheduler_settings.current().check_interval_ms // 1000)
    wanted = {
        "name": CHECK_NAME, "task": CHECK_TASK, "kwargs": "{}", "queue": SCHEDULES, "enabled": True, "one_off": False,
        "crontab": None, "clocked": None, "interval": _every(seconds), "expire_seconds": HINT_SECONDS,
        "description": "Looks at all schedules and their executions. Made by the system.",
    }  # fmt: skip
    first, *more = PeriodicTask.objects.filter(task=CHECK_TASK).order_by("pk") or [PeriodicTask()]
    for task in more:
        task.delete()
    if _differs(first, wanted):
        for name, value in wanted.items():
            setattr(first, name, value)
        first.save()


def _keep_whatever_comes(schedule: Schedule, slug: str) -> None:
    try:
        with transaction.atomic(using=SYSTEM):
            keep_in_step(schedule, slug)
    except Exception:
        # The others must not wait for this one, which fires without beat's row as well.
        logger.exception(
            "Beat's row of a schedule not kept",
            extra={"action": "beat_row_not_kept", "schedule": str(schedule.pk)},
        )


def _belongs_to_a_schedule(task: PeriodicTask) -> bool:
    """Whether the schedule was made since they were listed."""
    try:
        return Schedule.objects.filter(pk=json.loads(task.kwargs)["schedule"]).exists()
    except (ValueError, KeyError, TypeError, ValidationError):
        return False


def _fields(schedule: Schedule, slug: str) -> Row:
    arguments = _arguments(schedule)
    return _when(schedule) | {
        "name": _name(schedule, slug, arguments),
        "task": TASK,
        "kwargs": arguments,
        "queue": SCHEDULES,
        "enabled": schedule.enabled and schedule.next_run_at is not None,
        "one_off": schedule.repeat == "once",
        "start_time": None if schedule.repeat == "once" else schedule.start_at,
        "expire_seconds": HINT_SECONDS,
        "description": _in_words(schedule),
    }


def _arguments(schedule: Schedule) -> str:
    return json.dumps({"tenant": str(schedule.tenant_id), "schedule": str(schedule.pk)})


def _name(schedule: Schedule, slug: str, arguments: str) -> str:
    """What people see in beat's admin. A name that is taken or too long gets the schedule's id."""
    name = f"{PREFIX}{slug}/{schedule.name}"
    taken = PeriodicTask.objects.filter(name=name).exclude(task=TASK, kwargs=arguments)
    if len(name) <= LONGEST_NAME and not taken.exists():
        return name
    suffix = f" ({schedule.pk})"
    return name[: LONGEST_NAME - len(suffix)] + suffix


def _in_words(schedule: Schedule) -> str:
    try:
        return timing.in_words(plans.timing_of(schedule))
    except (timing.TimingError, cron.CronError):
        return "The timing of this schedule cannot be read."


def _differs(task: PeriodicTask, fields: Row) -> bool:
    return task.pk is None or any(getattr(task, name) != value for name, value in fields.items())


def _when(schedule: Schedule) -> dict[str, Any]:
    """Exactly one of beat's kinds, with the others empty."""
    nothing: dict[str, Any] = {"crontab": None, "interval": None, "clocked": None, "solar": None}
    if schedule.repeat == "once":
        return nothing | {"clocked": _at(schedule.start_at or datetime.now(UTC))}
    if schedule.interval_ms:
        # Beat counts whole seconds at best; the exact times are ours.
        return nothing | {"interval": _every(max(1, schedule.interval_ms // 1000))}
    crontab = _crontab(schedule)
    return nothing | ({"crontab": crontab} if crontab else {"interval": _every(TICK_SECONDS)})


def _crontab(schedule: Schedule) -> CrontabSchedule | None:
    """The cron as beat has it; None for what beat does not know, as the last day of the month."""
    try:
        minute, hour, day, month, weekday = cron.cron_of(schedule.cron).text.lower().split(" ")
        fields = {
            "minute": minute, "hour": hour, "day_of_month": day, "month_of_year": month, "day_of_week": weekday,
        }  # fmt: skip
        celery_schedules.crontab(**fields)
        wanted = CrontabSchedule(**fields, timezone=schedule.timezone)
        wanted.clean_fields()
    except (ValueError, celery_schedules.ParseException, cron.CronError, ValidationError):
        return None
    # Nothing keeps the table from holding equal schedules, so the first one is taken.
    found = CrontabSchedule.objects.filter(**fields, timezone=schedule.timezone).order_by("pk").first()
    return found or _saved(wanted)


def _every(seconds: int) -> IntervalSchedule:
    wanted = {"every": seconds, "period": IntervalSchedule.SECONDS}
    return IntervalSchedule.objects.filter(**wanted).order_by("pk").first() or _saved(
        IntervalSchedule(**wanted)
    )


def _at(moment: datetime) -> ClockedSchedule:
    found = ClockedSchedule.objects.filter(clocked_time=moment).order_by("pk").first()
    return found or _saved(ClockedSchedule(clocked_time=moment))


def _saved(row: Any) -> Any:
    row.save()
    return row
