"""The API of usage: sums of the ledger, grouped as requested. Every grouping adds up to the same total."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import F, QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents.routing import role_named
from pipelines import selectors
from tenants import money
from tenants.api.documentation import operation
from tenants.api.filters import parameter_errors, refuse
from tenants.api.problems import FieldError
from tenants.api.views import TenantView
from tenants.models import UsageEntry

MOST_GROUPS = 10_000
USUAL_GROUPS = 1_000

#: By what entries can be grouped and filtered, with the columns.
DIMENSIONS = {
    "role": "agent_role",
    "deliverable": "deliverable_id",
    "pipeline": "pipeline",
    "day": "day",
    "activity": "activity_id",
    "run": "run_id",
    "model": "model",
}
_IDS = ("deliverable", "activity", "run")
FILTERS = tuple(name for name in DIMENSIONS if name != "day")


class FiguresSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cost_usd = serializers.CharField(help_text="An exact decimal.")
    runs = serializers.IntegerField()
    unpriced_tokens = serializers.IntegerField(
        help_text="Tokens without a cost, because the agent reported none and the price of the model is not known."
    )


class UsageRowSerializer(FiguresSerializer):
    """The figures of one group, and the members that it was grouped by."""

    role = serializers.CharField(required=False)
    deliverable = serializers.UUIDField(required=False, allow_null=True)
    pipeline = serializers.CharField(required=False, allow_null=True)
    day = serializers.DateField(required=False)
    activity = serializers.UUIDField(required=False)
    run = serializers.UUIDField(required=False)
    model = serializers.CharField(required=False)


class UsageReportSerializer(serializers.Serializer[Any]):
    """Totals of the ledger."""

    group_by = serializers.ListField(child=serializers.CharField())
    first_day = serializers.DateField(allow_null=True)
    last_day = serializers.DateField(allow_null=True)
    results = UsageRowSerializer(many=True, help_text="The groups, most expensive first.")
    total = FiguresSerializer(
        help_text="The total of everything, including groups that are not among the results."
    )
    truncated = serializers.BooleanField(help_text="Whether there are more groups than the limit.")


def _parameter(name: str, text: str, kind: Any = OpenApiTypes.STR) -> OpenApiParameter:
    return OpenApiParameter(name, kind, description=text)


class UsageReport(TenantView):
    queryset = UsageEntry.objects
    serializer_class = UsageReportSerializer
    scope = "usage"
    pagination_class = None
    query_parameters: ClassVar[tuple[str, ...]] = ("group_by", "from", "to", "limit", *FILTERS)

    @operation(
        "The usage of tokens and money",
        answer=UsageReportSerializer,
        refusals=(400,),
        parameters=(
            _parameter(
                "group_by",
                f"Any of {', '.join(DIMENSIONS)}, separated by commas. Without it, only the total is returned.",
            ),
            _parameter("from", "The first day, in UTC.", OpenApiTypes.DATE),
            _parameter("to", "The last day, in UTC; it is included.", OpenApiTypes.DATE),
            _parameter(
                "limit",
                f"Groups per answer, at most {MOST_GROUPS}. Default: {USUAL_GROUPS}.",
                OpenApiTypes.INT,
            ),
            *(_parameter(name, f"Only usage of this {name}.") for name in FILTERS),
        ),
    )
    def get(self, request: Request) -> Response:
        """Totals of the ledger. Usage counts for the day on which it was reported."""
        query = _Query(request, parameter_errors(request, self))
        rows = query.filter(money.ledger_entries(self.tenant_id, first=query.first, last=query.last))
        total = money.figures_of(rows.aggregate(**money.FIGURES))
        groups = query.group(rows) if query.group_by else []
        return Response(
            {
                "group_by": query.group_by,
                "first_day": query.first,
                "last_day": query.last,
                "results": [money.figures_of(group) for group in groups[: query.limit]],
                "total": total,
                "truncated": len(groups) > query.limit,
            }
        )


class _Query:
    """The parsed query string. Raises `InvalidRequest` with every error, and with those that were found before."""

    def __init__(self, request: Request, errors: list[FieldError]) -> None:
        self._params, self._errors = request.query_params, errors
        names = [name for name in self._params.get("group_by", "").split(",") if name]
        unknown = [name for name in names if name not in DIMENSIONS]
        if unknown or len(set(names)) < len(names):
            self._errors.append(("group_by", f"must be some of {', '.join(DIMENSIONS)}, each once"))
        self.group_by = [name for name in names if name in DIMENSIONS]
        self.first, self.last = self._day("from"), self._day("to")
        self.limit = self._limit()
        self.conditions = {DIMENSIONS[name]: self._value(name) for name in FILTERS if name in self._params}
        refuse(self._errors)

    def filter(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        if "pipeline" in self.group_by or "pipeline" in self.conditions:
            rows = selectors.with_pipeline(rows)
        return rows.filter(**self.conditions)

    def group(self, rows: QuerySet[Any]) -> Sequence[dict[str, Any]]:
        renamed = {name: F(DIMENSIONS[name]) for name in self.group_by if DIMENSIONS[name] != name}
        plain = [name for name in self.group_by if name not in renamed]
        groups = rows.values(*plain, **renamed).annotate(**money.FIGURES)
        return list(groups.order_by("-sum_cost_usd", *self.group_by)[: self.limit + 1])

    def _day(self, name: str) -> date | None:
        text = self._params.get(name)
        try:
            return None if text is None else date.fromisoformat(text)
        except ValueError:
            self._errors.append((name, "must be a day such as 2026-05-01"))
            return None

    def _limit(self) -> int:
        text = self._params.get("limit", str(USUAL_GROUPS))
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_GROUPS):
            self._errors.append(("limit", f"must be a whole number from 1 to {MOST_GROUPS}"))
            return USUAL_GROUPS
        return int(text)

    def _value(self, name: str) -> str | UUID | None:
        text = self._params[name]
        if name not in _IDS:
            return role_named(text) if name == "role" else text
        try:
            return UUID(text)
        except ValueError:
            self._errors.append((name, "must be a UUID"))
            return None
