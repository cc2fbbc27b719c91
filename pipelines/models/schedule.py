"""When to run an agent or a pipeline, with which parameters and policies."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned

DEFAULT_TIMEZONE = "America/New_York"


class Repeat(models.TextChoices):
    ONCE = "once"
    REPEATING = "repeating"


class Overlap(models.TextChoices):
    """What to do when an earlier execution still has work to do or waits for a person."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    CANCEL_RUNNING = "cancel_running"


class AfterOnce(models.TextChoices):
    DISABLE = "disable"
    DELETE = "delete"


class Schedule(TenantOwned):
    """When to run an agent or a pipeline, with which parameters. `next_run_at` is computed by `pipelines.timing` alone."""

    bounded_as = "schedules"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    repeat = models.CharField(max_length=10, choices=Repeat.choices, default=Repeat.REPEATING)
    cron = models.CharField(
        max_length=200, blank=True, default="", help_text="Minute, hour, day, month, weekday."
    )
    interval_ms = models.BigIntegerField(
        null=True, blank=True, help_text="Instead of cron: milliseconds between runs."
    )
    timezone = models.CharField(max_length=64, default=DEFAULT_TIMEZONE)
    start_at = models.DateTimeField(
        null=True, blank=True, help_text="When a run happens once; not before it when it repeats."
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
        default=dict, blank=True, help_text="A value that is a data source string is expanded into jobs."
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
        default=dict, help_text='{"up_to": n}: so many of the times that were missed, newest first.'
    )
    overlap = models.CharField(max_length=14, choices=Overlap.choices, default=Overlap.SKIP)
    after_once = models.CharField(max_length=7, choices=AfterOnce.choices, default=AfterOnce.DISABLE)
    jitter_seconds = models.PositiveIntegerField(default=0)
    version = models.IntegerField(default=1, editable=False, help_text="Raised by every change; the ETag.")
    looked_until = models.DateTimeField(
        null=True, editable=False, help_text="Every time up to here was fired or skipped on record."
    )
    next_run_at = models.DateTimeField(
        null=True, editable=False, help_text="The next time, with its jitter. Empty: never again."
    )
    last_run_at = models.DateTimeField(null=True, editable=False)
    beat_task_id = models.IntegerField(
        null=True, editable=False, help_text="Its row among the periodic tasks of beat."
    )
    created_by = models.CharField(max_length=200, blank=True, default="", editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant", "id"), name="schedule_of_tenant"),
            models.UniqueConstraint(fields=("tenant", "name"), name="schedule_name_once"),
            models.CheckConstraint(
                condition=models.Q(target_type="agent", agent_role__isnull=False, pipeline__isnull=True)
                | models.Q(target_type="pipeline", agent_role__isnull=True, pipeline__isnull=False),
                name="schedule_has_one_target",
            ),
        )
        indexes = (
            models.Index(
                fields=("next_run_at",),
                condition=models.Q(enabled=True, next_run_at__isnull=False),
                name="schedules_due",
            ),
        )

    def __str__(self) -> str:
        return self.name
