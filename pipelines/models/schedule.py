"""Schedules, their firings, executions and jobs."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models.functions import Now

from pipelines import timing
from pipelines.timing import DEFAULT_TIMEZONE, CatchUp, Timing
from tenants.identifiers import uuid7
from tenants.models import TenantOwned, TenantPart, index, part_of, unique

#: The columns of a schedule that decide when it runs.
TIMING = (
    "repeat",
    "cron",
    "interval_ms",
    "timezone",
    "start_at",
    "end_at",
    "dst_gap",
    "dst_fold",
    "jitter_seconds",
)


class Repeat(models.TextChoices):
    ONCE = "once"
    REPEATING = "repeating"


class Overlap(models.TextChoices):
    """What to do if an earlier execution still has work to do or waits for a person."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    CANCEL_RUNNING = "cancel_running"


class AfterOnce(models.TextChoices):
    DISABLE = "disable"
    DELETE = "delete"


class Schedule(TenantOwned):
    """When to run an agent or a pipeline, and with which parameters. Only `pipelines.timing` computes `next_run_at`."""

    bounded_as = "schedules"

    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    repeat = models.CharField(max_length=10, choices=Repeat.choices, default=Repeat.REPEATING)
    cron = models.CharField(
        max_length=200, blank=True, default="", help_text="Minute, hour, day, month, weekday."
    )
    interval_ms = models.BigIntegerField(
        null=True, blank=True, help_text="Milliseconds between runs, instead of cron."
    )
    timezone = models.CharField(max_length=64, default=DEFAULT_TIMEZONE)
    start_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="The time of a one-time schedule, or the earliest time of a repeating one.",
    )
    end_at = models.DateTimeField(null=True, blank=True)
    target_type = models.CharField(max_length=8, choices=[("agent", "agent"), ("pipeline", "pipeline")])
    agent_role = models.CharField(max_length=63, null=True, blank=True)
    pipeline = models.ForeignKey(
        "pipelines.Pipeline",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="schedules",
        db_constraint=False,
    )
    params = models.JSONField(
        default=dict,
        blank=True,
        help_text="The parameters. A value that is a data source string is expanded into jobs.",
    )
    retry = models.JSONField(default=dict, blank=True)
    timeout_seconds = models.PositiveIntegerField(null=True, blank=True)
    priority = models.SmallIntegerField(default=10)
    enabled = models.BooleanField(default=True)
    dst_gap = models.CharField(max_length=5, choices=[("shift", "shift"), ("skip", "skip")], default="shift")
    dst_fold = models.CharField(
        max_length=6, choices=[("first", "first"), ("second", "second"), ("both", "both")], default="first"
    )
    catch_up = models.JSONField(
        default=dict, help_text='{"up_to": n}: how many of the missed times are made up for, newest first.'
    )
    overlap = models.CharField(max_length=14, choices=Overlap.choices, default=Overlap.SKIP)
    after_once = models.CharField(max_length=7, choices=AfterOnce.choices, default=AfterOnce.DISABLE)
    jitter_seconds = models.PositiveIntegerField(default=0)
    version = models.IntegerField(
        default=1, editable=False, help_text="Increases with every change; the ETag begins with it."
    )
    looked_until = models.DateTimeField(
        null=True, editable=False, help_text="Every time until then was fired, or recorded as skipped."
    )
    missed_until = models.DateTimeField(
        null=True,
        editable=False,
        help_text="Times before this that were not fired were missed: a pause ended then.",
    )
    next_run_at = models.DateTimeField(
        null=True, editable=False, help_text="The next time, including jitter. Empty if there is none."
    )
    last_run_at = models.DateTimeField(null=True, editable=False)
    beat_task_id = models.IntegerField(
        null=True, editable=False, help_text="The id of its row among the periodic tasks of beat."
    )
    created_by = models.CharField(max_length=200, blank=True, default="", editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            unique("schedule_of_tenant", "tenant", "id"),
            unique("schedule_name_once", "tenant", "name"),
            models.CheckConstraint(
                condition=models.Q(target_type="agent", agent_role__isnull=False, pipeline__isnull=True)
                | models.Q(target_type="pipeline", agent_role__isnull=True, pipeline__isnull=False),
                name="schedule_has_one_target",
            ),
        )
        indexes = (index("schedules_due", "next_run_at", enabled=True, next_run_at__isnull=False),)

    def __str__(self) -> str:
        return self.name

    def timing(self) -> Timing:
        """Return the timing. Raises `timing.TimingError` for a row that was changed without its checks."""
        members = {**{name: getattr(self, name) for name in TIMING}, "cron": self.cron or None}
        return timing.read(members)

    def catch_up_policy(self) -> CatchUp:
        """Return the catch-up policy. An unreadable value means that no missed times are fired."""
        up_to = self.catch_up.get("up_to") if isinstance(self.catch_up, dict) else None
        return CatchUp(up_to if isinstance(up_to, int) and up_to > 0 else 0)

    def jitter(self, nominal: datetime) -> datetime:
        """Return when a nominal time is fired, which is not after `end_at`. Every process computes the same."""
        seconds: float = self.jitter_seconds
        if self.end_at is not None:
            seconds = min(seconds, max(0.0, (self.end_at - nominal).total_seconds()))
        return timing.jitter(nominal, seconds, str(self.pk))

    def next_time(self, *, after: datetime) -> datetime | None:
        """Return when the first nominal time later than `after` is fired, or None if there is none.

        Times fire in the order of their nominal times: a time with a shorter jitter than the one before waits for it.
        """
        nominal = next(timing.times(self.timing(), after=after, limit=1), None)
        return None if nominal is None else self.jitter(nominal)


