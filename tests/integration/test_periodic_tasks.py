"""Beat sends only our own tasks, whatever is written into its table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import InterfaceError, OperationalError
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule

from orchestrator.beat import PatientScheduler, find_foreign_tasks
from orchestrator.celery import app
from pipelines.deliverables import monthly_job
from pipelines.schedules import beat
from tenants import clock
from tenants.context import system_scope

pytestmark = pytest.mark.usefixtures("database")


def _row(name: str, task: str, **fields: Any) -> PeriodicTask:
    with system_scope():
        every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
        return PeriodicTask.objects.create(name=name, task=task, interval=every, **fields)


FOREIGN = [
    ("activities.run", {"kwargs": json.dumps({"tenant": "t", "activity": "a", "grant": "g", "role": "qa"})}),
    ("os.system", {"args": '["id"]'}),
    (beat.CHECK_TASK, {"args": '["more"]'}),
    (beat.CHECK_TASK, {"kwargs": '{"tenant": "t"}'}),
    (monthly_job.TASK, {"kwargs": '{"tenant": {"$gt": ""}}'}),
    (beat.TASK, {"kwargs": "no json"}),
]


@pytest.mark.parametrize(("task", "fields"), FOREIGN)
def test_beat_does_not_send_foreign_or_malformed_tasks(
    task: str, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = _row("foreign", task, **fields)
    sent = Mock()
    monkeypatch.setattr("celery.beat.Scheduler.apply_entry", sent)
    scheduler = PatientScheduler(app=app, lazy=True)
    entries = [scheduler.Entry(row, app=app)]

    for entry in entries:
        scheduler.apply_entry(entry)

    sent.assert_not_called()


def test_beat_does_not_load_foreign_tasks() -> None:
    _row("ours", beat.CHECK_TASK)
    _row("theirs", "os.system")
    scheduler = PatientScheduler(app=app, lazy=True)

    assert {row.name for row in scheduler.enabled_models_qs()} == {"ours"}


def test_beat_sends_our_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    row = _row("ours", monthly_job.TASK, kwargs='{"tenant": "0197"}')
    sent = Mock()
    monkeypatch.setattr("celery.beat.Scheduler.apply_entry", sent)
    scheduler = PatientScheduler(app=app, lazy=True)

    entry = scheduler.Entry(row, app=app)
    scheduler.apply_entry(entry)

    assert sent.call_args.args[0] is entry
    assert entry.kwargs == {"tenant": "0197"}


def test_the_system_check_names_foreign_tasks() -> None:
    _row("schedules: check", beat.CHECK_TASK)
    call_command("check", databases=["default"], tags=["database"])
    row = _row("backdoor", "os.system", enabled=False)

    with pytest.raises(
        SystemCheckError, match=r"'backdoor' is not one of the system's tasks: it would run 'os.system'"
    ):
        call_command("check", databases=["default"], tags=["database"])

    assert [each.pk for each in find_foreign_tasks()] == [row.pk]


def test_beat_survives_an_outage_and_reloads_its_table(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _row("ours", beat.CHECK_TASK)
    monkeypatch.setattr("celery.beat.Scheduler.apply_entry", Mock())
    scheduler = PatientScheduler(app=app, lazy=True)
    outages = iter([InterfaceError("connection already closed"), OperationalError("connection refused")])
    read = PatientScheduler.all_as_schedule

    def fail_at_first(self: PatientScheduler) -> Any:
        for error in outages:
            raise error
        return read(self)

    monkeypatch.setattr(PatientScheduler, "all_as_schedule", fail_at_first)

    assert [scheduler.tick() for _ in range(2)] == [1.0, 1.0]
    scheduler.tick()
    assert scheduler._initial_read is False
    assert "ours" in scheduler.schedule


#: Rows that the tables accept and Celery cannot compute, by what is wrong.
IMPOSSIBLE: dict[str, Callable[[], dict[str, Any]]] = {
    "sun": lambda: {
        "solar": SolarSchedule.objects.create(event="sunrise", latitude=52, longitude=13)  # needs a library
    },
    "interval": lambda: {"interval": IntervalSchedule.objects.create(every=2**31 - 1, period="days")},
    "too often": lambda: {"interval": IntervalSchedule.objects.create(every=1, period="microseconds")},
    "headers": lambda: {
        "interval": IntervalSchedule.objects.create(every=1, period="days"),
        "headers": "[1]",
    },
    "start": lambda: {
        "crontab": CrontabSchedule.objects.create(hour="0", day_of_month="1"),
        "start_time": datetime(9999, 12, 31, tzinfo=UTC),
    },
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_a_row_that_beat_cannot_compute_is_reported_and_the_others_are_sent(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with system_scope():
        PeriodicTask.objects.create(name="impossible", task=beat.CHECK_TASK, **IMPOSSIBLE[kind]())
    _row("ours", beat.CHECK_TASK, last_run_at=clock.now() - timedelta(hours=1))
    sent = Mock()
    monkeypatch.setattr("celery.beat.Scheduler.apply_entry", sent)
    scheduler = PatientScheduler(app=app)

    scheduler.tick()

    assert [call.args[0].name for call in sent.call_args_list] == ["ours"]
    assert {
        vars(record)["periodic_task"] for record in caplog.records if "periodic_task" in vars(record)
    } == {"impossible"}
    with pytest.raises(SystemCheckError, match="Beat cannot send the periodic task 'impossible'"):
        call_command("check", databases=["default"], tags=["database"])


def test_a_programming_error_still_ends_beat(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = PatientScheduler(app=app, lazy=True)

    def fail(self: PatientScheduler) -> Any:
        raise ValueError("a mistake")

    monkeypatch.setattr(PatientScheduler, "all_as_schedule", fail)

    with pytest.raises(ValueError, match="a mistake"):
        scheduler.tick()
