"""Rows of the event log, and of the webhooks that deliver events."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models.base import Tenant, TenantOwned, TenantPart, TenantQuerySet, index, part_of, unique
from tenants.wording import describe_count


class FreshEvent(TenantPart):
    """An event without a number yet. A trigger writes it in the transaction of the change; the next reader of the log removes it.

    For changes of activities it only refers to their histories, with one or a few rows for all changes of a statement. Other events are in
    the row itself.
    """

    # In the database, the only index is the primary key (tenant, id): rows are looked up by tenant, and a sequence makes ids unique.
    id = models.BigAutoField(primary_key=True)
    activities = ArrayField(
        models.UUIDField(), null=True, help_text="The activities that have new entries in their histories."
    )
    seqs = ArrayField(
        models.IntegerField(),
        null=True,
        help_text="The first new position in each of these histories, then the last in each.",
    )
    activity_id = models.UUIDField(null=True)
    kind = models.CharField(
        max_length=32, null=True, help_text="If empty, the histories determine the kinds."
    )
    at = models.DateTimeField(null=True)
    pipeline_run_id = models.UUIDField(null=True)
    data = models.JSONField(null=True)

    def __str__(self) -> str:
        return self.kind or describe_count(len(self.activities or ()), "activity", "activities")


class Event(TenantPart):
    """A numbered event. Each tenant's are numbered 1, 2, 3 and so on without gaps. Never changed, deleted by age."""

    id = models.BigIntegerField(
        primary_key=True, help_text="In the order of numbering. Readers only see the number."
    )
    number = models.BigIntegerField()
    kind = models.CharField(max_length=32)
    at = models.DateTimeField()
    activity_id = models.UUIDField(null=True)
    pipeline_run_id = models.UUIDField(null=True)
    data = models.JSONField(
        default=dict, help_text="Ids and statuses. It never contains texts of agents or people."
    )

    class Meta:
        constraints = (unique("event_numbered_once", "tenant", "number"),)

    def __str__(self) -> str:
        return f"{self.number}: {self.kind}"


class EventLog(models.Model):
    """How far a tenant's events are numbered. This row is locked while numbers are given."""

    tenant = models.OneToOneField(
        Tenant, on_delete=models.CASCADE, primary_key=True, related_name="+", db_constraint=False
    )
    last_number = models.BigIntegerField(default=0, db_default=0)
    listened_until = models.DateTimeField(
        null=True, help_text="Until then, a client follows the log and has to be notified of changes."
    )

    objects = TenantQuerySet.as_manager()

    def __str__(self) -> str:
        return f"log up to {self.last_number}"


class OffReason(models.TextChoices):
    """Why a webhook was switched off by the system. Empty when it is on, or when people switched it off."""

    GONE = "gone"  # the receiver answered 410
    FAILING = "failing"  # nothing was delivered for days


