"""The API of schedules: creating, changing, previewing, and running by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID
from zoneinfo import ZoneInfo

import django_filters
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.schemas import PriorityField
from agents.api.configurations import RetrySerializer
from agents.api.pausing import Pausable
from agents.api.role_names import RoleFilter
from pipelines.api.executions import SCHEDULES, ExecutionSerializer
from pipelines.exceptions import NotFound
from pipelines.models import Schedule
from pipelines.models.schedule import AfterOnce, Overlap, Repeat
from pipelines.schedules import editing, preview, system_jobs
from tenants import pausing
from tenants.api.documentation import IDEMPOTENCY_KEY, change, creation, operation, removal
from tenants.api.filters import FlagFilter, StrictFilterSet, parameter_errors, refuse, restore_plus
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    EmptySerializer,
    Flag,
    Json,
    Member,
    Moment,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
    without_repeated,
)
from tenants.api.views import TenantView, VersionedResource, describe_resource
from tenants.context import tenant_scope
from tenants.models import PauseKind, Role
from tenants.wire_json import moment_of

CATCH_UP = {
    "oneOf": [
        {"type": "string", "enum": ["none", "latest"]},
        {"type": "object", "properties": {"up_to": {"type": "integer"}}, "required": ["up_to"]},
    ]
}


@extend_schema_field(CATCH_UP)
class CatchUpField(Json):
    """`none`, `latest` or `{up_to: n}`."""


class ScheduleBodySerializer(StrictSerializer):
    """A schedule. A member that is omitted or null gets its default."""

    name = Text(max_length=200, help_text="The name; unique among the tenant's schedules.")
    description = Text(allow_blank=True, **OPTIONAL)
    repeat = OneOf(choices=Repeat.values)
    cron = Text(help_text="Five fields: minute, hour, day of the month, month, day of the week.", **OPTIONAL)
    interval_ms = Whole(help_text="Milliseconds between two runs, instead of `cron`.", **OPTIONAL)
    timezone = Text(help_text="Default: the platform's setting `timezone`.", **OPTIONAL)
    start_at = Moment(help_text="The time of a one-time schedule. For `cron`, the earliest time.", **OPTIONAL)
    end_at = Moment(**OPTIONAL)
    dst_gap = OneOf(choices=["shift", "skip"], **OPTIONAL)
    dst_fold = OneOf(choices=["first", "second", "both"], **OPTIONAL)
    jitter_seconds = Whole(**OPTIONAL)
    target_type = OneOf(choices=["agent", "pipeline"])
    agent_role = Text(**OPTIONAL)
    pipeline = Text(help_text="The key of a pipeline.", **OPTIONAL)
    params = Member(
        help_text="The parameters. A value that is a data source string is expanded into jobs.", **OPTIONAL
    )
    retry = RetrySerializer(**OPTIONAL)
    timeout_seconds = Whole(min_value=1, max_value=86_400, **OPTIONAL)
    priority = PriorityField(**OPTIONAL)
    enabled = Flag(help_text="Default: true.", **OPTIONAL)
    catch_up = CatchUpField(help_text="Default: latest.", **OPTIONAL)
    overlap = OneOf(choices=Overlap.values, help_text="Default: skip.", **OPTIONAL)
    after_once = OneOf(choices=AfterOnce.values, help_text="Default: disable.", **OPTIONAL)


class ScheduleSerializer(serializers.Serializer[Any]):
    """A schedule: when an agent or a pipeline runs, and with which parameters."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    description = serializers.CharField()
    repeat = serializers.CharField(help_text="once or repeating")
    cron = serializers.CharField(allow_null=True)
    interval_ms = serializers.IntegerField(allow_null=True)
    timezone = serializers.CharField()
    start_at = serializers.DateTimeField(allow_null=True)
    end_at = serializers.DateTimeField(allow_null=True)
    dst_gap = serializers.CharField()
    dst_fold = serializers.CharField()
    jitter_seconds = serializers.IntegerField()
    target_type = serializers.CharField()
    agent_role = serializers.CharField(allow_null=True)
    pipeline = serializers.CharField(allow_null=True)
    params = serializers.DictField()
    retry = serializers.DictField()
    timeout_seconds = serializers.IntegerField(allow_null=True)
    priority = serializers.IntegerField()
    enabled = serializers.BooleanField()
    paused = serializers.BooleanField(
        help_text="Whether it is paused: it does not fire, and none of its work starts, until it is resumed."
    )
    catch_up = CatchUpField()
    overlap = serializers.CharField()
    after_once = serializers.CharField()
    next_run_at = serializers.DateTimeField(
        allow_null=True,
        help_text="The next time, including jitter. Null if it is disabled or has no further time.",
    )
    last_run_at = serializers.DateTimeField(allow_null=True)
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    link = serializers.CharField()

    def to_representation(self, instance: Schedule) -> dict[str, Any]:
        columns = ("next_run_at", "last_run_at", "created_by", "created_at", "updated_at", "version")
        return {
            "id": instance.pk,
            **editing.members_of(instance),
            **{name: getattr(instance, name) for name in columns},
            "paused": getattr(instance, "paused", False),  # a new schedule has no annotation
            "link": f"{SCHEDULES}{instance.pk}/",
        }


class ForecastErrorSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    message = serializers.CharField()


class ForecastSerializer(ResponseSerializer):
    """A preview of a schedule. Times are nominal; a schedule's jitter is added to them."""

    fires_at = serializers.ListField(child=serializers.DateTimeField(), help_text="The next times, in UTC.")
    fires_at_local = Computed(
        list[str],
        lambda forecast: [local(moment, ZoneInfo(forecast.timezone)) for moment in forecast.fires_at],
        read_only=False,
        help_text="The same times in the schedule's time zone, with their offset.",
    )
    timezone = serializers.CharField()
    in_words = serializers.CharField()
    jobs = serializers.IntegerField(help_text="Number of jobs that one firing would create now.")
    batches = serializers.IntegerField()
    ends_after_seconds = Computed(
        float,
        lambda forecast: forecast.ends_after.total_seconds(),
        read_only=False,
        help_text="Seconds between the start of the first and of the last batch.",
    )
    sample = serializers.ListField(
        child=serializers.DictField(), help_text="The parameters of the first jobs."
    )
    errors = ForecastErrorSerializer(
        many=True, help_text="Why the schedule cannot be saved, or which jobs their agent would refuse."
    )  # type: ignore[assignment]  # a field, not the attribute
    notes = serializers.ListField(child=serializers.CharField(), help_text="Further notes for people.")


def local(moment: datetime, zone: ZoneInfo) -> str:
    """Return the time in the zone, to the second: 2027-03-14T03:00:00-04:00."""
    return moment.astimezone(zone).isoformat(timespec="seconds")


COUNT = OpenApiParameter(
    "count",
    OpenApiTypes.INT,
    description=f"How many times to return, from 1 to {preview.MOST}. Default: {preview.USUAL}.",
)
AFTER = OpenApiParameter(
    "after",
    OpenApiTypes.DATETIME,
    description="Return times after this one, instead of after `start_at` or now.",
)


class ScheduleFilter(StrictFilterSet):
    name = django_filters.CharFilter()
    enabled = FlagFilter()
    target_type = django_filters.ChoiceFilter(choices=[("agent", "agent"), ("pipeline", "pipeline")])
    agent_role = RoleFilter()
    pipeline = django_filters.CharFilter(field_name="pipeline__key")
    repeat = django_filters.ChoiceFilter(choices=Repeat.choices)


