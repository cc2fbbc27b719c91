"""Mailboxes, their items and batches, and subagents."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from activities.models.activity import Activity
from tenants.identifiers import uuid7
from tenants.models import TenantOwned, TenantPart, index, part_of, unique


class ItemKind(models.TextChoices):
    MESSAGE = "message", "Somebody says something."
    TASK_NOTIFICATION = "task_notification", "Work that was started from here has ended."
    APPROVAL_RESULT = "approval_result", "People have decided something."
    OVERLAY_ACTION = "overlay_action", "Somebody did something in a user interface."


class ItemSource(models.TextChoices):
    USER = "user"
    ENGINE = "system", "system"
    HOOK = "hook"


class ItemState(models.TextChoices):
    """The state of an item. An item for an agent stays `pending` until its activity has ended; its wake has the current state."""

    PENDING = "pending"  # It is taken as soon as it is due.
    CLAIMED = "claimed"  # Its batch completes or fails, or the lease expires.
    DONE = "done"
    FAILED = "failed"  # All attempts are used up, or another one cannot help.
    CANCELLED = "cancelled"  # It was cancelled, or the work that should receive it.


class BatchState(models.TextChoices):
    OPEN = "open"  # A consumer holds it until its lease ends.
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"  # Its lease expired, and its items were released.


class Mailbox(TenantOwned):
    """The messages to one session. The key is chosen by its users. The id is that of the conversation that agents continue."""

    bounded_as = "mailboxes"

    key = models.CharField(max_length=200)
    agent_role = models.CharField(
        max_length=63,
        null=True,
        blank=True,
        help_text="The role that consumes it. If empty, clients take its items.",
    )
    fence = models.BigIntegerField(default=0, help_text="Increases with every batch that is taken.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "mailboxes"
        constraints = (
            unique("mailbox_once_per_key", "tenant", "key"),
            unique("mailbox_of_tenant", "tenant", "id"),
        )

    def __str__(self) -> str:
        return self.key


class MailboxBatch(TenantPart):
    """Items that an external consumer took together, with their result."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    mailbox = part_of(Mailbox, "batches")
    consumer = models.CharField(max_length=200)
    fence = models.BigIntegerField()
    state = models.CharField(max_length=10, choices=BatchState.choices, default=BatchState.OPEN)
    size = models.PositiveIntegerField()
    leased_until = models.DateTimeField()
    result = models.JSONField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "mailbox batches"
        constraints = (
            unique("mailbox_batch_of_tenant", "tenant", "id"),
            unique("mailbox_batch_once_per_fence", "mailbox", "fence"),
        )
        indexes = (index("mailbox_open_batches", "mailbox", "leased_until", state="open"),)

    def __str__(self) -> str:
        return f"{self.consumer}: {self.fence}"


class MailboxItem(TenantPart):
    """One message. An item for an agent has the id of the wake that delivers it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    mailbox = part_of(Mailbox, "items")
    agent_role = models.CharField(max_length=63, null=True, blank=True)
    kind = models.CharField(max_length=20, choices=ItemKind.choices)
    content = models.JSONField(null=True, blank=True)
    text = models.TextField(blank=True, default="")
    source = models.CharField(max_length=8, choices=ItemSource.choices, default=ItemSource.USER)
    priority = models.SmallIntegerField(default=5, validators=[MinValueValidator(0), MaxValueValidator(9)])
    is_coalescable = models.BooleanField(default=True)
    scope_key = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="Only items with the same scope key are delivered together.",
    )
    client_message_id = models.CharField(max_length=200, null=True, blank=True)
    max_attempts = models.PositiveSmallIntegerField(default=3)
    backoff = models.JSONField(default=dict, blank=True, help_text="multiplier, max_seconds")
    state = models.CharField(max_length=10, choices=ItemState.choices, default=ItemState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    run_after = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(
        null=True, blank=True, help_text="It is not delivered before this time. Empty: at once."
    )
    activity_id = models.UUIDField(
        null=True, blank=True, help_text="The activity in which an agent receives it."
    )
    batch_id = models.UUIDField(null=True, blank=True, help_text="The last batch that contained it.")
    error = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    claimed_at = models.DateTimeField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            unique("mailbox_item_once", "mailbox", "client_message_id", client_message_id__isnull=False),
            models.CheckConstraint(condition=models.Q(priority__range=(0, 9)), name="mailbox_priority_range"),
            models.CheckConstraint(
                condition=~models.Q(kind="task_notification", is_coalescable=True),
                name="notifications_come_alone",
            ),
        )
        indexes = (
            index("mailbox_items_newest", "mailbox", "-created_at", "-id"),
            index("mailbox_items_open", "mailbox", "priority", "id", state__in=["pending", "claimed"]),
            index("mailbox_items_of_activity", "activity_id", activity_id__isnull=False),
            index("mailbox_items_of_batch", "batch_id", batch_id__isnull=False),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Subagent(TenantPart):
    """An agent that works on one prompt in a conversation of its own. Its state is read from its activity and not stored here."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = part_of(Activity, "+")
    conversation = part_of(Mailbox, "+")
    continues_id = models.UUIDField(
        null=True, blank=True, help_text="The earlier subagent whose conversation it continues."
    )
    subagent_type = models.CharField(max_length=63)
    description = models.CharField(max_length=200, blank=True, default="")
    prompt = models.TextField()
    model = models.CharField(max_length=200, blank=True, default="")
    max_turns = models.PositiveIntegerField(null=True, blank=True)
    tool_call_id = models.CharField(max_length=200, blank=True, default="")
    run_in_background = models.BooleanField(default=True)
    silent = models.BooleanField(default=False)
    parent_mailbox = models.CharField(
        max_length=200,
        blank=True,
        default="",
        help_text="The key of the mailbox that is notified of its end.",
    )
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            unique("subagent_of_activity", "tenant", "activity"),
            unique(
                "subagent_once_per_call",
                "tenant",
                "parent_mailbox",
                "tool_call_id",
                where=~models.Q(parent_mailbox="") & ~models.Q(tool_call_id=""),
            ),
        )
        indexes = (index("subagents_newest", "tenant", "-created_at", "-id"),)

    def __str__(self) -> str:
        return self.description or self.subagent_type
