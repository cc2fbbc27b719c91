"""One set of parameters of an execution: the job, and how it goes."""

from __future__ import annotations

from django.db import models

from pipelines.models.execution import ScheduleExecution
from tenants.identifiers import uuid7
from tenants.models import TenantPart


class JobState(models.TextChoices):
    WAITING = "waiting"  # for the batch before it, or for room in a backlog, as its error says then
    ENQUEUED = "enqueued"  # its activity or pipeline run exists
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ScheduleJob(TenantPart):
    """One set of parameters of an execution. Recorded before anything is called."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    execution = models.ForeignKey(
        ScheduleExecution, on_delete=models.CASCADE, related_name="jobs", db_constraint=False, db_index=False
    )
    ordinal = models.IntegerField(help_text="Its place in the expansion; nothing is expanded twice.")
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
            models.UniqueConstraint(fields=("execution", "ordinal"), name="job_once_per_execution"),
            models.UniqueConstraint(
                fields=("activity_id",), condition=models.Q(activity_id__isnull=False), name="job_of_activity"
            ),
            models.UniqueConstraint(
                fields=("pipeline_run_id",),
                condition=models.Q(pipeline_run_id__isnull=False),
                name="job_of_pipeline_run",
            ),
        )
        indexes = (
            models.Index(
                fields=("execution", "batch"),
                condition=models.Q(state__in=["waiting", "enqueued"]),
                name="jobs_open",
            ),
        )

    def __str__(self) -> str:
        return f"{self.ordinal}: {self.state}"
