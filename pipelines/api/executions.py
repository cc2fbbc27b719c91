"""What came of a schedule: its executions with their jobs, and its times with what became of each."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities.api.operations import ReasonSerializer
from pipelines.exceptions import NotFound
from pipelines.models import Firing, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import ExecutionStatus, FiringState, JobState
from pipelines.schedules import executions
from tenants.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from tenants.api.etags import DigestEtag
from tenants.api.filters import StrictFilterSet
from tenants.api.strict import read
from tenants.api.views import TenantView
from tenants.context import tenant_scope
from tenants.models import Role

from .schedules import ExecutionSerializer, FiringSerializer, ScheduleJobSerializer


class SchedulePart(ViewSetMixin, TenantView):
    """Something of the schedule that `schedule_id` of the address names."""

    queryset: Any = ScheduleExecution.objects
    scope = "schedules"

    def refuse_missing(self, schedule_id: UUID) -> None:
        """Raises `NotFound`. The executions of a schedule that was deleted are reached through activities and runs."""
        if not Schedule.objects.for_tenant(self.tenant_id).filter(pk=schedule_id).exists():
            raise NotFound("schedule", schedule_id)

    def page_of(self, rows: Any, serializer: type[Any]) -> Response:
        page = self.paginate_queryset(self.filter_queryset(rows)) or []
        return self.get_paginated_response(serializer(page, many=True).data)


class ExecutionFilter(StrictFilterSet):
    status = django_filters.MultipleChoiceFilter(choices=ExecutionStatus.choices)
    nominal_after = django_filters.IsoDateTimeFilter(field_name="nominal_at", lookup_expr="gte")
    nominal_before = django_filters.IsoDateTimeFilter(field_name="nominal_at", lookup_expr="lt")

    class Meta:
        model = ScheduleExecution
        fields: tuple[str, ...] = ()


class Executions(SchedulePart):
    filterset_class = ExecutionFilter
    ordering = ("-started_at", "-id")
    lookup_url_kwarg = "execution_id"

    @operation(
        "The executions of a schedule, newest first",
        answer=ExecutionSerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, schedule_id: UUID) -> Response:
        self.refuse_missing(schedule_id)
        return self.page_of(self.get_queryset().filter(schedule_id=schedule_id), ExecutionSerializer)

    @operation("One execution", answer=ExecutionSerializer, refusals=(404,))
    def retrieve(self, request: Request, schedule_id: UUID, execution_id: UUID) -> Response:
        return Response(ExecutionSerializer(execution_of(self.tenant_id, schedule_id, execution_id)).data)


class ExecutionCancellation(DigestEtag, TenantView):
    queryset = ScheduleExecution.objects
    # Cancelling takes several transactions, as for a pipeline run.
    in_one_transaction = False
    pagination_class = None
    scope = "schedules"
    required_role: ClassVar[Role] = Role.OPERATOR

    @operation(
        "Cancel an execution with every job that has not ended",
        request=ReasonSerializer,
        answer=ExecutionSerializer,
        refusals=(400, 404, 409),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )
    def post(self, request: Request, schedule_id: UUID, execution_id: UUID) -> Response:
        """May be repeated: what is still under way is cancelled then."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        with tenant_scope(self.tenant_id):
            found = execution_of(self.tenant_id, schedule_id, execution_id)
            self.refuse_changed(ExecutionSerializer(found).data)
        executions.cancel(self.tenant_id, execution_id, actor=self.principal.actor, reason=reason)
        with tenant_scope(self.tenant_id):
            return Response(ExecutionSerializer(execution_of(self.tenant_id, schedule_id, execution_id)).data)


class JobFilter(StrictFilterSet):
    state = django_filters.MultipleChoiceFilter(choices=JobState.choices)
    batch = django_filters.NumberFilter()

    class Meta:
        model = ScheduleJob
        fields: tuple[str, ...] = ()


class ExecutionJobs(SchedulePart):
    queryset = ScheduleJob.objects
    filterset_class = JobFilter
    ordering = ("ordinal", "id")

    @operation(
        "The jobs of an execution, in the order of their expansion",
        answer=ScheduleJobSerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, schedule_id: UUID, execution_id: UUID) -> Response:
        execution_of(self.tenant_id, schedule_id, execution_id)
        rows = self.get_queryset().filter(execution_id=execution_id).select_related("execution")
        page = self.paginate_queryset(self.filter_queryset(rows)) or []
        begun = executions.begun(self.tenant_id, page)
        return self.get_paginated_response(
            ScheduleJobSerializer(page, many=True, context={"begun": begun}).data
        )


class FiringFilter(StrictFilterSet):
    state = django_filters.MultipleChoiceFilter(choices=FiringState.choices)
    nominal_after = django_filters.IsoDateTimeFilter(field_name="nominal_at", lookup_expr="gte")
    nominal_before = django_filters.IsoDateTimeFilter(field_name="nominal_at", lookup_expr="lt")

    class Meta:
        model = Firing
        fields: tuple[str, ...] = ()


class Firings(SchedulePart):
    queryset = Firing.objects
    filterset_class = FiringFilter
    ordering = ("-nominal_at", "-id")

    @operation(
        "The times of a schedule that have passed, newest first, and what became of each",
        answer=FiringSerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, schedule_id: UUID) -> Response:
        self.refuse_missing(schedule_id)
        return self.page_of(self.get_queryset().filter(schedule_id=schedule_id), FiringSerializer)


def execution_of(tenant_id: UUID, schedule_id: UUID, execution_id: UUID) -> ScheduleExecution:
    """In the caller's `tenant_scope`. Raises `NotFound`."""
    rows = ScheduleExecution.objects.for_tenant(tenant_id)
    found: ScheduleExecution | None = rows.filter(pk=execution_id, schedule_id=schedule_id).first()
    if found is None:
        raise NotFound("execution", execution_id)
    return found
