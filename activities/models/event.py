"""What happened to an activity: one row per transition, never changed."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.models import TenantPart


class ActivityEvent(TenantPart):
    """The history is unbroken: `seq` counts up from 1, and the last `target` is the activity's status."""

    activity = models.ForeignKey(
        "activities.Activity",
        on_delete=models.CASCADE,
        related_name="events",
        db_constraint=False,
        db_index=False,
    )
    seq = models.IntegerField()
    verb = models.CharField(max_length=24)
    source = models.CharField(max_length=20, null=True)
    target = models.CharField(max_length=20)
    actor = models.CharField(
        max_length=200, help_text="user:…, token:…, run:…, or the part of the system that acted."
    )
    run_id = models.UUIDField(null=True)
    detail = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("activity", "seq")
        constraints = (models.UniqueConstraint(fields=("activity", "seq"), name="event_once"),)

    def __str__(self) -> str:
        return f"{self.verb} -> {self.target}"
