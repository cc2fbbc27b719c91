"""Beat's rows of schedules and the background tasks of scheduling, by which each time fires once even if rows are damaged."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import QuerySet
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask
from django_celery_beat.schedulers import ModelEntry

from activities import background_tasks
from agents import scheduler_settings
from agents.models import PlatformConfig
from orchestrator.celery import app
from pipelines.models import Schedule, ScheduleExecution, ScheduleJob
from pipelines.schedules import beat, firing, system_jobs
from tenants.context import OWNER, SYSTEM, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.scheduling import HOUR, NOON, execution, executions, fired_times, make_schedule, reload, states
from tests.upkeep import run_task

pytestmark = pytest.mark.usefixtures("scheduler_defaults")

LONG_AGO = timedelta(days=2)


def row_of(schedule: Schedule) -> PeriodicTask:
    return PeriodicTask.objects.get(task=beat.TASK, kwargs__contains=str(schedule.pk))


def tick(schedule: Schedule) -> None:
    """Run the task that beat would send for the row of the schedule."""
    row = row_of(schedule)
    app.tasks[row.task](**json.loads(row.kwargs))


def make_due(schedule: Schedule) -> None:
    """Move the schedule back, so that its next time has just passed."""
    looked_until = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(seconds=1)
    with tenant_scope(schedule.tenant_id):
        Schedule.objects.filter(pk=schedule.pk).update(
            looked_until=looked_until,
            next_run_at=schedule.next_time(after=looked_until),
            catch_up={"up_to": 1},
        )


# Rows of schedules


def test_the_row_of_a_schedule_holds_its_times_and_its_task(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, "daily news", cron="30 8 * * 1-5", timezone="Europe/Paris")

    row = row_of(schedule)

    assert (row.pk, row.name, row.queue, row.enabled) == (
        schedule.beat_task_id, "schedule: acme/daily news", "schedules", True,
    )  # fmt: skip
    assert (row.crontab.hour, row.crontab.minute, row.crontab.day_of_week, str(row.crontab.timezone)) == (
        "8", "30", "1-5", "Europe/Paris",
    )  # fmt: skip
    assert "08:30" in row.description
    assert json.loads(row.kwargs) == {"tenant": str(tenant.pk), "schedule": str(schedule.pk)}
    ModelEntry(row, app=app)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"cron": "@daily"}, "crontab"),
        ({"cron": "0 2 * * SUN"}, "crontab"),
        ({"cron": "0 2 * * 7"}, "interval"),
        ({"cron": "0 2 L * *"}, "interval"),
        ({"cron": "0 2 * * 5L"}, "interval"),
        ({"cron": "0 2 * * 1#2"}, "interval"),
        ({"interval_ms": 90_000}, "interval"),
        ({"repeat": "once", "start_at": NOON + HOUR}, "clocked"),
    ],
)
def test_times_that_beat_cannot_express_have_a_row_with_an_interval(
    tenant: Tenant, fields: dict[str, Any], kind: str
) -> None:
    row = row_of(make_schedule(tenant, **fields))

    assert [name for name in ("crontab", "interval", "clocked", "solar") if getattr(row, name)] == [kind]
    ModelEntry(row, app=app)


def test_a_row_follows_its_schedule_and_keeps_its_id(tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    before = row_of(schedule)
    schedule.name, schedule.cron, schedule.enabled = "renamed", "15 * * * *", False

    with tenant_scope(tenant.pk):
        beat.sync(schedule, tenant.slug)
        unchanged_since = row_of(schedule).date_changed
        beat.sync(schedule, tenant.slug)

    row = row_of(schedule)
    assert (row.pk, row.name, row.crontab.minute, row.enabled) == (
        before.pk, "schedule: acme/renamed", "15", False,
    )  # fmt: skip
    assert row.date_changed == unchanged_since


def test_equal_times_share_one_crontab_and_a_deleted_schedule_leaves_no_row(tenant: Tenant) -> None:
    schedules = [make_schedule(tenant, f"s{number}", cron="7 7 * * *") for number in range(3)]
    assert CrontabSchedule.objects.filter(minute="7", hour="7").count() == 1

    with tenant_scope(tenant.pk):
        beat.forget(schedules[0])
        beat.forget(schedules[0])

    assert PeriodicTask.objects.filter(task=beat.TASK).count() == 2


def test_long_or_taken_names_of_rows_end_with_the_id_of_the_schedule(tenant: Tenant) -> None:
    taken = "schedule: acme/mine"
    PeriodicTask.objects.create(
        name=taken, task="other.task", interval=IntervalSchedule.objects.create(every=5, period="seconds")
    )

    mine, long = make_schedule(tenant, "mine"), make_schedule(tenant, "x" * 200)

    assert row_of(mine).name == f"{taken} ({mine.pk})"
    assert row_of(long).name.endswith(f"({long.pk})")
    assert len(row_of(long).name) == 200


def test_rows_that_were_renamed_deleted_or_copied_by_hand_are_repaired(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    renamed, deleted, fine = (make_schedule(tenant, name) for name in ("renamed", "deleted", "fine"))
    gone = make_schedule(other_tenant, "gone")
    PeriodicTask.objects.filter(pk=row_of(renamed).pk).update(name="my own name", enabled=False)
    row_of(deleted).delete()
    with tenant_scope(other_tenant.pk):
        Schedule.objects.filter(pk=gone.pk).delete()
    untouched = row_of(fine).date_changed
    copy = row_of(fine)
    copy.pk, copy.name = None, "a copy"
    copy.save()
    PeriodicTask.objects.create(
        name="nonsense", task=beat.TASK, kwargs="{}", interval=IntervalSchedule.objects.first() or
        IntervalSchedule.objects.create(every=5, period="seconds"),
    )  # fmt: skip

    beat.repair()
    beat.repair()

    assert set(PeriodicTask.objects.filter(task=beat.TASK).values_list("name", flat=True)) == {
        "schedule: acme/renamed", "schedule: acme/deleted", "schedule: acme/fine",
    }  # fmt: skip
    assert row_of(renamed).enabled
    assert reload(deleted).beat_task_id == row_of(deleted).pk
    # Saving a row again would make beat forget when it last ran.
    assert row_of(fine).date_changed == untouched


def test_repair_continues_after_an_invalid_schedule(tenant: Tenant) -> None:
    bad, good = make_schedule(tenant, "bad"), make_schedule(tenant, "good")
    PeriodicTask.objects.filter(task=beat.TASK).delete()
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=bad.pk).update(cron="nonsense")

    beat.repair()

    assert row_of(bad).interval.every == beat.TICK_SECONDS
    assert row_of(good).crontab is not None


def test_the_row_of_the_check_has_the_interval_of_the_settings(tenant: Tenant) -> None:
    beat.repair()
    first = PeriodicTask.objects.get(task=beat.CHECK_TASK)
    before = (first.name, first.interval.every, first.queue)

    PlatformConfig.objects.create(key=scheduler_settings.KEY, value={"check_interval": 5_000})
    scheduler_settings.forget()
    run_task("schedules.check")

    row = PeriodicTask.objects.get(task=beat.CHECK_TASK)
    assert before == ("schedules: check", 60, "schedules")
    assert (row.pk, row.interval.every) == (first.pk, 5)


# What ticks do


def test_a_tick_fires_a_due_time_once_and_no_future_time(tenant: Tenant) -> None:
    schedule, later = make_schedule(tenant, "now"), make_schedule(tenant, "later")
    make_due(schedule)
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=later.pk).update(next_run_at=datetime.now(UTC) + HOUR)

    for _ in range(2):
        tick(schedule)
        tick(later)

    assert (states(schedule), states(later)) == (["fired"], [])
    assert execution(tenant).jobs_enqueued == 1


def test_the_background_task_fires_due_times_without_beat(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only this task, because due tasks share a queue that holds one hint at a time.
    only_task = {"schedules-due": background_tasks._tasks["schedules-due"]}
    monkeypatch.setattr(background_tasks, "_tasks", only_task)
    schedule = make_schedule(tenant)
    PeriodicTask.objects.all().delete()
    make_due(schedule)

    hinted = background_tasks.Reminder().remind()
    run_task("schedules.fire_due")

    assert hinted == ["schedules-due"]
    assert len(fired_times(schedule)) == 1
    assert "schedules-due" not in background_tasks.Reminder().remind()


def test_every_stage_of_an_execution_has_a_background_task(engine: Engine, tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    make_due(schedule)
    waiting: list[list[str]] = []

    def record_waiting() -> None:
        waiting.append(
            sorted(name for name in background_tasks._tasks if background_tasks._with_waiting_rows([name]))
        )

    record_waiting()
    firing.fire(tenant.pk, schedule.pk)
    record_waiting()
    run_task("schedules.expand")
    record_waiting()
    engine.drain()
    record_waiting()
    run_task("schedules.settle")
    record_waiting()

    stages = [[name for name in plans if name.startswith("schedules")] for plans in waiting]
    assert stages == [["schedules-due"], ["schedules-unexpanded"], [], ["schedules-unsettled"], []]
    assert executions(tenant)[0].status == "success"


def test_a_background_task_closes_an_execution_that_was_cancelled_while_it_ran(tenant: Tenant) -> None:
    schedule = make_schedule(tenant)
    make_due(schedule)
    run_task("schedules.fire_due")
    with tenant_scope(tenant.pk):
        ScheduleExecution.objects.update(status="cancelled")

    assert "schedules-uncancelled" in background_tasks._with_waiting_rows(list(background_tasks._tasks))
    run_task("schedules.close")
    run_task("schedules.settle")

    with tenant_scope(tenant.pk):
        assert [job.state for job in ScheduleJob.objects.all()] == ["cancelled"]
    assert not background_tasks._with_waiting_rows(["schedules-uncancelled", "schedules-unsettled"])


def test_waiting_schedules_and_executions_are_read_by_index(tenant: Tenant) -> None:
    schedule = make_schedule(tenant, looked_until=datetime.now(UTC) + HOUR)
    # Enough rows that the planner's choice does not depend on a few pages.
    far = datetime.now(UTC) + LONG_AGO
    fields = {"tenant": tenant, "target_type": "agent", "agent_role": "qa"}
    with tenant_scope(tenant.pk):
        Schedule.objects.bulk_create(
            Schedule(name=f"later-{number}", next_run_at=far + timedelta(minutes=number), **fields)
            for number in range(1_000)
        )
        ended = ScheduleExecution.objects.bulk_create(
            ScheduleExecution(
                tenant=tenant, schedule=schedule, schedule_name="x", definition={}, status="success", finished_at=NOON
            )
            for _ in range(1_000)
        )  # fmt: skip
        ScheduleJob.objects.bulk_create(
            ScheduleJob(
                tenant=tenant, execution=one, ordinal=0, batch=0, due_at=NOON, params={}, state="done"
            )
            for one in ended
        )
    with connections[OWNER].cursor() as cursor:  # only the owner may analyze
        cursor.execute("ANALYZE pipelines_schedule, pipelines_scheduleexecution, pipelines_schedulejob")

    plans = {
        waiting.__name__: _plan(waiting())
        for waiting in (
            firing.list_due,
            system_jobs.list_unexpanded,
            system_jobs.list_unsettled,
            system_jobs.list_uncancelled,
        )
    }

    for name, plan in plans.items():
        index = "schedules_due" if name == "list_due" else "executions_open"
        assert index in plan, plan
        assert "Seq Scan on pipelines_" not in plan, plan


def _plan(waiting: QuerySet[Any]) -> str:
    sql, values = waiting.order_by().query.exists().sql_with_params()
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", values)
        return "\n".join(line for (line,) in cursor.fetchall())
