"""What people have put aside: items of the inbox that one person does not want to see until a time."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from activities.models.activity import Activity
from tenants.identifiers import uuid7
from tenants.models import Membership, TenantPart


class SnoozedItem(TenantPart):
    """An item that is out of its member's sight until `until`, as long as its version is the one that was noted. Others see it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # PostgreSQL deletes them with the activity and with the membership, by the keys that carry the tenant.
    activity = models.ForeignKey(
        Activity, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False
    )
    membership = models.ForeignKey(
        Membership, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False
    )
    until = models.DateTimeField()
    version = models.IntegerField(help_text="That of the activity when it was put aside.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            # It begins with the activity: the list asks for each item whether it is put aside.
            models.UniqueConstraint(
                fields=("tenant", "activity", "membership"), name="snoozed_once_per_member"
            ),
        )
        indexes = (models.Index(fields=("tenant", "membership"), name="snoozed_by_member"),)

    def __str__(self) -> str:
        return f"{self.activity_id} until {self.until:%Y-%m-%d %H:%M}"
