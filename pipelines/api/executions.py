"""The API of a schedule's executions with their jobs, and of its past times."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import django_filters
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities.api.operations import ReasonSerializer
from pipelines.api.runs import RUNS
from pipelines.exceptions import NotFound
from pipelines.models import Firing, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import ExecutionStatus, FiringState, JobState
from pipelines.schedules import executions
from tenants.api.documentation import command, operation
from tenants.api.etags import DigestEtag
from tenants.api.filters import MomentFilter, StrictFilterSet, WholeNumberFilter
from tenants.api.serializers import Computed, ResponseSerializer, read
from tenants.api.views import OfOneRow, TenantView
from tenants.context import tenant_scope
from tenants.models import Role

SCHEDULES = "/api/v1/schedules/"


class ExecutionSerializer(ResponseSerializer):
    """The execution of one firing of a schedule."""

    id = serializers.UUIDField()
    schedule = Computed(
        UUID, lambda execution: _schedule_of(execution), help_text="The schedule; kept when it is deleted."
    )
    schedule_name = serializers.CharField(
        help_text="The name of the schedule; kept when the schedule is deleted."
    )
    nominal_at = serializers.DateTimeField(
        allow_null=True, help_text="The scheduled time. Null if it was started by hand."
    )
    status = serializers.CharField(help_text=f"One of {', '.join(ExecutionStatus.values)}.")
    jobs_created = serializers.IntegerField()
    jobs_enqueued = serializers.IntegerField()
    jobs_failed = serializers.IntegerField()
    errors = serializers.ListField(child=serializers.DictField())  # type: ignore[assignment]  # a field, not the attribute
    metadata = serializers.DictField(help_text="Data about the expansion into jobs.")
    created_by = serializers.CharField()
    started_at = serializers.DateTimeField()
    expanded_at = serializers.DateTimeField(allow_null=True, help_text="When the last job was recorded.")
    finished_at = serializers.DateTimeField(allow_null=True)
    jobs = Computed(str, lambda execution: f"{_link_of(execution)}jobs/")
    link = Computed(str, lambda execution: _link_of(execution))


def _schedule_of(execution: ScheduleExecution) -> str:
    """Return the id of the schedule. When a schedule is deleted, only the copy that its execution works with still has it."""
    return str(execution.schedule_id or execution.definition["schedule"])


def _link_of(execution: ScheduleExecution) -> str:
    return f"{SCHEDULES}{_schedule_of(execution)}/executions/{execution.pk}/"


_WORDS: dict[str, str] = {
    JobState.WAITING: "pending",
    JobState.DONE: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}


class ScheduleJobSerializer(ResponseSerializer):
    """A job: one set of parameters of an execution, and the activity or pipeline run for it."""

    id = serializers.UUIDField()
    ordinal = serializers.IntegerField()
    batch = serializers.IntegerField()
    due_at = serializers.DateTimeField()
    params = serializers.DictField()
    state = serializers.CharField(help_text=f"One of {', '.join(JobState.values)}.")
    status = serializers.SerializerMethodField(
        help_text="The state in the words that are used for runs: pending, running, completed, failed or cancelled."
    )
    execution = serializers.UUIDField(source="execution_id")
    schedule = Computed(str, lambda job: str(job.execution.definition["schedule"]))
    agent_role = Computed(
        str | None,
        lambda job: job.execution.definition["agent_role"],
        help_text="Null if the job runs a pipeline.",
    )
    pipeline = Computed(
        str | None,
        lambda job: job.execution.definition["pipeline"],
        help_text="The key of the pipeline. Its steps, with their agents and dependencies, are those of `pipeline_run`.",
    )
    priority = Computed(int, lambda job: int(job.execution.definition["priority"]))
    activity = serializers.UUIDField(source="activity_id", allow_null=True)
    pipeline_run = serializers.UUIDField(source="pipeline_run_id", allow_null=True)
    error = serializers.DictField(
        allow_null=True, help_text="`{code, message}`, and `retryable` if an agent has reported it."
    )
    ended_at = serializers.DateTimeField(allow_null=True)
    link = serializers.SerializerMethodField()

    def get_status(self, job: ScheduleJob) -> str:
        return _WORDS.get(job.state) or ("running" if job.pk in self.context["started"] else "pending")

    def get_link(self, job: ScheduleJob) -> str | None:
        if job.activity_id:
            return f"/api/v1/activities/{job.activity_id}/"
        return f"{RUNS}{job.pipeline_run_id}/" if job.pipeline_run_id else None


class FiringSerializer(ResponseSerializer):
    """A past time of the schedule, or several skipped times in a row, and what happened then."""

    nominal_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField(
        allow_null=True, help_text="The last of several skipped times in a row."
    )
    count = serializers.IntegerField(help_text="The number of times in this record.")
    state = serializers.CharField(help_text=f"One of {', '.join(FiringState.values)}.")
    reason = serializers.CharField(help_text="Why the time was skipped.")
    at = serializers.DateTimeField(help_text="When this was decided.")


class SchedulePart(ViewSetMixin, TenantView):
    """The base of views below a schedule."""

    queryset: Any = ScheduleExecution.objects
    scope = "schedules"

    def has_schedule(self, schedule_id: UUID) -> bool:
        return bool(Schedule.objects.for_tenant(self.tenant_id).filter(pk=schedule_id).exists())


class ExecutionFilter(StrictFilterSet):
    status = django_filters.MultipleChoiceFilter(choices=ExecutionStatus.choices)
    nominal_after = MomentFilter(field_name="nominal_at", lookup_expr="gte")
    nominal_before = MomentFilter(field_name="nominal_at", lookup_expr="lt")


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
        """Also those of a deleted schedule, whose id its executions, activities and pipeline runs keep."""
        rows = self.get_queryset()
        if self.has_schedule(schedule_id):
            rows = rows.filter(schedule_id=schedule_id)
        else:
            rows = rows.filter(schedule_id=None, definition__schedule=str(schedule_id))
            if not rows.exists():
                raise NotFound("schedule", schedule_id)
        return self.answer_page(rows, ExecutionSerializer)

    @operation("One execution", answer=ExecutionSerializer, refusals=(404,))
    def retrieve(self, request: Request, schedule_id: UUID, execution_id: UUID) -> Response:
        return Response(ExecutionSerializer(execution_of(self.tenant_id, schedule_id, execution_id)).data)


class ExecutionCancellation(DigestEtag, OfOneRow):
    queryset = ScheduleExecution.objects
    lookup_url_kwarg = "execution_id"
    # Cancelling takes several transactions, as for a pipeline run.
    in_one_transaction = False
    scope = "schedules"
    required_role: ClassVar[Role] = Role.OPERATOR

    @command("Cancel an execution and all of its unfinished jobs", ReasonSerializer, ExecutionSerializer)
    def post(self, request: Request, schedule_id: UUID, execution_id: UUID) -> Response:
        """May be repeated, to cancel what is still unfinished."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        with tenant_scope(self.tenant_id):
            execution = execution_of(self.tenant_id, schedule_id, execution_id)
            self.refuse_changed(ExecutionSerializer(execution).data)
        executions.cancel(self.tenant_id, execution_id, actor=self.principal.actor, reason=reason)
        with tenant_scope(self.tenant_id):
            return Response(ExecutionSerializer(execution_of(self.tenant_id, schedule_id, execution_id)).data)


