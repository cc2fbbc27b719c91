"""Work that was turned away because too much was waiting already, or given up because it had waited too long."""

from __future__ import annotations

from django.db import models

from tenants.identifiers import uuid7
from tenants.models import TenantOwned


class TurnedAway(TenantOwned):
    """How much there was, by the role whose work it was and by the reason. It only ever counts up."""

    class Reason(models.TextChoices):
        REJECTED = "rejected", "The submission was answered 429."
        SHED = "shed", "It made room for newer or more urgent work."
        EXPIRED = "expired", "Its time had passed before it could start."

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    agent_role = models.CharField(max_length=63)
    reason = models.CharField(max_length=8, choices=Reason.choices)
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "turned away"
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "agent_role", "reason"), name="turned_away_once_per_role"
            ),
        )

    def __str__(self) -> str:
        return f"{self.agent_role}, {self.reason}: {self.count}"
