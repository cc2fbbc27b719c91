"""Dead letters: records of work that has failed permanently."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.models import TenantOwned, index, part_of, unique


class DeadLetterReason(models.TextChoices):
    EXHAUSTED = "exhausted"  # the last attempt failed
    PERMANENT = "permanent"  # another attempt would fail in the same way
    STALLED = "stalled"  # its worker or agent was lost too often
    WAKE_BUDGET = "wake_budget"  # woken repeatedly without progress
    RATE_LIMITED = "rate_limited"  # rate limited (429) for too long


class DeadLetterState(models.TextChoices):
    OPEN = "open"
    REPLAYED = "replayed"
    CLOSED = "closed"  # cancelled, reassigned or dismissed by people


class LetterKind(models.TextChoices):
    ACTIVITY = "activity"
    MAILBOX_ITEM = "mailbox_item"


class DeadLetter(TenantOwned):
    """One terminal failure of an activity, or of a mailbox item of an external consumer. A replay that fails again creates another one.

    A mailbox item for an agent fails with its activity, and has no dead letter of its own.
    """

    activity = part_of("activities.Activity", "dead_letters", null=True, blank=True)
    mailbox_item_id = models.UUIDField(null=True, blank=True)
    mailbox_key = models.CharField(max_length=200, blank=True, default="", db_default="")
    run_id = models.UUIDField(null=True, help_text="The run that failed last.")
    agent_role = models.CharField(max_length=63)
    reason = models.CharField(max_length=12, choices=DeadLetterReason.choices)
    fingerprint = models.CharField(max_length=64, help_text="Equal for similar failures.")
    error = models.JSONField(default=dict)
    attempts = models.PositiveSmallIntegerField(default=0)
    stalls = models.PositiveSmallIntegerField(default=0)
    cost_usd = models.DecimalField(
        max_digits=14, decimal_places=6, default=0, help_text="The cost that all runs so far have reported."
    )
    pipeline_run_id = models.UUIDField(null=True)
    state = models.CharField(max_length=8, choices=DeadLetterState.choices, default=DeadLetterState.OPEN)
    escalation_id = models.UUIDField(null=True, help_text="The activity that asks a person to handle it.")
    planning_id = models.UUIDField(null=True, help_text="The activity that woke a planner because of it.")
    handled_at = models.DateTimeField(null=True, help_text="When people were notified.")
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            unique("one_open_dead_letter", "activity", state="open"),
            unique(
                "one_open_dead_letter_of_item", "mailbox_item_id", state="open", mailbox_item_id__isnull=False
            ),
            models.CheckConstraint(
                condition=models.Q(activity__isnull=False) ^ models.Q(mailbox_item_id__isnull=False),
                name="dead_letter_of_one_thing",
            ),
        )
        indexes = (
            index("dead_letter_newest", "tenant", "-created_at", "-id"),
            index("dead_letter_groups", "tenant", "fingerprint", "state"),
            index("dead_letters_unhandled", "id", handled_at__isnull=True),
        )

    def __str__(self) -> str:
        return f"{self.agent_role or self.mailbox_key}: {self.get_reason_display().lower()}"

    @property
    def kind(self) -> str:
        return LetterKind.ACTIVITY if self.activity_id else LetterKind.MAILBOX_ITEM

    @property
    def name(self) -> str:
        """The display name of the failed work."""
        return self.activity.name if self.activity else f"An item of the mailbox {self.mailbox_key}"
