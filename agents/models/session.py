"""The conversations that agents keep."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now

from agents.models.registry import Agent
from tenants.identifiers import uuid7
from tenants.models import TenantOwned


class EndReason(models.TextChoices):
    """Why a conversation is not continued."""

    INSTRUCTIONS_CHANGED = "instructions_changed"  # the agent is told to be something else by now
    INVALID = "invalid"  # the agent does not know it any more
    REPLACED = "replaced"  # the agent began another one about the same deliverable


class AgentSession(TenantOwned):
    """An agent's conversation about one deliverable, continued by revisions and wakes.

    At most one of a deliverable and role is live. One that has ended stays as history and is never continued.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    deliverable_id = models.UUIDField()
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="+", db_column="role")
    external_session_id = models.CharField(max_length=200, help_text="The agent's own id of it.")
    briefing = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="Digest of what the agent was told it is. Empty: not known.",
    )
    state: Any = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)
    end_reason = models.CharField(
        max_length=24, blank=True, default="", db_default="", choices=EndReason.choices
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "deliverable_id", "agent"),
                condition=models.Q(ended_at__isnull=True),
                name="one_live_session",
            ),
            models.CheckConstraint(
                condition=models.Q(ended_at__isnull=True, end_reason="")
                | models.Q(ended_at__isnull=False, end_reason__in=EndReason.values),
                name="session_ends_for_a_reason",
            ),
        )
        indexes = (models.Index(fields=("tenant", "deliverable_id", "-id"), name="sessions_of_deliverable"),)

    def __str__(self) -> str:
        return f"{self.agent_id}: {self.external_session_id}"
