"""Bulk jobs: one action on many activities, with the state of each item."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned, TenantPart, index, part_of, unique


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
    credential = models.CharField(
        max_length=64,
        default="",
        db_default="",
        editable=False,
        help_text="The credential that created the job (`Principal.credential`). The job has its present rights.",
    )
    cancelled_by = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, editable=False)
    updated_at = models.DateTimeField(
        db_default=Now(), editable=False, help_text="When its progress was last recorded."
    )
    finished_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        constraints = (unique("bulk_job_of_tenant", "tenant", "id"),)
        indexes = (
            index("bulk_job_newest", "tenant", "-created_at", "-id"),
            index("bulk_job_running", "created_at", status="running"),
        )

    def __str__(self) -> str:
        return f"{self.action} of {self.total}"


class BulkItem(TenantPart):
    """One activity of a job. Its state changes in the transaction of the effect, so each is processed once."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    job = part_of(BulkJob, "items")
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
        constraints = (unique("bulk_item_once", "job", "activity"),)
        indexes = (
            index("bulk_item_waiting", "job", "alone", "activity", state="waiting"),
            index("bulk_item_of_job", "job", "id"),
        )

    def __str__(self) -> str:
        return f"{self.activity_id}: {self.state}"
