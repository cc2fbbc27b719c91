"""What tenants want kept, what was deleted for it, and what is still to be deleted elsewhere."""

from __future__ import annotations

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models.base import TenantOwned, TenantPart, index, unique

LONGEST_DAYS = 36_500


class RetentionPolicy(TenantOwned):
    """How long a tenant's rows of one kind are kept. Without one, the platform's default holds."""

    kind = models.CharField(max_length=32)
    days = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(LONGEST_DAYS)],
        help_text="If empty, rows of this kind are never deleted.",
    )
    version = models.IntegerField(default=1, editable=False, help_text="Increases with every change.")
    updated_by = models.CharField(max_length=200, blank=True, default="", editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "retention policies"
        constraints = (unique("one_policy_per_kind", "tenant", "kind"),)

    def __str__(self) -> str:
        return f"{self.kind}: {'never' if self.days is None else self.days}"


class RetentionTally(TenantPart):
    """How many rows of one kind were deleted at a tenant because their retention time was over."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=32)
    deleted = models.BigIntegerField(default=0)
    last_deleted = models.IntegerField(
        default=0, help_text="Number of rows deleted in the last pass that deleted any."
    )
    last_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = "deleted rows"
        verbose_name_plural = "deleted rows"
        constraints = (unique("one_tally_per_kind", "tenant", "kind"),)

    def __str__(self) -> str:
        return f"{self.kind}: {self.deleted}"


class RetentionPass(models.Model):
    """The leader's record for one kind over all tenants: when its next pass is due, and what the last one did."""

    kind = models.CharField(max_length=32, primary_key=True)
    due_at = models.DateTimeField(db_default=Now())
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True, help_text="Empty while the pass runs.")
    reached = models.UUIDField(null=True, help_text="The last tenant that this pass has processed.")
    rows = models.BigIntegerField(default=0, help_text="Number of rows deleted by the last pass.")
    total = models.BigIntegerField(default=0, help_text="Number of rows deleted by all passes.")

    class Meta:
        verbose_name_plural = "retention passes"
        indexes = (index("retention_due", "due_at"),)

    def __str__(self) -> str:
        return self.kind


class ForgottenOutput(TenantPart):
    """An output whose activity was deleted. Written in that transaction; deleted once the output is deleted from MongoDB as well."""

    id = models.UUIDField(
        primary_key=True, help_text="The id of the output, which is also the document's `_id`."
    )
    activity_id = models.UUIDField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (index("forgotten_outputs", "tenant", "at"),)

    def __str__(self) -> str:
        return str(self.id)


class UsageTotal(TenantPart):
    """The sums by month of ledger entries that were deleted."""

    id = models.BigAutoField(primary_key=True)
    month = models.DateField(help_text="The first day of the month.")
    agent_role = models.CharField(max_length=63)
    deliverable_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200, blank=True, default="")
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    dollars = models.DecimalField(max_digits=36, decimal_places=12, default=0)
    runs = models.BigIntegerField(default=0)
    entries = models.BigIntegerField(default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "month", "agent_role", "deliverable_id", "model"),
                nulls_distinct=False,
                name="one_total_per_group",
            ),
        )

    def __str__(self) -> str:
        return f"{self.agent_role} in {self.month:%Y-%m}"


class DepartedTenant(models.Model):
    """A tenant that was off-boarded: that it existed, and how much of it was deleted. Nothing of its content."""

    id = models.UUIDField(primary_key=True, editable=False, help_text="The tenant's id.")
    slug = models.SlugField(max_length=63)
    began_at = models.DateTimeField(db_default=Now(), help_text="When the deletion began.")
    erased_at = models.DateTimeField(null=True, help_text="Empty until the deletion has ended.")
    counts: Any = models.JSONField(
        default=dict, help_text="Number of deleted rows by table, and what else was deleted."
    )

    class Meta:
        verbose_name = "off-boarded tenant"
        ordering = ("-began_at",)

    def __str__(self) -> str:
        return self.slug
