"""Settings of the platform as a whole that are changed while it runs."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class PlatformConfig(models.Model):
    """One group of settings by its key. What is left out of `value` has its default."""

    key = models.CharField(primary_key=True, max_length=63)
    value = models.JSONField(default=dict, blank=True)
    version = models.PositiveIntegerField(
        default=1, editable=False, help_text="Raised by every change; the ETag."
    )
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_by = models.CharField(max_length=200, blank=True, default="", editable=False)

    class Meta:
        ordering = ("key",)

    def __str__(self) -> str:
        return self.key
