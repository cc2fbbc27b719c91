"""Deliverables: what is planned anew for every month."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.api.decisions import EmptySerializer
from pipelines import deliverables
from pipelines.api.periods import PERIODS, PeriodSerializer
from pipelines.definition.reading import ABOUT_IDENTIFIERS, IDENTIFIER
from pipelines.exceptions import AlreadyExists
from pipelines.models import Deliverable
from pipelines.models.deliverable import DeliverableState
from tenants import clock
from tenants.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from tenants.api.resources import VersionedResource, described
from tenants.api.serializers import ResponseSerializer
from tenants.api.strict import OPTIONAL, Member, OneOf, StrictSerializer, Text, Whole, read
from tenants.models import Role

DELIVERABLES = "/api/v1/deliverables/"
LONGEST_DESCRIPTION = 20_000
MOST_RUNS = 200  # of a plan
MOST_PIPELINES = 50  # of a deliverable: the planner is told about each of them


class DeliverableSerializer(ResponseSerializer):
    """Something that is planned anew for every month."""

    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    status = serializers.CharField(help_text=f"One of {', '.join(DeliverableState.values)}.")
    pipelines = serializers.ListField(child=serializers.CharField())
    params = serializers.DictField()
    target = serializers.IntegerField(
        allow_null=True, help_text="How many runs of a period shall be completed, if it was said."
    )
    version = serializers.IntegerField(help_text="Raised by every change; the ETag.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    periods = serializers.SerializerMethodField()
    link = serializers.SerializerMethodField()

    def get_periods(self, deliverable: Deliverable) -> str:
        return f"{PERIODS}?deliverable={deliverable.pk}"

    def get_link(self, deliverable: Deliverable) -> str:
        return f"{DELIVERABLES}{deliverable.pk}/"


class DeliverableBodySerializer(StrictSerializer):
    """A deliverable, but for its key."""

    name = Text(max_length=200)
    description = Text(
        allow_blank=True,
        trim_whitespace=False,
        max_length=LONGEST_DESCRIPTION,
        help_text="What the planner is told about it.",
        **OPTIONAL,
    )
    status = OneOf(choices=DeliverableState.values, **OPTIONAL)
    pipelines = serializers.ListField(
        child=Text(max_length=63),
        allow_empty=False,
        max_length=MOST_PIPELINES,
        help_text="Keys of the pipelines that its plans may use.",
    )
    params = Member(help_text="For every run of its periods, under what the plan says itself.", **OPTIONAL)
    target = Whole(
        min_value=1,
        max_value=MOST_RUNS,
        help_text="How many runs of a period shall be completed. A period that cannot reach it any more is at risk.",
        **OPTIONAL,
    )

    def validate_pipelines(self, keys: list[str]) -> list[str]:
        unknown = deliverables.unknown_pipelines(self.context["tenant_id"], keys)
        faults = {
            place: [f"there is no pipeline {key!r}"] if key in unknown else ["is named twice"]
            for place, key in enumerate(keys)
            if key in unknown or key in keys[:place]
        }
        if faults:
            raise serializers.ValidationError(faults)  # type: ignore[arg-type]  # by place, as for children of a list
        return keys


class NewDeliverableSerializer(DeliverableBodySerializer):
    key = Text(max_length=63, help_text=ABOUT_IDENTIFIERS)

    def validate_key(self, key: str) -> str:
        if not IDENTIFIER.fullmatch(key):
            raise serializers.ValidationError(ABOUT_IDENTIFIERS)
        return key


@described(many="The deliverables", one="One deliverable")
class DeliverableViewSet(VersionedResource):
    queryset = Deliverable.objects
    serializer_class = DeliverableSerializer
    address = DELIVERABLES
    filterset_fields = ("status", "key")
    search_fields = ("key", "name", "description")
    ordering_fields = ("key", "name", "created_at", "updated_at")
    ordering = ("key",)
    lookup_value_converter = "uuid"
    scope = "pipelines"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("create", "update", "destroy", "start_period"), Role.OPERATOR
    )

    @operation(
        "Make a deliverable",
        request=NewDeliverableSerializer,
        answer=DeliverableSerializer,
        status=201,
        refusals=(400, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request) -> Response:
        """Its first period is that of the next month, unless the one that is running is started by hand."""
        body = read(NewDeliverableSerializer, request.data, tenant_id=self.tenant_id)
        made, is_new = deliverables.create(self.tenant_id, body)
        if not is_new:
            raise AlreadyExists("deliverable", body["key"])
        return self.created(made)

    @operation(
        "Change a deliverable",
        request=DeliverableBodySerializer,
        answer=DeliverableSerializer,
        refusals=(400, 404, 412),
        parameters=(IF_MATCH,),
    )
    def update(self, request: Request, pk: UUID) -> Response:
        """What is left out is emptied; a status that is left out stays. Periods that have their plan go on as they are."""
        self.get_object()
        body = read(DeliverableBodySerializer, request.data, tenant_id=self.tenant_id)
        values = {"description": "", "params": {}, "target": None, **body}
        return Response(self.shown(deliverables.change(self.tenant_id, pk, values)))

    @operation(
        "Delete a deliverable that never had a period",
        answer=None,
        status=204,
        refusals=(404, 409, 412),
        parameters=(IF_MATCH,),
    )
    def destroy(self, request: Request, pk: UUID) -> Response:
        self.get_object()
        deliverables.delete(self.tenant_id, pk)
        return Response(status=204)

    @operation(
        "Start the period of the running month",
        request=EmptySerializer,
        answers={201: PeriodSerializer, 200: PeriodSerializer},
        refusals=(404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    @action(detail=True, methods=["post"], url_path="start-period")
    def start_period(self, request: Request, pk: UUID) -> Response:
        """201 when it was started now, 200 with the period when there is one. Months are those of UTC."""
        read(EmptySerializer, request.data)
        today = clock.now().date()
        period, is_new = deliverables.start_period(
            self.tenant_id, pk, today=today, actor=self.principal.actor
        )
        return Response(
            PeriodSerializer(period).data,
            status=201 if is_new else 200,
            headers={"Location": f"{PERIODS}{period.pk}/"} if is_new else None,
        )
