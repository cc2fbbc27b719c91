"""Answers of people that have not taken effect yet."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import TenantPart

LONGEST_REFUSAL = 500


class HeldAnswer(TenantPart):
    """What a person has answered and may still take back. It goes when it takes effect, or stays with the reason why it could not."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = models.ForeignKey(
        "activities.Activity",
        on_delete=models.CASCADE,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    # PostgreSQL deletes them with the person: whoever deletes one may not see the rows of every tenant.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    shown = models.PositiveIntegerField(help_text="The version of the item that the person saw.")
    deed = models.CharField(max_length=20)
    words = models.CharField(max_length=60, help_text="What the deed is called once it is done.")
    said = models.JSONField(default=dict, help_text="Notes, chosen option, result.")
    due_at = models.DateTimeField(help_text="When it takes effect.")
    refusal = models.CharField(
        max_length=LONGEST_REFUSAL, blank=True, default="", help_text="Why it could not. Empty: it is held."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant", "user", "activity"), name="answer_held_once"),
        )
        indexes = (models.Index(fields=("due_at",), name="held_answers_due", condition=models.Q(refusal="")),)

    def __str__(self) -> str:
        return f"{self.deed}: {self.activity_id}"