@describe_resource(many="The schedules", one="One schedule")
class ScheduleViewSet(Pausable, VersionedResource):
    queryset = Schedule.objects
    serializer_class = ScheduleSerializer
    address = SCHEDULES
    volatile = ("next_run_at", "last_run_at")
    filterset_class = ScheduleFilter
    search_fields = ("name", "description", "agent_role", "pipeline__key")
    ordering_fields = ("name", "created_at", "updated_at")
    ordering = ("name", "id")
    scope = "schedules"
    required_role: ClassVar[dict[str, Role]] = {
        **dict.fromkeys(("create", "update", "partial_update", "destroy"), Role.ADMIN),
        "run": Role.OPERATOR,
        **Pausable.required_role,
    }

    def get_queryset(self) -> QuerySet[Any]:
        return pausing.with_pauses(super().get_queryset().select_related("pipeline"), PauseKind.SCHEDULE)

    @creation("Create a schedule", ScheduleBodySerializer, ScheduleSerializer)
    def create(self, request: Request) -> Response:
        """It begins with the next time from now on. Only a one-time schedule whose time has passed is due at once."""
        schedule = editing.create(self.tenant_id, request.data, actor=self.principal.actor)
        return self.answer_created(schedule)

    @change("Replace a schedule", ScheduleBodySerializer, ScheduleSerializer, refusals=(404, 409))
    def update(self, request: Request, pk: UUID) -> Response:
        """Omitted members get their defaults, except `enabled`, which stays as it is. Current executions do not change."""
        return self._change(pk, request.data, whole=True)

    @change(
        "Change a schedule", ScheduleBodySerializer(partial=True), ScheduleSerializer, refusals=(404, 409)
    )
    def partial_update(self, request: Request, pk: UUID) -> Response:
        """Omitted members stay as they are, unless another member replaces them, as an interval replaces `cron`. Null resets a member to
        its default."""
        return self._change(pk, request.data)

    @removal("Delete a schedule", refusals=(404, 412))
    def destroy(self, request: Request, pk: UUID) -> Response:
        """Its executions are kept and can still be read below its address, and current ones continue."""
        self.get_object()
        editing.delete(self.tenant_id, pk, actor=self.principal.actor)
        return Response(status=204)

    @creation("Run a schedule now", EmptySerializer, ExecutionSerializer, refusals=(404,))
    @action(detail=True, methods=["post"])
    def run(self, request: Request, pk: UUID) -> Response:
        """Runs it once, even if it is not enabled; its regular times do not change. 409 if an execution has not ended, unless `overlap`
        allows several executions or queues one."""
        self.get_object()
        who = self.principal
        execution = system_jobs.run_now(self.tenant_id, pk, actor=who.actor, requested_identity=who.identity)
        data = ExecutionSerializer(execution).data
        return Response(data, status=201, headers={"Location": data["link"]})

    def switch(self, *, paused: bool, pk: UUID) -> Mapping[str, Any]:
        """It does not fire, and nothing new of its executions starts. What passes meanwhile is missed, as in an outage."""
        self.get_object()
        # Locked, because the pause of a deleted schedule could never be ended.
        schedule = editing.lock_schedule(self.tenant_id, pk)
        return {**self.switch_part(PauseKind.SCHEDULE, pk, schedule.name, paused=paused), "id": pk}

    def _change(self, pk: UUID, members: Any, *, whole: bool = False) -> Response:
        schedule = self.get_object()
        members, _ = without_repeated(members, editing.MEMBERS, self.present, self.volatile)
        changed = editing.change(self.tenant_id, pk, members, actor=self.principal.actor, whole=whole)
        return Response({**ScheduleSerializer(changed).data, "paused": schedule.paused})


class Preview(TenantView):
    """The base of previews. No transaction is open, because a data source may have to be fetched from another server."""

    queryset = Schedule.objects
    in_one_transaction = False
    pagination_class = None
    query_parameters = ("count", "after")
    scope = "schedules"


class SchedulePreview(Preview):
    @operation(
        "Preview a schedule", answer=ForecastSerializer, refusals=(400, 404), parameters=(COUNT, AFTER)
    )
    def get(self, request: Request, schedule_id: UUID) -> Response:
        """The times begin at `start_at` if it is in the future, otherwise now. The jobs are those that one firing would create now."""
        count, after = _read_query(request, self)
        with tenant_scope(self.tenant_id):
            rows = Schedule.objects.for_tenant(self.tenant_id).select_related("pipeline")
            schedule = rows.get_or_raise(NotFound, "schedule", schedule_id)
        return Response(ForecastSerializer(preview.forecast_saved(schedule, count=count, after=after)).data)


class UnsavedPreview(Preview):
    not_audited = "looks ahead and writes nothing"

    @operation(
        "Preview a schedule that is not saved",
        request=ScheduleBodySerializer(partial=True),
        answer=ForecastSerializer,
        refusals=(400,),
        parameters=(COUNT, AFTER, IDEMPOTENCY_KEY),
    )
    def post(self, request: Request) -> Response:
        """Nothing is saved. The times begin at `start_at`, otherwise now. Errors in the times lead to 400; errors in the target and the
        parameters are listed in `errors`."""
        count, after = _read_query(request, self)
        forecast = preview.forecast_members(self.tenant_id, request.data, count=count, after=after)
        return Response(ForecastSerializer(forecast).data)


def _read_query(request: Request, view: TenantView) -> tuple[int, datetime | None]:
    """Read `count` and `after`. Raises `InvalidRequest`."""
    errors = parameter_errors(request, view)
    text = request.query_params.get("count", str(preview.USUAL))
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else 0
    if not 1 <= count <= preview.MOST:
        errors.append(("count", f"must be a whole number from 1 to {preview.MOST}"))
    given = request.query_params.get("after")
    after = None if given is None else moment_of(restore_plus(given[:64]))
    if given is not None and after is None:
        errors.append(("after", "must be a time such as 2026-05-01T09:30:00Z"))
    refuse(errors)
    return count, after
