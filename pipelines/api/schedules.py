"""Schedules: made, changed, looked ahead at, and run by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.api.decisions import EmptySerializer
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import read
from pipelines.api.schedule_bodies import (
    SCHEDULES,
    ExecutionSerializer,
    ForecastSerializer,
    ScheduleBodySerializer,
    ScheduleSerializer,
)
from pipelines.models import Schedule
from pipelines.models.schedule import Repeat
from pipelines.schedules import forecast, given, running, saving
from pipelines.schedules.errors import ScheduleNotFound
from tenants.api.faults import InvalidRequest
from tenants.api.filters import FlagFilter, refuse_unknown
from tenants.api.versions import Versioned
from tenants.api.views import TenantView, TenantViewSet
from tenants.context import tenant_scope
from tenants.models import Role

COUNT = OpenApiParameter(
    "count",
    OpenApiTypes.INT,
    description=f"How many times, 1 to {forecast.MOST}; {forecast.USUAL} if left out.",
)
AFTER = OpenApiParameter(
    "after",
    OpenApiTypes.DATETIME,
    description="Times later than this one, instead of from `start_at` or now.",
)


class ScheduleFilter(django_filters.FilterSet):
    name = django_filters.CharFilter()
    enabled = FlagFilter()
    target_type = django_filters.ChoiceFilter(choices=[("agent", "agent"), ("pipeline", "pipeline")])
    agent_role = django_filters.CharFilter()
    pipeline = django_filters.CharFilter(field_name="pipeline__key")
    repeat = django_filters.ChoiceFilter(choices=Repeat.choices)

    class Meta:
        model = Schedule
        fields: tuple[str, ...] = ()


class ScheduleViewSet(Versioned, TenantViewSet):  # type: ignore[misc]  # `request` is the view's
    queryset = Schedule.objects
    serializer_class = ScheduleSerializer
    filterset_class = ScheduleFilter
    search_fields = ("name", "description", "agent_role", "pipeline__key")
    ordering_fields = ("name", "created_at", "updated_at")
    ordering = ("name", "id")
    lookup_value_converter = "uuid"
    reject_duplicate_keys = True
    scope = "schedules"
    required_role: ClassVar[dict[str, Role]] = {
        **dict.fromkeys(("create", "update", "partial_update", "destroy"), Role.ADMIN),
        "run": Role.OPERATOR,
    }

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().select_related("pipeline")

    @operation("The schedules", answer=ScheduleSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(ScheduleSerializer(page, many=True).data)

    @operation("One schedule", answer=ScheduleSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(ScheduleSerializer(self.get_object()).data)

    @operation(
        "Make a schedule",
        request=ScheduleBodySerializer,
        answer=ScheduleSerializer,
        status=201,
        refusals=(400, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request) -> Response:
        """Its first time is the first from now on. Only a one-time schedule whose time has passed is due at once."""
        made = saving.create(self.tenant_id, request.data, actor=self.principal.actor)
        return Response(
            ScheduleSerializer(made).data, status=201, headers={"Location": f"{SCHEDULES}{made.pk}/"}
        )

    @operation(
        "Replace a schedule",
        request=ScheduleBodySerializer,
        answer=ScheduleSerializer,
        refusals=(400, 404, 409, 412),
        parameters=(IF_MATCH,),
    )
    def update(self, request: Request, pk: UUID) -> Response:
        """What is left out has its default; an `enabled` that is left out stays. Executions under way go on as they are."""
        whole = request.data
        if isinstance(whole, Mapping):
            whole = {**{name: None for name in given.MEMBERS if name != "enabled"}, **whole}
        return self._changed(pk, whole)

    @operation(
        "Change a schedule",
        request=ScheduleBodySerializer(partial=True),
        answer=ScheduleSerializer,
        refusals=(400, 404, 409, 412),
        parameters=(IF_MATCH,),
    )
    def partial_update(self, request: Request, pk: UUID) -> Response:
        """What is left out stays, unless what is given takes its place, as an interval does a cron's. Null is the default."""
        return self._changed(pk, request.data)

    @operation("Delete a schedule", answer=None, status=204, refusals=(404, 412), parameters=(IF_MATCH,))
    def destroy(self, request: Request, pk: UUID) -> Response:
        """Its executions are kept, and what is under way goes on."""
        self.get_object()
        saving.delete(self.tenant_id, pk, actor=self.principal.actor)
        return Response(status=204)

    @operation(
        "Run a schedule now",
        request=EmptySerializer,
        answer=ExecutionSerializer,
        status=201,
        refusals=(404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    @action(detail=True, methods=["post"])
    def run(self, request: Request, pk: UUID) -> Response:
        """Once, by hand, whatever `enabled` says; its times stay as they are. 409 when an execution is under way, unless `overlap` lets
        several run or queues one."""
        read(EmptySerializer, request.data)
        self.get_object()
        shown = ExecutionSerializer(running.run_now(self.tenant_id, pk, actor=self.principal.actor)).data
        return Response(shown, status=201, headers={"Location": shown["link"]})

    def _changed(self, pk: UUID, members: Any) -> Response:
        self.get_object()
        changed = saving.change(self.tenant_id, pk, members, actor=self.principal.actor)
        return Response(ScheduleSerializer(changed).data)


class Preview(TenantView):
    """Looks ahead. A data source may have to be fetched from somewhere, so no transaction is open meanwhile."""

    queryset = Schedule.objects
    in_one_transaction = False
    pagination_class = None
    reject_duplicate_keys = True
    query_parameters = ("count", "after")
    scope = "schedules"


class SchedulePreview(Preview):
    @operation(
        "What a schedule will do", answer=ForecastSerializer, refusals=(400, 404), parameters=(COUNT, AFTER)
    )
    def get(self, request: Request, schedule_id: UUID) -> Response:
        """Times are those from `start_at` if that lies ahead, else from now; jobs are those that one firing would make now."""
        count, after = _asked(request, self)
        with tenant_scope(self.tenant_id):
            rows = Schedule.objects.for_tenant(self.tenant_id).select_related("pipeline")
            found = rows.filter(pk=schedule_id).first()
        if found is None:
            raise ScheduleNotFound(f"There is no schedule {schedule_id}.")
        return Response(ForecastSerializer(forecast.of_saved(found, count=count, after=after)).data)


class UnsavedPreview(Preview):
    not_audited = "looks ahead and writes nothing"

    @operation(
        "What a schedule would do",
        request=ScheduleBodySerializer(partial=True),
        answer=ForecastSerializer,
        refusals=(400,),
        parameters=(COUNT, AFTER, IDEMPOTENCY_KEY),
    )
    def post(self, request: Request) -> Response:
        """Nothing is written. Times are those from `start_at`, else from now; faults of the times are a 400, faults of the target and the
        parameters are among `errors`."""
        count, after = _asked(request, self)
        found = forecast.of_members(self.tenant_id, request.data, count=count, after=after)
        return Response(ForecastSerializer(found).data)


def _asked(request: Request, view: TenantView) -> tuple[int, datetime | None]:
    """How many times, and from when on. Raises `InvalidRequest`."""
    refuse_unknown(request, view)
    faults: list[tuple[str, str]] = []
    text = request.query_params.get("count", str(forecast.USUAL))
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else 0
    if not 1 <= count <= forecast.MOST:
        faults.append(("count", f"must be a whole number from 1 to {forecast.MOST}"))
    after = _moment(request.query_params.get("after"), faults)
    if faults:
        raise InvalidRequest(faults)
    return count, after


def _moment(text: str | None, faults: list[tuple[str, str]]) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text[:64])
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        faults.append(("after", "must be a time such as 2026-05-01T09:30:00Z"))
        return None
    return found
