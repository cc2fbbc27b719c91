"""The table of saved views."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models.access import Membership
from tenants.models.base import TenantOwned

LONGEST_NAME = 60
LONGEST_QUERY = 1_000


class SavedView(TenantOwned):
    """A query of a page by a name. It is its member's and goes with the membership; without a member it is everybody's in the tenant."""

    bounded_as = "saved_views"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # PostgreSQL deletes them with the membership, by the key that carries the tenant: whoever ends one need not be asked about its views.
    membership = models.ForeignKey(
        Membership,
        on_delete=models.DO_NOTHING,
        related_name="+",
        null=True,
        db_constraint=False,
        db_index=False,
    )
    page = models.CharField(max_length=32, help_text="The name of the page's address.")
    name = models.CharField(max_length=LONGEST_NAME)
    query = models.CharField(max_length=LONGEST_QUERY, blank=True, help_text="As in an address.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "membership", "page", "name"),
                name="saved_view_named_once",
                nulls_distinct=False,
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def is_shared(self) -> bool:
        return self.membership_id is None
