"""The background tasks of pipelines, in one table."""

from __future__ import annotations

from uuid import UUID

from activities import background_tasks
from activities.background_tasks import BackgroundTask
from agents.routing import DELIVERABLE_PERIODS, SCHEDULES, SYSTEM_QUEUE
from pipelines import waiting_steps
from pipelines.deliverables import monthly_job
from pipelines.schedules import beat, firing, system_jobs


def _start_new_period(tenant: str) -> int:
    return monthly_job.run(UUID(tenant))


def _fire_schedule(tenant: str, schedule: str) -> int:
    return system_jobs.fire_one(UUID(tenant), UUID(schedule))


#: The last column lists rows for which the leader sends the task. Without it, Celery beat sends the task.
BACKGROUND_TASKS = (
    BackgroundTask("undecided-steps", SYSTEM_QUEUE, "pipelines.decide", waiting_steps.decide_waiting, waiting_steps.runs_undecided),
    BackgroundTask("steps-without-room", SYSTEM_QUEUE, "pipelines.admit_steps", waiting_steps.admit_steps, waiting_steps.steps_unadmitted),
    BackgroundTask("overdue-steps", SYSTEM_QUEUE, "pipelines.fail_overdue", waiting_steps.fail_overdue, waiting_steps.steps_overdue),
    BackgroundTask("schedule", SCHEDULES, beat.TASK, _fire_schedule),
    BackgroundTask("schedules", SCHEDULES, beat.CHECK_TASK, system_jobs.check),
    BackgroundTask("schedules-due", SCHEDULES, "schedules.fire_due", system_jobs.fire, firing.list_due),
    BackgroundTask("schedules-unexpanded", SCHEDULES, "schedules.expand", system_jobs.expand, system_jobs.list_unexpanded),
    BackgroundTask("schedules-unsettled", SCHEDULES, "schedules.settle", system_jobs.settle, system_jobs.list_unsettled),
    BackgroundTask("schedules-uncancelled", SCHEDULES, "schedules.close", system_jobs.close, system_jobs.list_uncancelled),
    BackgroundTask("new-period", DELIVERABLE_PERIODS, monthly_job.TASK, _start_new_period, keeps_result=True),
    BackgroundTask(
        "missed-periods", DELIVERABLE_PERIODS, monthly_job.MADE_UP_TASK, monthly_job.run_missed, monthly_job.list_missed, keeps_result=True
    ),
)  # fmt: skip

background_tasks.register(*BACKGROUND_TASKS)
