"""Counters of the whole platform, and how far in the history they have come. They belong to no tenant and name none."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Counter(models.Model):
    """What happened so often. A histogram has a row for each bucket, which counts what fell into this bucket alone."""

    name = models.CharField(max_length=32)
    role = models.CharField(
        max_length=63, help_text="Empty for people's work, and for what concerns no role."
    )
    status = models.CharField(max_length=20)
    le = models.FloatField(
        help_text="The upper bound of the bucket; infinity for the last, and for what is no histogram."
    )
    count = models.BigIntegerField()
    total = models.FloatField(help_text="The sum of what was observed.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("name", "role", "status", "le"), name="counted_once"),)

    def __str__(self) -> str:
        return f"{self.name}: {self.count}"


class CountingMark(models.Model):
    """One row: events up to `counted` are counted; those up to `seen` are next, once all transactions before `barrier` are over."""

    counted = models.BigIntegerField(default=0)
    seen = models.BigIntegerField(default=0)
    barrier = models.BigIntegerField(default=0, help_text="An id of a transaction, with its epoch.")
    at = models.DateTimeField(db_default=Now(), help_text="When a keeper last looked for something to count.")
    noted_at = models.DateTimeField(db_default=Now(), help_text="When `seen` was the newest event.")
    complete_at = models.DateTimeField(
        db_default=Now(), help_text="Up to when all that happened is in the counters."
    )

    def __str__(self) -> str:
        return f"up to {self.counted}"