class JobFilter(StrictFilterSet):
    state = django_filters.MultipleChoiceFilter(choices=JobState.choices)
    batch = WholeNumberFilter()


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
        started = executions.list_started(self.tenant_id, page)
        return self.get_paginated_response(
            ScheduleJobSerializer(page, many=True, context={"started": started}).data
        )


class FiringFilter(StrictFilterSet):
    state = django_filters.MultipleChoiceFilter(choices=FiringState.choices)
    nominal_after = MomentFilter(field_name="nominal_at", lookup_expr="gte")
    nominal_before = MomentFilter(field_name="nominal_at", lookup_expr="lt")


class Firings(SchedulePart):
    queryset = Firing.objects
    filterset_class = FiringFilter
    ordering = ("-nominal_at", "-id")

    @operation(
        "The past times of a schedule and their results, newest first",
        answer=FiringSerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, schedule_id: UUID) -> Response:
        if not self.has_schedule(schedule_id):
            raise NotFound("schedule", schedule_id)
        return self.answer_page(self.get_queryset().filter(schedule_id=schedule_id), FiringSerializer)


def execution_of(tenant_id: UUID, schedule_id: UUID, execution_id: UUID) -> ScheduleExecution:
    """Return an execution of the schedule, which may have been deleted. Raises `NotFound`. Call it within a `tenant_scope`."""
    rows = ScheduleExecution.objects.for_tenant(tenant_id)
    execution: ScheduleExecution | None = rows.filter(pk=execution_id).first()
    if execution is None or _schedule_of(execution) != str(schedule_id):
        raise NotFound("execution", execution_id)
    return execution
