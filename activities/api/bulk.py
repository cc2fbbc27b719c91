"""Bulk jobs: one action on all activities that match a filter. A dry run counts them; the job then reports its progress."""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import OpenApiExample, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import bulk_jobs
from activities.api.activities import ActivityFilter
from activities.api.serializers import link_of
from activities.models import Activity, BulkItem, BulkJob
from activities.models.activity import AssigneeType
from activities.models.bulk import BulkAction, BulkStatus, ItemState
from activities.schemas import (
    LONGEST_REASON,
    AssigneeSerializer,
    PriorityField,
    errors_of_priority,
    priority_of,
)
from activities.states import LinkKind, Status
from agents.api.role_names import RoleName
from tenants.api.documentation import command, operation, posting
from tenants.api.etags import DigestEtag
from tenants.api.filters import SEARCH_LENGTH, filter_by_body
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    EmptySerializer,
    Flag,
    Identifier,
    Moment,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
    read,
)
from tenants.api.views import Resource, TenantView, TenantViewSet, describe_resource
from tenants.models import Role

MOST_IDS = 1_000  # for more activities, use the other conditions of the filter


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string", "enum": list(Status)}, "minItems": 1},
        ]
    }
)
class StatusesField(serializers.Field[Any, Any, Any, Any]):
    """One status, several separated by commas, or a list of them."""

    default_error_messages = {"invalid": f"must be one or more of {', '.join(Status)}"}

    def to_internal_value(self, data: Any) -> list[str]:
        named = data.split(",") if isinstance(data, str) else data
        if (
            not isinstance(named, list)
            or not named
            or not all(isinstance(one, str) and one in set(Status) for one in named)
        ):
            self.fail("invalid")
        return list(dict.fromkeys(named))

    def to_representation(self, value: Any) -> Any:
        return value


class ActivityChoiceSerializer(StrictSerializer):
    """The filters of the list of activities; at least one is required."""

    ids = serializers.ListField(
        child=Identifier(),
        allow_empty=False,
        max_length=MOST_IDS,
        help_text="Only these activities.",
        **OPTIONAL,
    )
    status = StatusesField(**OPTIONAL)
    agent_role = RoleName(max_length=63, **OPTIONAL)
    human_role = Text(max_length=63, **OPTIONAL)
    assignee_type = OneOf(choices=AssigneeType.values, **OPTIONAL)
    priority = Whole(min_value=1, max_value=20, **OPTIONAL)
    period = Identifier(**OPTIONAL)
    pipeline = Identifier(**OPTIONAL)
    template = Text(max_length=200, **OPTIONAL)
    pipeline_run = Identifier(**OPTIONAL)
    step = Text(max_length=63, **OPTIONAL)
    branch = Whole(min_value=0, max_value=1_000_000, **OPTIONAL)
    parent = Identifier(**OPTIONAL)  # type: ignore[assignment]  # a field, not the attribute
    deliverable = Identifier(**OPTIONAL)
    schedule = Identifier(**OPTIONAL)
    dedup_key = Text(max_length=200, **OPTIONAL)
    created_after = Moment(**OPTIONAL)
    created_before = Moment(**OPTIONAL)
    search = Text(
        max_length=SEARCH_LENGTH,
        help_text="Words that must all occur, as in the list of activities.",
        **OPTIONAL,
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError("must have at least one condition")
        return attrs


class BulkSerializer(AssigneeSerializer):
    """One action for all activities that match a filter. Send a dry run first, then the action with the count of the dry run."""

    action = OneOf(choices=BulkAction.values)
    filter = ActivityChoiceSerializer()
    dry_run = Flag(help_text="Only count the matches, and return a sample of them.", **OPTIONAL)
    expected_count = Whole(
        min_value=0,
        max_value=10_000_000,
        help_text="The count of the dry run; 409 if the number of matches has changed since then.",
        **OPTIONAL,
    )
    reason = Text(max_length=LONGEST_REASON, help_text="Required to reassign.", **OPTIONAL)
    priority = PriorityField(
        help_text="Required to set the priority: 1 (urgent) to 20, or the name of a band.", **OPTIONAL
    )

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        errors: dict[str, Any] = {}
        if "dry_run" not in invalid and bool(attrs.get("dry_run")) == ("expected_count" in attrs):
            errors["expected_count"] = ["exactly one of dry_run and expected_count must be given"]
        if (action := attrs.get("action")) is None:
            return errors
        if action == BulkAction.REASSIGN:
            errors |= super().errors_of_combination(attrs, invalid)
            if "reason" not in attrs:
                errors["reason"] = ["is needed to reassign"]
        else:
            errors |= {name: [f"is only for {BulkAction.REASSIGN}"] for name in ASSIGNEE if name in attrs}
        if (action == BulkAction.PRIORITY) != ("priority" in attrs):
            errors["priority"] = ["is needed to set the priority, and only for that"]
        return errors_of_priority(attrs) | errors

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "priority" in attrs:
            attrs["priority"] = priority_of(attrs["priority"])
        return attrs


ASSIGNEE = ("assignee_type", "agent_role", "human_role")
ARGUMENTS = ("reason", "priority", *ASSIGNEE)


def _as_stored_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_stored_value(each) for each in value]
    return str(value) if isinstance(value, UUID | datetime) else value


JOBS = "/api/v1/bulk-jobs/"


