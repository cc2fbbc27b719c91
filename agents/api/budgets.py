"""Budgets: how much a tenant's runs may consume, and how much of that is spent."""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration
from agents.api.role_names import RoleFilter, RoleName
from agents.models import Agent
from tenants import money, owned_ids
from tenants.api.documentation import change, creation, removal
from tenants.api.filters import StrictFilterSet
from tenants.api.serializers import (
    OPTIONAL,
    Amount,
    AmountField,
    Computed,
    Identifier,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import VersionedResource, describe_resource
from tenants.models import Budget, BudgetPeriod, BudgetUnit, Role

ADDRESS = "/api/v1/budgets/"

#: Members of the API that have another name in the table.
_COLUMNS = {"deliverable": "deliverable_id", "activity": "activity_id"}


class BudgetSerializer(ResponseSerializer):
    """A cap, with its use in the current period. Amounts are decimals as text, in the budget's unit."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    agent_role = serializers.CharField(allow_null=True, help_text="Null for all roles.")
    deliverable = serializers.UUIDField(
        source="deliverable_id", allow_null=True, help_text="Null for all deliverables."
    )
    activity = serializers.UUIDField(
        source="activity_id", allow_null=True, help_text="Null for all activities."
    )
    unit = serializers.CharField(help_text=f"One of {', '.join(BudgetUnit.values)}.")
    period = serializers.CharField(
        help_text=f"One of {', '.join(BudgetPeriod.values)}; periods begin and end in UTC."
    )
    cap = AmountField()
    warning_share = AmountField()
    estimate = AmountField(
        allow_null=True,
        help_text="The amount that is reserved for each run when it starts. Null for what recent runs of the role have used.",
    )
    spent = AmountField()
    reserved = AmountField(help_text="The amount that is reserved for current runs.")
    remaining = AmountField(help_text="The part of the cap that is neither spent nor reserved.")
    overshoot = AmountField(
        help_text="By how much spent and reserved amounts together have exceeded the cap in this period."
    )
    period_start = Computed(
        str | None,
        lambda budget: None if budget.period == BudgetPeriod.TOTAL else budget.period_start.isoformat(),
    )
    period_end = Computed(
        datetime | None,
        lambda budget: money.end_of(budget.period, budget.period_start),
        help_text="When the next period begins. Null for a total.",
    )
    warned_at = serializers.DateTimeField(allow_null=True)
    waiting_since = serializers.DateTimeField(
        allow_null=True, help_text="Since when work has been waiting for this budget."
    )
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    created_at = serializers.DateTimeField()
    link = Computed(str, lambda budget: f"{ADDRESS}{budget.pk}/")

    def to_representation(self, instance: Budget) -> dict[str, Any]:
        money.roll(instance)  # for today's period; the next run updates the row
        return super().to_representation(instance)


class BudgetBodySerializer(StrictSerializer):
    """A cap on what runs may consume. Omitted members of the scope (role, deliverable, activity) do not limit it."""

    name = Text(max_length=200)
    agent_role = RoleName(max_length=63, **OPTIONAL)
    deliverable = Identifier(**OPTIONAL)
    activity = Identifier(**OPTIONAL)
    unit = OneOf(choices=BudgetUnit.values, help_text="Default: dollars.", **OPTIONAL)
    period = OneOf(choices=BudgetPeriod.values, help_text="Default: total.", **OPTIONAL)
    cap = Amount(help_text="A number, or a decimal as text. With 0, nothing starts.")
    warning_share = Amount(
        most=Decimal(1),
        help_text="People are notified once when this share of the cap is spent. Default: 0.8.",
        **OPTIONAL,
    )
    estimate = Amount(
        help_text="The amount that is reserved for each run when it starts. Default: what recent runs of the role have "
        "used.",
        **OPTIONAL,
    )

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        """Also refuses a scope that names unknown objects, or for the `budget` of the context another scope.

        A budget keeps its scope, even if what it names is deleted later.
        """
        if (budget := self.context.get("budget")) is not None:
            # A null removes a limit of the scope; an omitted member changes nothing.
            given = {_COLUMNS.get(name, name): name for name in self.initial_data if name not in invalid}
            fields = _fields(attrs)
            changed = (
                name for name in money.SCOPE if name in given and fields[name] != getattr(budget, name)
            )
            return {given[name]: ["cannot be changed; make another budget"] for name in changed}
        ids = {"activity": attrs.get("activity")}
        unknown = owned_ids.errors_of(self.context["tenant_id"], "activity", ids)
        errors = {path: [message] for path, message in unknown}
        if (role := attrs.get("agent_role")) and not Agent.objects.filter(role=role).exists():
            errors["agent_role"] = [f"there is no agent with the role {role!r}"]
        return errors


class BudgetFilter(StrictFilterSet):
    agent_role = RoleFilter()
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    activity = django_filters.UUIDFilter(field_name="activity_id")
    unit = django_filters.ChoiceFilter(choices=BudgetUnit.choices)
    period = django_filters.ChoiceFilter(choices=BudgetPeriod.choices)


@describe_resource(many="The budgets", one="One budget")
class BudgetViewSet(VersionedResource):
    queryset = Budget.objects
    serializer_class = BudgetSerializer
    address = ADDRESS
    filterset_class = BudgetFilter
    search_fields = ("name",)
    ordering_fields = ("name", "created_at")
    scope = "budgets"
    volatile = (
        "spent", "reserved", "remaining", "overshoot", "period_start", "period_end", "warned_at", "waiting_since",
    )  # fmt: skip
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(("create", "update", "destroy"), Role.ADMIN)

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().filter(deleted_at=None)

    @creation("Create a budget", BudgetBodySerializer, BudgetSerializer)
    def create(self, request: Request) -> Response:
        """Takes effect within two seconds. What was already spent in its period counts; for a total, what the ledger still contains."""
        body = read(BudgetBodySerializer, request.data, tenant_id=self.tenant_id)
        budget = money.create_budget(self.tenant_id, _fields(body))
        configuration.forget()
        return self.answer_created(budget)

    @change("Change a budget", BudgetBodySerializer, BudgetSerializer)
    def update(self, request: Request, pk: UUID) -> Response:
        """Name, cap, warning share and estimate can be changed, but not the scope; create another budget for that. Work that waits for the
        budget continues automatically when there is room."""
        budget = self._lock(pk)
        fields = _fields(self.read_change(BudgetBodySerializer, budget=budget))
        changes = {name: value for name, value in fields.items() if name not in money.SCOPE}
        return Response(self.show(money.change_budget(self.tenant_id, pk, changes)))

    @removal("Remove a budget")
    def destroy(self, request: Request, pk: UUID) -> Response:
        """Work that waits for it continues. The ledger keeps what was spent."""
        self._lock(pk)
        money.delete_budget(self.tenant_id, pk)
        return Response(status=204)

    def _lock(self, pk: UUID) -> Budget:
        budget = money.lock_budget(self.tenant_id, pk)
        self.check_if_match(budget.version)
        return budget


def _fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return all columns of a budget. Omitted members get their defaults."""
    defaults = Budget()
    names = (*money.SCOPE, "name", "cap", "warning_share", "estimate")
    columns = {_COLUMNS.get(name, name): value for name, value in body.items()}
    return {name: columns.get(name, getattr(defaults, name)) for name in names}
