"""What runs have consumed, how much they may consume, and what waits for a budget."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from tenants.models.base import TenantOwned, TenantPart, index, part_of, unique


class BudgetUnit(models.TextChoices):
    DOLLARS = "dollars"
    TOKENS = "tokens"  # of input and output together
    RUNS = "runs"


class BudgetPeriod(models.TextChoices):
    """How long a cap holds before it starts from zero, by UTC's calendar."""

    TOTAL = "total"
    DAY = "day"
    MONTH = "month"


def _amount(**options: Any) -> models.DecimalField[Any, Any]:
    """Dollars to the twelfth decimal place, as exact as agents may report them, or a count."""
    return models.DecimalField(max_digits=36, decimal_places=12, **options)


class UsageEntry(TenantPart):
    """What a run has consumed since its last entry, or that it began (`runs` is 1). Append-only; stays when its run is deleted.

    The sum of a run's entries is what the run has reported.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_default=Now(), editable=False)
    day = models.DateField(help_text="The day on which it was reported, in UTC.")
    agent_role = models.CharField(max_length=63)
    deliverable_id = models.UUIDField(null=True)
    activity_id = models.UUIDField()
    run_id = models.UUIDField()
    pipeline_run_id = models.UUIDField(null=True)
    pipeline_id = models.UUIDField(
        null=True, help_text="The pipeline of the run, which is deleted before its usage."
    )
    model = models.CharField(max_length=200, blank=True, default="")
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    dollars = _amount(default=0)
    runs = models.SmallIntegerField(default=0)
    unpriced = models.BooleanField(
        default=False,
        help_text="Whether the cost of these tokens is unknown: none was reported, and the price of the model is not known.",
    )

    class Meta:
        verbose_name_plural = "usage entries"
        indexes = (index("usage_by_day_and_role", "tenant", "day", "agent_role"),)

    def __str__(self) -> str:
        return f"{self.agent_role} on {self.day:%Y-%m-%d}"


class Budget(TenantOwned):
    """A cap on what runs may consume. It counts the runs that match every scope it names, and all of the tenant's if it names none.

    `spent` and `reserved` belong to the period that began on `period_start`; only `tenants.money` writes them.
    """

    name = models.CharField(max_length=200)
    agent_role = models.CharField(max_length=63, null=True, blank=True, help_text="Empty for all roles.")
    deliverable_id = models.UUIDField(null=True, blank=True, help_text="Empty for all deliverables.")
    activity_id = models.UUIDField(null=True, blank=True, help_text="Empty for all activities.")
    unit = models.CharField(max_length=8, choices=BudgetUnit.choices, default=BudgetUnit.DOLLARS)
    period = models.CharField(max_length=8, choices=BudgetPeriod.choices, default=BudgetPeriod.TOTAL)
    cap = _amount(validators=[MinValueValidator(0)])
    warning_share = models.DecimalField(
        max_digits=4,
        decimal_places=3,
        default=Decimal("0.8"),
        validators=[MinValueValidator(0), MaxValueValidator(1)],
        help_text="People are notified once when this share of the cap is spent.",
    )
    estimate = _amount(
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="The amount that is reserved for each run when it starts.",
    )
    spent = _amount(default=0, editable=False)
    reserved = _amount(default=0, editable=False)
    overshoot = _amount(
        default=0, editable=False, help_text="By how much the cap was exceeded in this period."
    )
    period_start = models.DateField(editable=False)
    warned_at = models.DateTimeField(null=True, editable=False)
    waiting_since = models.DateTimeField(
        null=True, editable=False, help_text="Since when work has been waiting for this budget."
    )
    wanted = _amount(null=True, editable=False, help_text="The smallest amount that the waiting work needs.")
    recount_at = models.DateTimeField(
        null=True, editable=False, help_text="When the amount is calculated from the ledger again."
    )
    version = models.IntegerField(
        default=1, editable=False, help_text="Increases with every change; the ETag begins with it."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    deleted_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        constraints = (unique("budget_of_tenant", "tenant", "id"),)
        indexes = (
            index("budgets_waited_for", "id", waiting_since__isnull=False),
            index("budgets_to_recount", "recount_at", recount_at__isnull=False),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def remaining(self) -> Decimal:
        """The part of the cap that is neither spent nor reserved."""
        return max(Decimal(0), self.cap - self.spent - self.reserved)


class Reservation(TenantPart):
    """What a budget reserves for a live run. It shrinks as the run reports, and is deleted when the run ends."""

    id = models.BigAutoField(primary_key=True)
    budget = part_of(Budget, "reservations")
    run_id = models.UUIDField()
    activity_id = models.UUIDField()
    amount = _amount()
    reserved_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (unique("reserved_once_per_run", "run_id", "budget"),)
        indexes = (index("reservations_of_budget", "budget"),)

    def __str__(self) -> str:
        return f"{self.amount} for {self.run_id}"


class BudgetWait(TenantPart):
    """An activity that may not start until a budget has room for it."""

    id = models.BigAutoField(primary_key=True)
    budget = part_of(Budget, "waits")
    activity_id = models.UUIDField()
    amount = _amount(help_text="The amount that would be reserved for its run.")
    priority = models.SmallIntegerField()
    since = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (unique("waits_for_one_budget", "tenant", "activity_id"),)
        indexes = (index("waits_in_order", "budget", "priority", "since"),)

    def __str__(self) -> str:
        return f"{self.activity_id} waits for {self.budget_id}"

    @property
    def fits_in_cap(self) -> bool:
        """Whether the budget would have room if nothing were spent or reserved. If not, a new period does not help."""
        return self.amount <= self.budget.cap and self.budget.cap > 0
