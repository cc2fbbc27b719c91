"""Tenants, and the base classes of rows that belong to one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Self
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from tenants.exceptions import NoneOfKind
from tenants.identifiers import uuid7
from tenants.plain_names import error_of_name


def index(name: str, /, *fields: str, where: models.Q | None = None, **condition: Any) -> models.Index:
    """Return an index; with conditions, one of the rows that meet them."""
    return models.Index(fields=fields, name=name, condition=models.Q(**condition) if condition else where)


def unique(
    name: str, /, *fields: str, where: models.Q | None = None, **condition: Any
) -> models.UniqueConstraint:
    """Return a unique constraint; with conditions, one among the rows that meet them."""
    return models.UniqueConstraint(
        fields=fields, name=name, condition=models.Q(**condition) if condition else where
    )


def part_of(model: str | type[models.Model], related_name: str, **options: Any) -> Any:
    """Return a key to the row that this one belongs to.

    It has neither a constraint nor an index of its own, because the table has a composite key with the tenant, and indexes for its
    queries.
    """
    return models.ForeignKey(
        model,
        on_delete=models.CASCADE,
        related_name=related_name,
        db_constraint=False,
        db_index=False,
        **options,
    )


class PlainNames:
    """Checks names and keys that people enter in forms by the rules of `tenants.plain_names`."""

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        errors: dict[str, Any] = {}
        try:
            super().clean_fields(exclude=exclude)  # type: ignore[misc]  # of the model that this is mixed into
        except ValidationError as error:
            errors = error.update_error_dict({})
        for field in self._meta.concrete_fields:  # type: ignore[attr-defined]
            if field.get_internal_type() in ("CharField", "SlugField") and field.name not in (exclude or ()):
                problem = error_of_name(str(getattr(self, field.attname) or ""))
                if problem:
                    errors.setdefault(field.name, []).append(ValidationError(problem))
        if errors:
            raise ValidationError(errors)


def validate_role_caps(value: Any) -> None:
    """Raises a `ValidationError` that names everything wrong with the caps by role."""
    if not isinstance(value, dict):
        raise ValidationError('Must be an object such as {"writer": 3}.')
    wrong = [
        f"{role}: must be a whole number above 0."
        for role, cap in value.items()
        if type(cap) is not int or not 0 < cap < 2**31
    ]
    if wrong:
        raise ValidationError(wrong)


class Plan(PlainNames, models.Model):
    """Limits that many tenants share, such as those of a price plan. A tenant's own limits take precedence."""

    key = models.SlugField(max_length=63, primary_key=True)
    name = models.CharField(max_length=200)
    max_concurrency = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="How many activities of a tenant may run at once, over all roles. Empty: no limit.",
    )
    max_concurrency_per_group = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many activities with one group key and group_scope tenant may run at once. Empty: 1.",
    )
    roles = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_role_caps],
        help_text='How many activities of a role a tenant may run at once, such as {"writer": 3}. Other roles: as the registry says.',
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("key",)

    def __str__(self) -> str:
        return self.name or self.key


class Tenant(PlainNames, models.Model):
    """A customer, whose work, people and limits are isolated from those of all others."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    is_active = models.BooleanField(default=True)
    paused = models.BooleanField(
        default=False,
        help_text="Whether all its work is paused: no new work starts, and current runs end normally.",
    )
    plan = models.ForeignKey(
        Plan, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    max_concurrency = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="How many activities may run at once, over all roles. Empty: its plan decides; without a plan, no limit.",
    )
    max_concurrency_per_group = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many activities with one group key and group_scope tenant may run at once. Empty: its plan decides, otherwise 1.",
    )
    weight = models.PositiveIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Share of busy workers relative to other tenants: weight 3 gets three times the slot-seconds of weight 1.",
    )
    timezone = models.CharField(max_length=64, default="UTC")
    bounds = models.JSONField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text='How many objects of a kind it may own, such as {"schedules": 50}. For other kinds, the limit of the platform applies.',
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.name or self.slug

    @property
    def cap(self) -> int | None:
        """Return how many activities may run at once over all roles: by its own limit, or else its plan's. None: no limit."""
        own = self.max_concurrency
        return own if own is not None or self.plan is None else self.plan.max_concurrency

    @property
    def cap_per_group(self) -> int | None:
        own = self.max_concurrency_per_group
        return own if own is not None or self.plan is None else self.plan.max_concurrency_per_group

    def cap_of_role(self, role: str) -> int | None:
        """Return its plan's cap for a role, if there is one."""
        return None if self.plan is None else self.plan.roles.get(role)