class FiringState(models.TextChoices):
    FIRED = "fired"  # it has an execution
    QUEUED = "queued"  # its execution waits for the one before
    SKIPPED = "skipped"  # on record, with the reason


class Firing(TenantPart):
    """One nominal time of a schedule, and its outcome. Each time is recorded once, however many schedulers are running."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    schedule = part_of(Schedule, "firings")
    nominal_at = models.DateTimeField()
    last_at = models.DateTimeField(
        null=True,
        help_text="The end of a long series of skipped times, which is one record that begins at nominal_at.",
    )
    count = models.IntegerField(default=1, help_text="The number of times in this record.")
    state = models.CharField(max_length=8, choices=FiringState.choices)
    reason = models.CharField(max_length=200, blank=True, default="", help_text="Why the time was skipped.")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-nominal_at",)
        constraints = (unique("each_time_once", "schedule", "nominal_at"),)

    def __str__(self) -> str:
        return f"{self.state} {self.nominal_at:%Y-%m-%d %H:%M}"


class ExecutionStatus(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ScheduleExecution(TenantOwned):
    """The execution of a firing: its parameters are expanded into jobs, which run independently."""

    schedule = models.ForeignKey(
        Schedule,
        null=True,
        on_delete=models.SET_NULL,
        related_name="executions",
        db_constraint=False,
        db_index=False,
    )
    schedule_name = models.CharField(
        max_length=200, help_text="The name of the schedule; kept when the schedule is deleted."
    )
    nominal_at = models.DateTimeField(null=True, help_text="Empty if it was started by hand.")
    status = models.CharField(max_length=9, choices=ExecutionStatus.choices, default=ExecutionStatus.RUNNING)
    definition = models.JSONField(
        help_text="The target, the parameters and the policies of the schedule when it fired."
    )
    jobs_created = models.IntegerField(default=0)
    jobs_enqueued = models.IntegerField(default=0)
    jobs_failed = models.IntegerField(default=0)
    errors = models.JSONField(default=list)
    metadata = models.JSONField(default=dict)
    touched_at = models.DateTimeField(
        null=True,
        help_text="The last sign of life of the process that expands it. Empty if no process has begun.",
    )
    expanded_at = models.DateTimeField(null=True, help_text="When the last job was recorded.")
    created_by = models.CharField(max_length=200, default="schedule")
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-started_at",)
        constraints = (
            unique("execution_of_tenant", "tenant", "id"),
            unique("one_execution_per_time", "schedule", "nominal_at", nominal_at__isnull=False),
            unique("one_queued_execution", "schedule", status="queued"),
        )
        indexes = (
            index("executions_newest", "tenant", "-started_at", "-id"),
            index("executions_of_schedule", "schedule", "status"),
            # For the list of one schedule's executions; there may be one a minute for years.
            index("executions_newest_of_one", "schedule", "-started_at", "-id"),
            # Includes cancelled executions whose jobs have not all ended yet.
            index("executions_open", "id", finished_at__isnull=True),
        )

    def __str__(self) -> str:
        return f"{self.schedule_name}: {self.status}"


class JobState(models.TextChoices):
    WAITING = "waiting"  # for the batch before it, or for room in a backlog, which its error then says
    ENQUEUED = "enqueued"  # its activity or pipeline run exists
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ScheduleJob(TenantPart):
    """One set of parameters of an execution, and the state of its work. Recorded before any work starts."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    execution = part_of(ScheduleExecution, "jobs")
    ordinal = models.IntegerField(
        help_text="Its position in the expansion, so that nothing is expanded twice."
    )
    batch = models.IntegerField()
    due_at = models.DateTimeField()
    params = models.JSONField()
    state = models.CharField(max_length=9, choices=JobState.choices, default=JobState.ENQUEUED)
    activity_id = models.UUIDField(null=True)
    pipeline_run_id = models.UUIDField(null=True)
    error = models.JSONField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("execution", "ordinal")
        constraints = (
            unique("job_once_per_execution", "execution", "ordinal"),
            unique("job_of_activity", "activity_id", activity_id__isnull=False),
            unique("job_of_pipeline_run", "pipeline_run_id", pipeline_run_id__isnull=False),
        )
        indexes = (index("jobs_open", "execution", "batch", state__in=["waiting", "enqueued"]),)

    def __str__(self) -> str:
        return f"{self.ordinal}: {self.state}"
