"""One firing of a schedule at work, up to its status."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from pipelines.models.schedule import Schedule
from tenants.identifiers import uuid7
from tenants.models import TenantOwned


class ExecutionStatus(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ScheduleExecution(TenantOwned):
    """One firing at work: its parameters are expanded into jobs, each of which runs by itself."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    schedule = models.ForeignKey(
        Schedule,
        null=True,
        on_delete=models.SET_NULL,
        related_name="executions",
        db_constraint=False,
        db_index=False,
    )
    schedule_name = models.CharField(max_length=200, help_text="Kept when the schedule is deleted.")
    nominal_at = models.DateTimeField(null=True, help_text="Empty when it was started by hand.")
    status = models.CharField(max_length=9, choices=ExecutionStatus.choices, default=ExecutionStatus.RUNNING)
    definition = models.JSONField(help_text="Target, params and policies of the schedule when it fired.")
    jobs_created = models.IntegerField(default=0)
    jobs_enqueued = models.IntegerField(default=0)
    jobs_failed = models.IntegerField(default=0)
    errors = models.JSONField(default=list)
    metadata = models.JSONField(default=dict)
    touched_at = models.DateTimeField(
        null=True, help_text="The last sign of life of whoever expands it. Empty: nobody has begun."
    )
    expanded_at = models.DateTimeField(null=True, help_text="When the last job was recorded.")
    created_by = models.CharField(max_length=200, default="schedule")
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-started_at",)
        constraints = (
            models.UniqueConstraint(fields=("tenant", "id"), name="execution_of_tenant"),
            models.UniqueConstraint(
                fields=("schedule", "nominal_at"),
                condition=models.Q(nominal_at__isnull=False),
                name="one_execution_per_time",
            ),
            models.UniqueConstraint(
                fields=("schedule",), condition=models.Q(status="queued"), name="one_queued_execution"
            ),
        )
        indexes = (
            models.Index(fields=("tenant", "-started_at", "-id"), name="executions_newest"),
            models.Index(fields=("schedule", "status"), name="executions_of_schedule"),
            # The list of one schedule's executions, of which there may be one a minute for years.
            models.Index(fields=("schedule", "-started_at", "-id"), name="executions_newest_of_one"),
            # Also those that were cancelled and whose jobs have not all been ended yet.
            models.Index(
                fields=("id",), condition=models.Q(finished_at__isnull=True), name="executions_open"
            ),
        )

    def __str__(self) -> str:
        return f"{self.schedule_name}: {self.status}"