#: Condition, true for every row, of indexes that only serve lists. PostgreSQL uses such an index only where it can prove the condition: for
#: statements of the ORM, which contain the tenant's id, and never for a prepared statement or the check of a foreign key. Those look rows
#: up by their keys. But while a table is (nearly) empty, scanning any index seems as cheap as looking up a key, and a plan made at that
#: time would scan the whole index when there are a hundred thousand rows.
FOR_LISTS = models.Q(tenant__gt=UUID(int=0))


class TenantQuerySet(models.QuerySet[Any]):
    """Every query of the application names its tenant; row-level security enforces the same condition."""

    def for_tenant(self, tenant: Tenant | UUID) -> Self:
        return self.filter(tenant_id=tenant.pk if isinstance(tenant, Tenant) else tenant)

    def first_or_raise(self, error: Exception) -> Any:
        """Return the first row. Raises the error if there is none."""
        row = self.first()
        if row is None:
            raise error
        return row

    def get_or_raise(self, error: type[NoneOfKind], kind: str, pk: Any) -> Any:
        """Return the row with this primary key. Raises the error, with this kind and key, if there is none."""
        return self.filter(pk=pk).first_or_raise(error(kind, pk))


class TenantOwned(PlainNames, models.Model):
    """A row of one tenant. Its table has a forced policy, and its keys to other tenant-owned tables include the tenant."""

    # Under which name `tenants.bounds` counts the rows of a tenant, and which of them it counts; empty: their number is not limited.
    bounded_as: ClassVar[str] = ""
    bounded_among: ClassVar[dict[str, Any]] = {}

    # Every table has a unique constraint or index that begins with the tenant; another index would only slow writes down.
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+", db_index=False)
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)

    objects = TenantQuerySet.as_manager()

    class Meta:
        abstract = True


class TenantPart(TenantOwned):
    """A row inside another tenant-owned row. Its composite key to that row already ties it to an existing tenant."""

    # Not indexed: rows are found through their parent, and each index would slow down every write of the hot path.
    tenant = part_of(Tenant, "+")
    id: Any = None  # each kind of part has its own, mostly a number

    class Meta:
        abstract = True


class PauseKind(models.TextChoices):
    PIPELINE = "pipeline"
    PROVIDER = "provider"
    SCHEDULE = "schedule"


class Pause(TenantOwned):
    """A pause of part of the tenant's work: nothing new of it starts while the row exists. Only `tenants.pausing` writes it."""

    kind = models.CharField(max_length=8, choices=PauseKind.choices)
    subject = models.CharField(
        max_length=63, help_text="The id of a pipeline or a schedule, or the name of a provider."
    )
    name = models.CharField(max_length=200, help_text="The name that people see.")
    paused_by = models.CharField(max_length=200)
    paused_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (unique("paused_once", "tenant", "kind", "subject"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class ConfigurationChange(models.Model):
    """Records that a transaction changed configuration. Written by a trigger, read by `tenants.caches`, deleted a day later.

    It belongs to no tenant: each process reads the changes of all tenants.
    """

    id = models.BigAutoField(primary_key=True)
    transaction = models.BigIntegerField(help_text="The id of the transaction in PostgreSQL.")
    concerns = models.UUIDField(
        null=True, help_text="The tenant whose configuration has changed. Empty for all tenants."
    )
    noted_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("transaction", "concerns"), name="configuration_change_once", nulls_distinct=False
            ),
        )

    def __str__(self) -> str:
        return f"{self.concerns or 'everybody'} in {self.transaction}"
