"""Batches of model providers, and the parked runs that wait for them."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantOwned, TenantPart, index, part_of, unique
from tenants.wording import describe_count


class BatchState(models.TextChoices):
    BOUND = "bound", "Its items are chosen; it is to be sent."
    SENDING = "sending", "It was or is being sent; whether it arrived is not known yet."
    SENT = "sent", "The provider has it."
    ENDED = "ended", "All its answers are in, or nobody wants them any more."
    REFUSED = "refused", "The provider did not take it."


class ItemState(models.TextChoices):
    """The state of one run's request. It is open while collected or bound; the other states are final."""

    COLLECTED = "collected", "It waits for a batch."
    BOUND = "bound", "It belongs to a batch."
    ANSWERED = "answered", "Its answer was the result of its run."
    FAILED = "failed", "It failed; the run's retry policy decides what follows."
    MOVED = "moved", "It went to the real-time route instead."
    DROPPED = "dropped", "Its run was over before its answer."


OPEN_BATCHES = (BatchState.BOUND, BatchState.SENDING, BatchState.SENT)
OPEN_ITEMS = (ItemState.COLLECTED, ItemState.BOUND)


class ProviderBatch(TenantOwned):
    """A batch of one tenant for one provider, credential and model. Its items are bound before it is sent."""

    agent_role = models.CharField(max_length=63, help_text="The role whose settings lead to the provider.")
    provider = models.CharField(
        max_length=400, help_text="Adapter, host and port, and a digest of the credential."
    )
    model = models.CharField(max_length=200)
    state = models.CharField(max_length=8, choices=BatchState.choices, default=BatchState.BOUND)
    size = models.PositiveIntegerField(help_text="Number of its items.")
    sent = models.PositiveIntegerField(default=0, help_text="Number of items that were sent last.")
    sendings = models.PositiveSmallIntegerField(
        default=0,
        help_text="How often it was sent. It is sent again if the provider's answer was lost and the provider does not have the batch.",
    )
    external_id = models.CharField(
        max_length=100, blank=True, default="", help_text="The provider's id of the batch."
    )
    is_found = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether its id is from the provider's list of batches, so that the ids of its answers must confirm it.",
    )
    not_ours = ArrayField(
        models.CharField(max_length=100),
        default=list,
        help_text="Batches of the provider that were mistaken for this one.",
    )
    error = models.JSONField(null=True)
    due_at = models.DateTimeField(
        db_default=Now(),
        help_text="When it is processed next. A process first moves this time forward, as a lease.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    sent_at = models.DateTimeField(null=True, help_text="When it was last sent.")
    ended_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "provider batches"
        ordering = ("-id",)
        constraints = (unique("batch_of_tenant", "tenant", "id"),)
        indexes = (index("batches_due", "due_at", state__in=["bound", "sending", "sent"]),)

    def __str__(self) -> str:
        return f"{self.model}: {describe_count(self.size, 'item')}"


class BatchItem(TenantPart):
    """One parked run. Its id is the `custom_id` of its request."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = part_of("activities.Activity", "batch_items")
    run_id = models.UUIDField()
    fence = models.IntegerField()
    briefing = models.CharField(
        max_length=64, blank=True, default="", help_text="A digest of what the agent was told about its work."
    )
    batch = part_of(ProviderBatch, "items", null=True)
    agent_role = models.CharField(max_length=63)
    provider = models.CharField(max_length=400)
    model = models.CharField(max_length=200)
    state = models.CharField(max_length=9, choices=ItemState.choices, default=ItemState.COLLECTED)
    body = models.JSONField(null=True, help_text="The request. Empty after the item was closed.")
    bytes = models.PositiveIntegerField(help_text="The size of the request.")
    begun = models.JSONField(
        null=True, help_text="An answer with which the conversation continues on the real-time route."
    )
    leave_at = models.DateTimeField(help_text="When it moves to the real-time route at the latest.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)
        constraints = (unique("batch_item_once_per_run", "activity", "fence"),)
        indexes = (
            index("batch_items_collected", "tenant", "provider", "model", "id", state="collected"),
            index("batch_items_leaving", "leave_at", state__in=["collected", "bound"]),
            index("batch_items_of_batch", "batch", batch__isnull=False),
        )

    def __str__(self) -> str:
        return f"{self.agent_role}: {self.state}"
