"""Bulk jobs: one action on many activities, with the state of each item."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned, TenantPart


class BulkAction(models.TextChoices):
    CANCEL = "cancel"
    RETRY = "retry"
    REASSIGN = "reassign"
    PRIORITY = "priority"


class BulkStatus(models.TextChoices):
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class ItemState(models.TextChoices):
    WAITING = "waiting"
    DONE = "done"
    SKIPPED = "skipped", "it was not in a state in which this can happen"
    FAILED = "failed"


class BulkJob(TenantOwned):
    """A bulk job. Lock its row before processing a portion of its items. The counts are those of its items."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    action = models.CharField(max_length=10, choices=BulkAction.choices)
    status = models.CharField(max_length=10, choices=BulkStatus.choices, default=BulkStatus.RUNNING)
    filter = models.JSONField(
        default=dict, help_text="The filter from the request. The items were selected with it once."
    )
    arguments = models.JSONField(
        default=dict, help_text="The arguments of the action: a reason, an assignee, or a priority."
    )
    total = models.PositiveIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    skipped = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    created_by = models.CharField(max_length=200)
    cancelled_by = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, editable=False)
    updated_at = models.DateTimeField(
        db_default=Now(), editable=False, help_text="When its progress was last recorded."
    )
    finished_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "id"), name="bulk_job_of_tenant"),)
        indexes = (
            models.Index(fields=("tenant", "-created_at", "-id"), name="bulk_job_newest"),
            models.Index(
                fields=("created_at",), condition=models.Q(status="running"), name="bulk_job_running"
            ),
        )

    def __str__(self) -> str:
        return f"{self.action} of {self.total}"


class BulkItem(TenantPart):
    """One activity of a job. Its state changes in the transaction of the effect, so each is processed once."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    job = models.ForeignKey(
        BulkJob, on_delete=models.CASCADE, related_name="items", db_constraint=False, db_index=False
    )
    activity = models.ForeignKey(
        "activities.Activity", on_delete=models.CASCADE, related_name="+", db_constraint=False
    )
    state = models.CharField(max_length=8, choices=ItemState.choices, default=ItemState.WAITING)
    alone = models.BooleanField(
        default=False, help_text="Whether it is processed in a transaction of its own."
    )
    error = models.JSONField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("job", "activity"), name="bulk_item_once"),)
        indexes = (
            models.Index(
                fields=("job", "alone", "activity"),
                condition=models.Q(state="waiting"),
                name="bulk_item_waiting",
            ),
            models.Index(fields=("job", "id"), name="bulk_item_of_job"),
        )

    def __str__(self) -> str:
        return f"{self.activity_id}: {self.state}"
