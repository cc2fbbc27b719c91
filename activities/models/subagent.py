"""Subagents: work that was started from elsewhere, for one prompt, by an agent with a conversation of its own."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from activities.models.activity import Activity
from activities.models.mailbox import Mailbox
from tenants.identifiers import uuid7
from tenants.models import TenantPart


class Subagent(TenantPart):
    """How it stands is read from its activity; nothing of it is kept here twice."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = models.ForeignKey(
        Activity, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    conversation = models.ForeignKey(
        Mailbox, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    continues_id = models.UUIDField(
        null=True, blank=True, help_text="The earlier subagent whose conversation it is."
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
        max_length=200, blank=True, default="", help_text="Key of who is told of its end."
    )
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant", "activity"), name="subagent_of_activity"),
            models.UniqueConstraint(
                fields=("tenant", "parent_mailbox", "tool_call_id"),
                condition=~models.Q(parent_mailbox="") & ~models.Q(tool_call_id=""),
                name="subagent_once_per_call",
            ),
        )
        indexes = (models.Index(fields=("tenant", "-created_at", "-id"), name="subagents_newest"),)

    def __str__(self) -> str:
        return self.description or self.subagent_type
