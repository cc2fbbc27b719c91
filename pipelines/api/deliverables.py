"""The API of deliverables and their periods."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.api.operations import ReasonSerializer
from activities.api.serializers import link_of as activity_link
from pipelines import deliverables, selectors
from pipelines.api.pipelines import KeyedSerializer
from pipelines.api.runs import RUNS
from pipelines.definition import InputError
from pipelines.deliverables import PlanInvalid
from pipelines.exceptions import AlreadyExists, NotFound
from pipelines.models import Deliverable, DeliverablePeriod
from pipelines.models.deliverable import DeliverableState, PeriodState
from pipelines.models.run import RunState
from tenants import clock
from tenants.api.documentation import change, command, creation, operation, posting, removal
from tenants.api.etags import DigestEtag, digest_of
from tenants.api.filters import FlagFilter, StrictFilterSet
from tenants.api.problems import FieldError, InvalidRequest, flatten_errors
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    EmptySerializer,
    Json,
    Member,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
    read,
)
from tenants.api.views import OfOneRow, Resource, VersionedResource, describe_resource
from tenants.context import tenant_scope
from tenants.models import Role

PERIODS = "/api/v1/deliverable-periods/"


class PlanFaultSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    message = serializers.CharField()


class PeriodSerializer(ResponseSerializer):
    """One calendar month (UTC) of a deliverable."""

    id = serializers.UUIDField()
    deliverable = serializers.UUIDField(source="deliverable_id")
    starts_on = serializers.DateField()
    ends_on = serializers.DateField()
    status = serializers.CharField(help_text=f"One of {', '.join(PeriodState.values)}.")
    target = serializers.IntegerField(
        allow_null=True, help_text="How many runs should be completed, if its deliverable has a target."
    )
    planned = serializers.IntegerField(help_text="Number of runs in the plan.")
    completed = serializers.IntegerField()
    failed = serializers.IntegerField()
    cancelled = serializers.IntegerField()
    at_risk = serializers.BooleanField()
    at_risk_reason = serializers.CharField()
    planner_activity = Computed(str, lambda period: activity_link(period.planner_activity_id))
    plan_faults = PlanFaultSerializer(many=True, help_text="The errors of the last plan that was refused.")
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    runs = Computed(str, lambda period: f"{RUNS}?period={period.pk}")
    link = Computed(str, lambda period: f"{PERIODS}{period.pk}/")


class RunOfPeriodSerializer(ResponseSerializer):
    """The run of one item of a plan."""

    plan_item = serializers.IntegerField(help_text="Its position in the plan.")
    run = serializers.UUIDField(source="pk")
    name = serializers.CharField()
    pipeline = serializers.CharField(source="version.pipeline.key")
    status = serializers.CharField(help_text=f"One of {', '.join(RunState.values)}.")
    link = Computed(str, lambda run: f"{RUNS}{run.pk}/", read_only=False)


class PeriodDetailSerializer(PeriodSerializer):
    """A period with its plan and the runs of the plan's items."""

    plan = serializers.DictField(allow_null=True)
    items = RunOfPeriodSerializer(many=True)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        period, runs = instance
        return {
            **PeriodSerializer(period).data,
            "plan": period.plan,
            "items": RunOfPeriodSerializer(runs, many=True).data,
        }


class PlanSerializer(StrictSerializer):
    """A plan made by a person. Without it, the planner is asked again."""

    plan = Json(help_text="The plan, in the form of the `plan_schema` that the planner receives.", **OPTIONAL)


class PeriodFilter(StrictFilterSet):
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    status = django_filters.ChoiceFilter(choices=PeriodState.choices)
    at_risk = FlagFilter()
    starts_on = django_filters.DateFilter()


def show_period(tenant_id: UUID, period_id: UUID) -> Any:
    """Return the period as the API shows it. Raises `NotFound`. Call it within a `tenant_scope`."""
    period = DeliverablePeriod.objects.for_tenant(tenant_id).get_or_raise(NotFound, "period", period_id)
    runs = selectors.runs(tenant_id).filter(period_id=period_id).order_by("plan_item", "pk")
    return PeriodDetailSerializer((period, runs)).data


