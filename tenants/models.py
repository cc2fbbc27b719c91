"""Tenants, who may act for them, and the base of every row that belongs to one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Self
from uuid import UUID

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from tenants.identifiers import uuid7


class Tenant(models.Model):
    """A customer whose work, people and limits are kept apart from everybody else's."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    is_active = models.BooleanField(default=True)
    paused = models.BooleanField(default=False, help_text="Nothing new starts; what runs ends normally.")
    max_concurrency = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Activities that may run at once over all roles. Empty: no limit of its own.",
    )
    max_concurrency_per_group = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Activities of one group key with group_scope tenant that may run at once. Empty: 1.",
    )
    weight = models.PositiveIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Share of busy workers relative to other tenants: weight 3 gets three times the slot-seconds of weight 1.",
    )
    timezone = models.CharField(max_length=64, default="UTC")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.name or self.slug


class TenantQuerySet(models.QuerySet[Any]):
    """Every query of the application names its tenant; row-level security repeats the condition."""

    def for_tenant(self, tenant: Tenant | UUID) -> Self:
        return self.filter(tenant_id=tenant.pk if isinstance(tenant, Tenant) else tenant)


class TenantOwned(models.Model):
    """A row of one tenant. Its table has a forced policy, and keys to other tenant-owned tables carry the tenant."""

    # Every table has a unique constraint or index that begins with the tenant; a further index would only cost.
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+", db_index=False)

    objects = TenantQuerySet.as_manager()

    class Meta:
        abstract = True


class TenantPart(TenantOwned):
    """A row inside another tenant-owned row. Its composite key to that row already ties it to an existing tenant."""

    # Not indexed: rows are reached through their parent, and each index is paid for on every write of the hot path.
    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )

    class Meta:
        abstract = True


class Role(models.TextChoices):
    """What a person or a token may do, each including the ones below."""

    ADMIN = "admin"  # configures agents, pipelines, schedules and members
    OPERATOR = "operator"  # submits, cancels, retries, reassigns
    REVIEWER = "reviewer"  # decides what people are asked for
    VIEWER = "viewer"  # reads

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) <= order.index(other)


class Membership(TenantOwned):
    """A person's role in a tenant, with the human roles whose inbox items are theirs."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.REVIEWER)
    human_roles = models.JSONField(default=list, blank=True, help_text='For example ["editor"].')
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant", "user"), name="membership_once_per_tenant"),
            models.UniqueConstraint(fields=("tenant", "id"), name="membership_of_tenant"),
        )

    def __str__(self) -> str:
        return f"{self.user} as {self.role}"


class ApiToken(TenantOwned):
    """A secret that acts for a tenant. Only its SHA-256 is stored; the secret itself is shown once."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=100)
    # The database empties it when the account is closed.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.DO_NOTHING,
        related_name="+",
        null=True,
        blank=True,
        editable=False,
        db_constraint=False,
        db_index=False,
        help_text="Who stands behind it. Empty: nobody, so that it has no vote.",
    )
    role = models.CharField(max_length=16, choices=Role.choices)
    prefix = models.CharField(
        max_length=16, editable=False, help_text="First characters, to recognise the token."
    )
    secret_hash = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list, blank=True, help_text="Empty: everything the role may do.")
    platform = models.BooleanField(
        default=False, help_text="May also change the registry that all tenants share."
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class ChannelStatus(models.TextChoices):
    ACTIVE = "active"  # Agents may rely on it, until `expires_at` if that is set.
    EXPIRED = "expired"  # Somebody has to sign in there again and reactivate it.
    DISABLED = "disabled"  # Switched off on purpose.


class Channel(TenantOwned):
    """A connection of the tenant's to the outside that agents need, such as an account for advertisements.

    The access itself is kept elsewhere; here is whether it still opens anything. `tenants.channels` is the only writer of `status`.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=63, help_text="Such as google-ads.")
    name = models.CharField(max_length=200)
    status = models.CharField(
        max_length=8, choices=ChannelStatus.choices, default=ChannelStatus.ACTIVE, editable=False
    )
    status_since = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text="From then on it counts as expired. Empty: nobody knows."
    )
    details = models.JSONField(
        default=dict, blank=True, help_text="For agents: account numbers and the like. No secrets."
    )
    version = models.IntegerField(default=1, editable=False, help_text="Raised by every change; the ETag.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant", "kind", "name"), name="channel_named_once_per_kind"),
        )
        indexes = (
            models.Index(
                fields=("expires_at",),
                condition=models.Q(status="active", expires_at__isnull=False),
                name="channels_that_expire",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


class IdempotentRequest(TenantOwned):
    """The answer to a POST that carried an Idempotency-Key, written in the transaction of the request's effect.

    Neither the key nor the body is stored, only their digests.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    digest = models.CharField(max_length=64, help_text="Of the caller, the path and the key.")
    request_digest = models.CharField(
        max_length=64, help_text="Of what was asked. Another request may not reuse the key."
    )
    status_code = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    body = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "digest"), name="idempotency_key_once"),)
        indexes = (models.Index(fields=("created_at",), name="idempotent_requests_by_age"),)

    def __str__(self) -> str:
        return f"{self.status_code} at {self.created_at:%Y-%m-%d %H:%M}"


class BudgetUnit(models.TextChoices):
    DOLLARS = "dollars"
    TOKENS = "tokens"  # of input and output together
    RUNS = "runs"


