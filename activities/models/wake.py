"""Reasons to run: the outbox of the engine."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from activities import states
from tenants.identifiers import uuid7
from tenants.models import TenantPart


class Wake(TenantPart):
    """A durable reason to run an activity. A pending wake is never lost; a consumed one never runs again."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = models.ForeignKey(
        "activities.Activity",
        on_delete=models.CASCADE,
        related_name="wakes",
        db_constraint=False,
        db_index=False,
    )
    reason = models.CharField(max_length=20, choices=[(r.value, r.value) for r in states.WakeReason])
    cause = models.CharField(max_length=12, default="wake", help_text="wake, retry, stall, replay, session")
    payload = models.JSONField(default=dict)
    fingerprint = models.CharField(
        max_length=64, default="", help_text="Equal live wakes have equal fingerprints and merge."
    )
    state = models.CharField(
        max_length=10,
        choices=[(s.value, s.value) for s in states.WakeState],
        default=states.WakeState.PENDING,
    )
    run_id = models.UUIDField(null=True)
    due_at = models.DateTimeField(null=True, help_text="Not offered before. The promoter clears it.")
    merged = models.PositiveIntegerField(default=0, help_text="Equal wakes that joined this one.")
    provenance = models.JSONField(
        null=True, editable=False, help_text="The request that set it going, see tenants.provenance."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("activity", "reason", "fingerprint"),
                condition=models.Q(state="pending"),
                name="equal_wakes_merge",
            ),
        )
        indexes = (
            models.Index(
                fields=("due_at",),
                condition=models.Q(state="pending", due_at__isnull=False),
                name="wakes_due",
            ),
            models.Index(fields=("id",), condition=models.Q(state="pending"), name="wakes_pending"),
            models.Index(fields=("activity", "state"), name="wakes_of_activity"),
        )

    def __str__(self) -> str:
        return self.reason.replace("_", " ")
