"""Outputs on their way to MongoDB."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.models import TenantPart


class OutputSpool(TenantPart):
    """An output, written in the transaction of its result. The copier moves it to MongoDB; readers look here first."""

    id = models.UUIDField(primary_key=True, help_text="The run's id, and the document's `_id`.")
    activity_id = models.UUIDField()
    content = models.TextField(null=True)
    data = models.JSONField(null=True)
    content_type = models.CharField(max_length=100, default="text/markdown")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (models.Index(fields=("created_at",), name="spool_oldest"),)

    def __str__(self) -> str:
        return str(self.id)