class WebhookEndpoint(TenantOwned):
    """A URL to which a tenant's events are sent."""

    url = models.CharField(max_length=2000)
    description = models.CharField(max_length=200, blank=True, default="")
    kinds = models.JSONField(
        default=list, blank=True, help_text="The kinds of events to send. If empty: all."
    )
    enabled = models.BooleanField(default=True)
    secret_sealed = models.TextField(
        editable=False, help_text="The encrypted secret for signatures, and the previous one."
    )
    previous_until = models.DateTimeField(
        null=True, editable=False, help_text="Until when messages are also signed with the previous secret."
    )
    off_reason = models.CharField(
        max_length=8, choices=OffReason.choices, blank=True, default="", editable=False
    )
    failing_since = models.DateTimeField(
        null=True, editable=False, help_text="The time of the first failure since the last success."
    )
    failures = models.IntegerField(
        default=0, editable=False, help_text="Number of failed attempts since the last success."
    )
    paused_until = models.DateTimeField(
        null=True,
        editable=False,
        help_text="Nothing is sent before this time, because the last attempts have failed.",
    )
    version = models.IntegerField(
        default=1, editable=False, help_text="Increases with every change; the ETag begins with it."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "webhook"
        constraints = (unique("webhook_of_tenant", "tenant", "id"),)
        indexes = (index("webhooks_in_use", "id", enabled=True),)

    def __str__(self) -> str:
        return self.description or self.url


class WebhookDeliveryState(models.TextChoices):
    """The comment of each says how a delivery leaves it."""

    PENDING = "pending"  # Claimed once `next_attempt_at` has come.
    SENDING = "sending"  # Its deliverer records the outcome. After `next_attempt_at` that one counts as dead, and another claims it.
    DELIVERED = "delivered"  # Final, unless somebody sends it again.
    FAILED = "failed"  # Every attempt failed. Final, unless somebody sends it again.
    DROPPED = "dropped"  # The webhook was switched off first. Final, unless somebody sends it again.


class WebhookDelivery(TenantPart):
    """The delivery of one event to one webhook. Its id is the `webhook-id` of every attempt."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    endpoint = part_of(WebhookEndpoint, "deliveries")
    event_number = models.BigIntegerField(null=True, help_text="Empty for a test, which is not an event.")
    kind = models.CharField(max_length=32)
    state = models.CharField(
        max_length=9, choices=WebhookDeliveryState.choices, default=WebhookDeliveryState.PENDING
    )
    attempts = models.IntegerField(
        default=0, db_default=0, help_text="Attempts since it was created or redelivered."
    )
    fence = models.IntegerField(
        default=0,
        db_default=0,
        help_text="Increases with every claim: only the latest claim may record a result.",
    )
    next_attempt_at = models.DateTimeField(db_default=Now())
    response_status = models.SmallIntegerField(null=True)
    duration_ms = models.IntegerField(null=True)
    error = models.CharField(max_length=500, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "webhook deliveries"
        constraints = (unique("event_once_per_webhook", "endpoint", "event_number"),)
        indexes = (
            index(
                "webhook_deliveries_due",
                "endpoint",
                "next_attempt_at",
                "id",
                state__in=["pending", "sending"],
            ),
            index("webhook_deliveries_under_way", "tenant", "endpoint", state="sending"),
            index("webhook_deliveries_newest", "endpoint", "-created_at", "-id"),
            index("webhook_deliveries_by_age", "created_at"),
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.state}"


# The kinds of events, as `sql/record.sql` writes them. Readers and webhooks select by kind, so kinds are only ever added, never changed.


#: Meanings by kind, in the order of the documentation.
MEANINGS: dict[str, str] = {
    "activity.created": "work was submitted",
    "activity.assigned": "a worker has claimed it",
    "activity.started": "its agent was called, or a person has claimed it",
    "activity.waiting": "it waits for people or for other work; `status` says for what",
    "activity.released": "it is ready to be claimed again: woken, retried, or handed back",
    "activity.rescheduled": "its priority or its dates were changed",
    "activity.voted": "somebody has voted about it, and further votes are needed",
    "activity.completed": "it is done",
    "activity.approved": "its result, or the gate, was approved",
    "activity.rejected": "its result, or the gate, was rejected",
    "activity.reassigned": "another activity has replaced it",
    "activity.failed": "it failed permanently; `error_code` and `attempts` say why, and after how many attempts",
    "activity.needs_review": "people must look at it",
    "activity.cancelled": "it was cancelled",
    "approval.requested": "people are asked for a decision",
    "approval.decided": "the decision was made; `status` says which",
    "approval.withdrawn": "the question was withdrawn",
    "pipeline_run.started": "a run of a pipeline began",
    "pipeline_run.resumed": "a run that had ended continues",
    "pipeline_run.completed": "it is completed",
    "pipeline_run.failed": "it failed",
    "pipeline_run.cancelled": "it was cancelled",
    "schedule.fired": "a schedule has fired; with the `status` queued, its execution waits for the one before",
    "schedule.skipped": "one of its times was skipped, at once or while it was queued",
    "alert.raised": "people are notified of something",
    "budget.warning": "most of a budget is spent",
    "budget.exceeded": "work waits for a budget",
    "dead_letter": "work failed permanently and became a dead letter",
}

KINDS = tuple(MEANINGS)

#: What streams carry besides the log: announced as it happens, not stored, without a number, and never sent to webhooks.
ANNOUNCED: dict[str, str] = {
    "run_log": "a run has new log lines: `data` has its id `run`, and `last`, the number of its last line"
}