class BudgetPeriod(models.TextChoices):
    """How long a cap holds before it starts anew, by UTC's calendar."""

    TOTAL = "total"
    DAY = "day"
    MONTH = "month"


def _amount(**options: Any) -> models.DecimalField[Any, Any]:
    """Dollars to the twelfth decimal place, as exact as agents may report them, or a count."""
    return models.DecimalField(max_digits=36, decimal_places=12, **options)


class UsageEntry(TenantPart):
    """What a run has consumed since its last entry, or that it began (`runs` is 1). Only ever added to; outlives what it tells of.

    The sum of a run's entries is what the run has reported.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_default=Now(), editable=False)
    day = models.DateField(help_text="Of UTC, when it was reported.")
    agent_role = models.CharField(max_length=63)
    deliverable_id = models.UUIDField(null=True)
    activity_id = models.UUIDField()
    run_id = models.UUIDField()
    pipeline_run_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200, blank=True, default="")
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    dollars = _amount(default=0)
    runs = models.SmallIntegerField(default=0)
    unpriced = models.BooleanField(
        default=False, help_text="Nobody has said what these tokens cost: no price of their model is known."
    )

    class Meta:
        verbose_name_plural = "usage entries"
        indexes = (models.Index(fields=("tenant", "day", "agent_role"), name="usage_by_day_and_role"),)

    def __str__(self) -> str:
        return f"{self.agent_role} on {self.day:%Y-%m-%d}"


class Budget(TenantOwned):
    """A cap on what runs may consume. It counts the runs that fit every scope it names; without one, all of the tenant.

    `spent` and `reserved` are of the period that began on `period_start`; `tenants.money` is their only writer.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=200)
    agent_role = models.CharField(max_length=63, null=True, blank=True, help_text="Empty: all roles.")
    deliverable_id = models.UUIDField(null=True, blank=True, help_text="Empty: all deliverables.")
    activity_id = models.UUIDField(null=True, blank=True, help_text="Empty: all activities.")
    unit = models.CharField(max_length=8, choices=BudgetUnit.choices, default=BudgetUnit.DOLLARS)
    period = models.CharField(max_length=8, choices=BudgetPeriod.choices, default=BudgetPeriod.TOTAL)
    cap = _amount(validators=[MinValueValidator(0)])
    warning_share = models.DecimalField(
        max_digits=4,
        decimal_places=3,
        default=Decimal("0.8"),
        validators=[MinValueValidator(0), MaxValueValidator(1)],
        help_text="People are told once when this part of the cap is spent.",
    )
    estimate = _amount(
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="Put aside for each run that starts.",
    )
    spent = _amount(default=0, editable=False)
    reserved = _amount(default=0, editable=False)
    overshoot = _amount(default=0, editable=False, help_text="How far it was over the cap in this period.")
    period_start = models.DateField(editable=False)
    warned_at = models.DateTimeField(null=True, editable=False)
    waiting_since = models.DateTimeField(null=True, editable=False, help_text="Set while work waits for it.")
    wanted = _amount(null=True, editable=False, help_text="The least that one of the waiting needs.")
    recount_at = models.DateTimeField(
        null=True, editable=False, help_text="When to count from the ledger anew."
    )
    version = models.IntegerField(default=1, editable=False, help_text="Raised by every change; the ETag.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    deleted_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "id"), name="budget_of_tenant"),)
        indexes = (
            models.Index(
                fields=("id",), condition=models.Q(waiting_since__isnull=False), name="budgets_waited_for"
            ),
            models.Index(
                fields=("recount_at",),
                condition=models.Q(recount_at__isnull=False),
                name="budgets_to_recount",
            ),
        )

    def __str__(self) -> str:
        return self.name


class Reservation(TenantPart):
    """What a budget keeps for a live run. It shrinks as the run reports, and goes with the run."""

    id = models.BigAutoField(primary_key=True)
    budget = models.ForeignKey(
        Budget, on_delete=models.CASCADE, related_name="reservations", db_constraint=False, db_index=False
    )
    run_id = models.UUIDField()
    activity_id = models.UUIDField()
    amount = _amount()
    reserved_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run_id", "budget"), name="reserved_once_per_run"),)
        indexes = (models.Index(fields=("budget",), name="reservations_of_budget"),)

    def __str__(self) -> str:
        return f"{self.amount} for {self.run_id}"


class BudgetWait(TenantPart):
    """An activity that may not start before a budget has room for it."""

    id = models.BigAutoField(primary_key=True)
    budget = models.ForeignKey(
        Budget, on_delete=models.CASCADE, related_name="waits", db_constraint=False, db_index=False
    )
    activity_id = models.UUIDField()
    amount = _amount(help_text="What its run would be given.")
    priority = models.SmallIntegerField()
    since = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant", "activity_id"), name="waits_for_one_budget"),
        )
        indexes = (models.Index(fields=("budget", "priority", "since"), name="waits_in_order"),)

    def __str__(self) -> str:
        return f"{self.activity_id} waits for {self.budget_id}"


# Django looks for models here alone; these have files of their own, which need what is above.
import tenants.events.models  # noqa: E402, F401
from tenants.audit.rows import AuditEntry, BreakGlass  # noqa: E402, F401
from tenants.retention.models import (  # noqa: E402, F401  # Django looks for models here; these need the bases above
    DepartedTenant,
    ForgottenOutput,
    RetentionPass,
    RetentionPolicy,
    RetentionTally,
    UsageTotal,
)
from tenants.saved_views.models import SavedView  # noqa: E402, F401
