"""What is not as it should be on the platform, for as long as it lasts. It belongs to no tenant; the alerts about it do."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Condition(models.Model):
    """One that people were told of. The row goes when it is over, in the transaction in which they are told of that."""

    name = models.CharField(max_length=400, unique=True, help_text="Its kind and what it concerns.")
    kind = models.CharField(max_length=32, help_text="The kind of its alerts.")
    over = models.CharField(max_length=200, help_text="What people are told when it has ended.")
    facts = models.JSONField(default=dict, help_text="For programs; as in its alerts.")
    since = models.DateTimeField(db_default=Now())
    tenants = models.JSONField(default=list, help_text="Ids of the tenants that were told.")

    class Meta:
        verbose_name = "platform condition"

    def __str__(self) -> str:
        return self.name
