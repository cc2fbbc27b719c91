"""Alerts, the channels of tenants, and the deliveries of alerts to channels."""

from __future__ import annotations

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned, TenantPart, index, part_of, unique


class AlertKind(models.TextChoices):
    """The kind of an alert. Channels filter by it, so the values never change."""

    DEAD_LETTER = "dead_letter"
    WAKE_BUDGET = "wake_budget"
    ROUNDS_EXHAUSTED = "rounds_exhausted"
    DECISION = "decision"  # somebody is asked to decide; only for channels that name it
    REMINDER = "reminder"
    ESCALATION = "escalation"
    OVERDUE = "overdue"
    EXPIRED = "expired"  # nobody decided in time, so the default outcome applied
    CHANNEL_EXPIRED = "channel_expired"
    CHANNEL_EXPIRING = "channel_expiring"  # a day ahead
    PLAN_INVALID = "plan_invalid"
    PERIOD_AT_RISK = "period_at_risk"
    SCHEDULE_FAILED = "schedule_failed"  # an execution of a schedule, or some of its jobs
    IDLE_WORKER = "idle_worker"  # workers are alive but take no work
    QUEUE_OLD = "queue_old"  # work waits for longer than the target
    BREAKER_OPEN = "breaker_open"  # a model provider fails and is not called
    FAILURES_IN_A_ROW = "failures_in_a_row"  # runs of a role or a schedule fail repeatedly
    RATE_LIMITED = "rate_limited"  # an agent or its provider has been rate limited for a long time
    INVARIANT_BROKEN = "invariant_broken"
    UPKEEP_FAILING = "upkeep_failing"  # a system job fails or hangs
    AGENT_HEALTH = "agent_health"  # an agent's endpoint cannot be reached, or can again
    BUDGET_WARNING = "budget_warning"
    WEBHOOK_OFF = "webhook_off"  # a webhook of events was switched off
    TEST = "test"  # somebody tests a channel
    DIGEST = "digest"  # a summary of a day or a week, for channels that request it


class Severity(models.TextChoices):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class ChannelKind(models.TextChoices):
    """The way of a delivery. Each has a queue `notifications__<kind>`."""

    SLACK = "slack"
    EMAIL = "email"
    WEBHOOK = "webhook"


class Digest(models.TextChoices):
    """How often an e-mail channel receives a digest."""

    OFF = "off"
    DAILY = "daily"
    WEEKLY = "weekly"


class Weekday(models.TextChoices):
    """In the order of `date.weekday()`."""

    MONDAY = "monday"
    TUESDAY = "tuesday"
    WEDNESDAY = "wednesday"
    THURSDAY = "thursday"
    FRIDAY = "friday"
    SATURDAY = "saturday"
    SUNDAY = "sunday"


class DeliveryState(models.TextChoices):
    """Each state is documented by how it is left."""

    PENDING = "pending"  # A worker claims it at `next_attempt_at`.
    SENDING = "sending"  # The worker records the result; if it dies, another one does after some minutes.
    SENT = "sent"  # Final.
    FAILED = "failed"  # Final, unless somebody sends it again.
    UNKNOWN = "unknown"  # It may have arrived, so it is not repeated, unless somebody sends it again.


class Alert(TenantOwned):
    """A notice for people. The application displays the row; its deliveries send it to channels.

    It refers to its activity without a foreign key, because it outlives the activity, and raising it must lock nothing.
    """

    kind = models.CharField(max_length=32)
    severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.WARNING)
    title = models.CharField(max_length=200)
    body = models.TextField(blank=True, default="")
    activity_id = models.UUIDField(null=True, blank=True)
    facts = models.JSONField(default=dict, blank=True, help_text="Ids and numbers for programs.")
    dedup_key = models.CharField(
        max_length=200, null=True, blank=True, help_text="No second alert is created with the same key."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    acknowledged_at = models.DateTimeField(null=True, blank=True, editable=False)
    acknowledged_by = models.CharField(max_length=200, blank=True, default="", editable=False)

    class Meta:
        constraints = (
            unique("alert_of_tenant", "tenant", "id"),
            unique("alert_once_per_dedup_key", "tenant", "dedup_key", dedup_key__isnull=False),
        )
        indexes = (
            index("alert_newest", "tenant", "-created_at", "-id"),
            index("alerts_of_activity", "tenant", "activity_id", activity_id__isnull=False),
        )

    def __str__(self) -> str:
        return self.title


class NotificationChannel(TenantOwned):
    """A destination for a tenant's alerts. The target is sealed: nobody can read it again."""

    kind = models.CharField(max_length=8, choices=ChannelKind.choices)
    name = models.CharField(max_length=100)
    target_sealed = models.TextField(editable=False)
    target_shown = models.CharField(
        max_length=300,
        editable=False,
        help_text="The part of the target that is displayed, so that people recognize it.",
    )
    kinds = models.JSONField(
        default=list, blank=True, help_text="The kinds of alerts to send. If empty: all."
    )
    enabled = models.BooleanField(default=True)
    digest = models.CharField(
        max_length=6,
        choices=Digest.choices,
        default=Digest.OFF,
        db_default="off",
        help_text="For email: a daily or weekly summary.",
    )
    digest_hour = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(23)],
        help_text="0 to 23, in the tenant's time zone. If empty, the platform's setting, usually 7 for daily and 9 for weekly digests.",
    )
    digest_day = models.CharField(
        max_length=9,
        choices=Weekday.choices,
        blank=True,
        default="",
        db_default="",
        help_text="For weekly digests. If empty, Monday.",
    )
    digest_roles = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text="The human roles whose waiting items the digest contains. If empty: all.",
    )
    digest_due_at = models.DateTimeField(null=True, editable=False)
    version = models.IntegerField(
        default=1, editable=False, help_text="Increases with every change; the ETag begins with it."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (unique("notification_channel_named_once", "tenant", "name"),)
        indexes = (index("digests_due", "digest_due_at", digest_due_at__isnull=False),)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


class AlertDelivery(TenantPart):
    """The delivery of one alert to one channel. A delivery without a channel id is for the platform's own channel."""

    id = models.UUIDField(
        primary_key=True,
        default=uuid7,
        editable=False,
        help_text="Also used as the `webhook-id` and the Message-ID.",
    )
    alert = part_of(Alert, "deliveries")
    channel_kind = models.CharField(max_length=8, choices=ChannelKind.choices)
    channel_id = models.UUIDField(null=True, blank=True, help_text="Empty for the platform's own channels.")
    channel_name = models.CharField(max_length=100, help_text="The channel's name when the alert was raised.")
    state = models.CharField(
        max_length=8, choices=DeliveryState.choices, default=DeliveryState.PENDING, editable=False
    )
    attempts = models.PositiveSmallIntegerField(
        default=0, help_text="Also identifies the claim: only the latest claim may record a result."
    )
    next_attempt_at = models.DateTimeField(
        db_default=Now(),
        help_text="When a deliverer sends it next, or checks the result of an interrupted attempt.",
    )
    claimed_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=500, blank=True, default="")
    sent_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "alert deliveries"
        constraints = (
            models.UniqueConstraint(
                fields=("alert", "channel_kind", "channel_id"),
                nulls_distinct=False,
                name="alert_once_per_channel",
            ),
        )
        indexes = (
            index("deliveries_due", "channel_kind", "next_attempt_at", state__in=["pending", "sending"]),
            index("deliveries_in_turn", "tenant", "channel_kind", "next_attempt_at", "id", state="pending"),
            index("deliveries_under_way", "channel_kind", state="sending"),
        )

    def __str__(self) -> str:
        return f"{self.channel_name}: {self.state}"