class BulkJobSerializer(ResponseSerializer):
    """One action that is applied to many activities."""

    id = serializers.UUIDField()
    action = serializers.CharField(help_text=f"One of {', '.join(BulkAction.values)}.")
    status = serializers.CharField(help_text=f"One of {', '.join(BulkStatus.values)}.")
    filter = serializers.DictField(
        help_text="The filter that selected the activities when the job was created."
    )
    arguments = serializers.DictField()
    total = serializers.IntegerField()
    done = serializers.IntegerField()
    skipped = serializers.IntegerField(help_text="Activities whose state did not allow the action.")
    failed = serializers.IntegerField()
    remaining = serializers.SerializerMethodField()
    rate = serializers.SerializerMethodField(help_text="Items per second so far; null before the first.")
    created_by = serializers.CharField()
    cancelled_by = Computed(str | None, lambda job: job.cancelled_by or None)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    link = Computed(str, lambda job: f"{JOBS}{job.pk}/")

    def get_remaining(self, job: BulkJob) -> int:
        return job.total - job.done - job.skipped - job.failed

    def get_rate(self, job: BulkJob) -> float | None:
        ended = job.total - self.get_remaining(job)
        if not ended:
            return None
        # Until the last change, not until now, because an unchanged job must look the same (and have the same ETag).
        seconds = (job.updated_at - job.created_at).total_seconds()
        return round(ended / max(seconds, 0.001), 1)


class BulkErrorSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()


class BulkItemSerializer(ResponseSerializer):
    """The result for one activity."""

    activity = serializers.UUIDField(source="activity_id")
    state = serializers.CharField(help_text=f"One of {', '.join(ItemState.values)}.")
    error = BulkErrorSerializer(allow_null=True, help_text="Why it was skipped or failed.")
    ended_at = serializers.DateTimeField(allow_null=True)
    link = Computed(str, lambda item: link_of(item.activity_id), help_text="Of the activity.")


class SampleSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    status = serializers.CharField()
    link = serializers.CharField()


class BulkPreviewSerializer(serializers.Serializer[Any]):
    """The current matches of a filter. Send `count` as `expected_count` to apply the action."""

    dry_run = serializers.BooleanField()
    count = serializers.IntegerField()
    sample = SampleSerializer(many=True, help_text="The newest matches.")


SAMPLE = 10


class BulkOfActivities(TenantView):
    queryset = Activity.objects
    throttle_cost = 10.0  # it reads about as much as ten pages of a list
    scope = "activities"
    required_role: ClassVar[Role] = Role.OPERATOR

    @posting(
        "Apply one action to many activities",
        BulkSerializer,
        answers={202: BulkJobSerializer, 200: BulkPreviewSerializer},
        examples=[
            OpenApiExample(
                "How many there are",
                {"action": "cancel", "filter": {"status": ["created"]}, "dry_run": True},
                summary="First a dry run",
                request_only=True,
            ),
            OpenApiExample(
                "Do it",
                {
                    "action": "reassign",
                    "filter": {"agent_role": "qa"},
                    "expected_count": 12,
                    "agent_role": "dev",
                    "reason": "Busy.",
                },
                summary="Then the action, with the count of the dry run",
                request_only=True,
            ),
        ],
    )
    def post(self, request: Request) -> Response:
        """With `dry_run`, the answer is the count and a sample. With `expected_count`, a job is created that processes the activities in
        portions: each at most once, and activities whose state no longer allows the action are skipped."""
        body = read(BulkSerializer, request.data, tenant_id=self.tenant_id)
        conditions = body["filter"]
        # Without gates, because a gate ends with the activity behind it.
        rows = self.get_queryset().exclude(link_kind=LinkKind.GATE)
        matches = filter_by_body(ActivityFilter, rows, conditions, request)
        if body.get("dry_run"):
            newest = matches.order_by("-created_at", "-pk").only("id", "name", "status")[:SAMPLE]
            sample = [
                {"id": one.pk, "name": one.name, "status": one.status, "link": link_of(one.pk)}
                for one in newest
            ]
            return Response({"dry_run": True, "count": matches.count(), "sample": sample})
        job = bulk_jobs.start(
            self.tenant_id,
            body["action"],
            list(matches.order_by("pk").values_list("pk", flat=True)),
            expected=body["expected_count"],
            filter={name: _as_stored_value(value) for name, value in conditions.items()},
            arguments={name: body[name] for name in ARGUMENTS if name in body},
            creator=self.principal,
        )
        return Response(BulkJobSerializer(job).data, status=202, headers={"Location": f"{JOBS}{job.pk}/"})


@describe_resource(many="Bulk jobs, newest first", one="One bulk job with its progress")
class BulkJobViewSet(DigestEtag, Resource):
    queryset = BulkJob.objects
    serializer_class = BulkJobSerializer
    filterset_fields = ("status", "action")
    ordering_fields = ("created_at",)
    scope = "activities"
    required_role: ClassVar[dict[str, Role]] = {"cancel": Role.OPERATOR}

    @command("Stop a bulk job", EmptySerializer, BulkJobSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: UUID) -> Response:
        """Activities that were already processed are not reverted; the others are not processed."""
        self.refuse_changed(BulkJobSerializer(self.get_object()).data)
        bulk_jobs.cancel(self.tenant_id, pk, actor=self.principal.actor)
        return Response(BulkJobSerializer(self.get_object()).data)


class BulkItems(TenantViewSet):
    """The activities of one bulk job."""

    queryset = BulkItem.objects
    serializer_class = BulkItemSerializer
    filterset_fields = ("state",)
    ordering = ("id",)
    scope = "activities"

    @operation(
        "The result for each activity of a bulk job",
        answer=BulkItemSerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, job_id: UUID) -> Response:
        bulk_jobs.refuse_unknown(self.tenant_id, job_id)
        return self.answer_page(self.get_queryset().filter(job_id=job_id), BulkItemSerializer)
