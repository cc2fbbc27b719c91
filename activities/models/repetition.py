"""Submissions that created nothing, since an equal activity was under way."""

from __future__ import annotations

from django.db import models

from tenants.identifiers import uuid7
from tenants.models import TenantOwned


class RepeatedSubmissions(TenantOwned):
    """How many there were, by the role whose work it was; an empty role stands for people's. It only ever counts up."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    agent_role = models.CharField(max_length=63, blank=True, default="")
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "repeated submissions"
        constraints = (
            models.UniqueConstraint(fields=("tenant", "agent_role"), name="repetitions_once_per_role"),
        )

    def __str__(self) -> str:
        return f"{self.agent_role or 'people'}: {self.count}"
