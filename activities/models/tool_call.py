"""What an agent asked the orchestrator to do during a run."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantPart


class ToolCall(TenantPart):
    """One effect of one call, and its answer: a repetition is recognised by its digest and gets the same answer again."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = models.ForeignKey(
        "activities.Activity",
        on_delete=models.CASCADE,
        related_name="tool_calls",
        db_constraint=False,
        db_index=False,
    )
    run_id = models.UUIDField()
    tool = models.CharField(max_length=32)
    digest = models.CharField(
        max_length=64, help_text="Of the tool and the Idempotency-Key or, without one, the body."
    )
    arguments = models.JSONField(default=dict)
    answer = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("at", "pk")
        constraints = (models.UniqueConstraint(fields=("run_id", "digest"), name="one_effect_per_call"),)
        indexes = (models.Index(fields=("activity", "at"), name="tool_calls_of_activity"),)

    def __str__(self) -> str:
        return self.tool.replace("_", " ")