@describe_resource(many="Periods, newest first")
class PeriodViewSet(DigestEtag, Resource):
    queryset = DeliverablePeriod.objects.defer("plan")
    serializer_class = PeriodSerializer
    filterset_class = PeriodFilter
    ordering_fields = ("starts_on", "created_at", "ended_at")
    ordering = ("-starts_on", "-id")
    scope = "pipelines"
    required_role: ClassVar[dict[str, Role]] = {"plan": Role.OPERATOR}

    @operation("One period with its plan", answer=PeriodDetailSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(show_period(self.tenant_id, pk))

    @command("Ask the planner of a period again, or set the plan", PlanSerializer, PeriodDetailSerializer)
    @action(detail=True, methods=["post"])
    def plan(self, request: Request, pk: UUID) -> Response:
        """For a period whose planner has not produced a plan. Errors of a plan name their paths."""
        given: Any = request.data
        body = PlanSerializer(data=given)
        if not body.is_valid():
            errors = deliverables.errors_of_plan(self.tenant_id, pk, given["plan"]) if "plan" in given else []
            raise InvalidRequest([*flatten_errors(body.errors), *map(_as_member, errors)])
        self.refuse_changed(show_period(self.tenant_id, pk))
        actor = self.principal.actor
        if "plan" not in body.validated_data:
            deliverables.ask_again(self.tenant_id, pk, actor=actor)
            return Response(show_period(self.tenant_id, pk))
        try:
            deliverables.accept_plan(
                self.tenant_id,
                pk,
                body.validated_data["plan"],
                actor=actor,
                requested_identity=self.principal.identity,
            )
        except PlanInvalid as refusal:
            raise InvalidRequest(map(_as_member, refusal.errors), code=refusal.code) from refusal
        return Response(show_period(self.tenant_id, pk))


def _as_member(error: InputError) -> FieldError:
    """Return the error of a plan with its path in the body."""
    return f"plan.{error.path}" if error.path else "plan", error.message


class PeriodCancellation(DigestEtag, OfOneRow):
    queryset = DeliverablePeriod.objects
    lookup_url_kwarg = "period_id"
    # Cancelling takes several transactions, see `pipelines.deliverables.starting`.
    in_one_transaction = False
    scope = "pipelines"
    required_role = Role.OPERATOR

    @command("Cancel a period and all of its unfinished work", ReasonSerializer, PeriodDetailSerializer)
    def post(self, request: Request, period_id: UUID) -> Response:
        """May be repeated, to cancel what is still unfinished in a cancelled period."""
        reason = read(ReasonSerializer, request.data).get("reason", "")
        with tenant_scope(self.tenant_id):
            self.refuse_changed(show_period(self.tenant_id, period_id))
        deliverables.cancel_period(self.tenant_id, period_id, actor=self.principal.actor, reason=reason)
        with tenant_scope(self.tenant_id):
            return Response(show_period(self.tenant_id, period_id))


DELIVERABLES = "/api/v1/deliverables/"
LONGEST_DESCRIPTION = 20_000
MOST_RUNS = 200  # of a plan
MOST_PIPELINES = 50  # of a deliverable; the planner gets each of them as a parameter


class DeliverableSerializer(ResponseSerializer):
    """Something that is owed every month, with a new plan for each month."""

    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    status = serializers.CharField(help_text=f"One of {', '.join(DeliverableState.values)}.")
    pipelines = serializers.ListField(child=serializers.CharField())
    params = serializers.DictField()
    target = serializers.IntegerField(
        allow_null=True, help_text="How many runs of a period should be completed, if there is a target."
    )
    version = serializers.IntegerField(help_text="Increases with every change; the ETag begins with it.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    periods = Computed(str, lambda deliverable: f"{PERIODS}?deliverable={deliverable.pk}")
    link = Computed(str, lambda deliverable: f"{DELIVERABLES}{deliverable.pk}/")


class PipelineKeysField(serializers.ListField):
    """Keys of the tenant's pipelines, each once. Some invalid elements do not hide the errors of the others."""

    def run_child_validation(self, data: Any) -> list[str]:
        errors: dict[int, Any] = {}
        keys: dict[int, str] = {}
        for place, key in enumerate(data):
            try:
                keys[place] = self.child.run_validation(key)
            except serializers.ValidationError as error:
                errors[place] = error.detail
        unknown = deliverables.find_unknown_pipelines(self.context["tenant_id"], list(keys.values()))
        named: set[str] = set()
        for place, key in keys.items():
            if key in unknown or key in named:
                errors[place] = [f"there is no pipeline {key!r}" if key in unknown else "is named twice"]
            named.add(key)
        if errors:
            raise serializers.ValidationError(errors)  # type: ignore[arg-type]  # by place, as for children of a list
        return list(keys.values())


class DeliverableBodySerializer(StrictSerializer):
    """A complete deliverable, without its key."""

    name = Text(max_length=200)
    description = Text(
        allow_blank=True,
        trim_whitespace=False,
        max_length=LONGEST_DESCRIPTION,
        help_text="The description that the planner receives.",
        **OPTIONAL,
    )
    status = OneOf(choices=DeliverableState.values, **OPTIONAL)
    pipelines = PipelineKeysField(
        child=Text(max_length=63),
        allow_empty=False,
        max_length=MOST_PIPELINES,
        help_text="The keys of the pipelines that its plans may use.",
    )
    params = Member(
        help_text="Parameters for every run of its periods. Parameters in the plan take precedence.",
        **OPTIONAL,
    )
    target = Whole(
        min_value=1,
        max_value=MOST_RUNS,
        help_text="How many runs of a period should be completed. A period that cannot reach it any more is at risk.",
        **OPTIONAL,
    )

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        keys, params = attrs.get("pipelines", ()), attrs.get("params", {})
        errors = deliverables.reserved_errors(self.context["tenant_id"], keys, params)
        return {"params": {name: [text] for name, text in errors.items()}} if errors else {}


class NewDeliverableSerializer(DeliverableBodySerializer, KeyedSerializer):
    pass


@describe_resource(many="The deliverables", one="One deliverable")
class DeliverableViewSet(VersionedResource):
    queryset = Deliverable.objects
    serializer_class = DeliverableSerializer
    address = DELIVERABLES
    filterset_fields = ("status", "key")
    search_fields = ("key", "name", "description")
    ordering_fields = ("key", "name", "created_at", "updated_at")
    ordering = ("key",)
    scope = "pipelines"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("create", "update", "destroy", "start_period"), Role.OPERATOR
    )

    @creation("Create a deliverable", NewDeliverableSerializer, DeliverableSerializer)
    def create(self, request: Request) -> Response:
        """Its first period is the next month, unless the period of the current month is started by hand."""
        body = read(NewDeliverableSerializer, request.data, tenant_id=self.tenant_id)
        deliverable, is_new = deliverables.create(self.tenant_id, body)
        if not is_new:
            raise AlreadyExists("deliverable", body["key"])
        return self.answer_created(deliverable)

    @change("Change a deliverable", DeliverableBodySerializer, DeliverableSerializer)
    def update(self, request: Request, pk: UUID) -> Response:
        """Omitted members are cleared, except the status, which stays as it is. Periods that already have a plan do not change."""
        self.get_object()
        body = self.read_change(DeliverableBodySerializer, tenant_id=self.tenant_id)
        values = {"description": "", "params": {}, "target": None, **body}
        return Response(self.show(deliverables.change(self.tenant_id, pk, values)))

    @removal("Delete a deliverable that never had a period", refusals=(404, 409, 412))
    def destroy(self, request: Request, pk: UUID) -> Response:
        self.get_object()
        deliverables.delete(self.tenant_id, pk)
        return Response(status=204)

    @posting(
        "Start the period of the current month",
        EmptySerializer,
        refusals=(404,),
        answers={201: PeriodSerializer, 200: PeriodSerializer},
    )
    @action(detail=True, methods=["post"], url_path="start-period")
    def start_period(self, request: Request, pk: UUID) -> Response:
        """201 if the period was created, 200 if it existed already. Months begin and end in UTC."""
        today = clock.now().date()
        period, is_new = deliverables.start_period(
            self.tenant_id, pk, today=today, actor=self.principal.actor
        )
        # The tag that a GET of the period would have.
        headers = {"ETag": digest_of(show_period(self.tenant_id, period.pk))}
        if is_new:
            headers["Location"] = f"{PERIODS}{period.pk}/"
        return Response(PeriodSerializer(period).data, status=201 if is_new else 200, headers=headers)
