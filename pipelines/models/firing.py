"""One nominal time of a schedule, and what became of it."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from pipelines.models.schedule import Schedule
from tenants.identifiers import uuid7
from tenants.models import TenantPart


class FiringState(models.TextChoices):
    FIRED = "fired"  # an execution came of it
    QUEUED = "queued"  # its execution waits for the one before
    SKIPPED = "skipped"  # on record, with the reason


class Firing(TenantPart):
    """One nominal time of a schedule, and what became of it. However many schedulers look, each time is there once."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    schedule = models.ForeignKey(
        Schedule, on_delete=models.CASCADE, related_name="firings", db_constraint=False, db_index=False
    )
    nominal_at = models.DateTimeField()
    last_at = models.DateTimeField(
        null=True, help_text="A long row of skipped times is one record: from nominal_at to this one."
    )
    count = models.IntegerField(default=1, help_text="How many times this record stands for.")
    state = models.CharField(max_length=8, choices=FiringState.choices)
    reason = models.CharField(max_length=200, blank=True, default="", help_text="Why it was skipped.")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-nominal_at",)
        constraints = (models.UniqueConstraint(fields=("schedule", "nominal_at"), name="each_time_once"),)

    def __str__(self) -> str:
        return f"{self.state} {self.nominal_at:%Y-%m-%d %H:%M}"
