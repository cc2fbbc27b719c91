"""Activities: submitted, listed, looked at, and told what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.filters import search_smart_split
from rest_framework.request import Request
from rest_framework.response import Response

from activities import selectors, wait_reasons
from activities.api.decisions import DecisionActions
from activities.api.operations import OperationActions
from activities.api.serializers import ActivitySerializer, link_of
from activities.api.submissions import NewActivitySerializer, new_activity
from activities.mailboxes import producer
from activities.models import Activity
from activities.models.activity import AssigneeType
from activities.states import Status
from activities.submission import NewActivity, Submitted, submit
from tenants.api.documentation import IDEMPOTENCY_KEY, operation
from tenants.api.filters import SEARCH_LENGTH, FlagFilter, StrictFilterSet
from tenants.api.problems import Fault, InvalidRequest
from tenants.api.resources import VersionedResource, described
from tenants.models import Role

# By what lists of activities can be narrowed.


class StatusFilter(django_filters.BaseInFilter, django_filters.ChoiceFilter):
    """One status, or several with commas."""


class IdsFilter(django_filters.BaseInFilter, django_filters.UUIDFilter):
    """One id, or several with commas."""


class ActivityFilter(StrictFilterSet):
    ids = IdsFilter(field_name="pk", help_text="One id, or several with commas.")
    status = StatusFilter(
        choices=[(s.value, s.value) for s in Status], help_text="One status, or several with commas."
    )
    agent_role = django_filters.CharFilter()
    human_role = django_filters.CharFilter()
    assignee_type = django_filters.ChoiceFilter(choices=AssigneeType.choices)
    priority = django_filters.NumberFilter()
    period = django_filters.UUIDFilter(field_name="period_id")
    pipeline = django_filters.UUIDFilter(field_name="pipeline_id")
    template = django_filters.CharFilter()
    pipeline_run = django_filters.UUIDFilter(field_name="pipeline_run_id")
    step = django_filters.CharFilter()
    branch = django_filters.NumberFilter()
    parent = django_filters.UUIDFilter(field_name="parent_id")
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    schedule = django_filters.UUIDFilter(field_name="schedule_id")
    dedup_key = django_filters.CharFilter()
    created_after = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")
    search = django_filters.CharFilter(
        method="with_words",
        max_length=SEARCH_LENGTH,
        help_text="Words that must all occur, each in the name, description, params, metadata or error. Looked for among the newest "
        f"{selectors.SEARCHED:,} activities; with `created_before`, among the newest that were made before it.",
    )

    class Meta:
        model = Activity
        fields: tuple[str, ...] = ()

    def with_words(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        before = self.form.cleaned_data.get("created_before")
        wanted = map(selectors.Wanted, search_smart_split(value))  # type: ignore[arg-type]  # the stubs want a list of texts
        return selectors.containing(rows, self.request.user.tenant_id, wanted, before=before)


class InboxFilter(StrictFilterSet):
    human_role = django_filters.CharFilter()
    pipeline_run = django_filters.UUIDFilter(field_name="pipeline_run_id")
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    gate = FlagFilter(field_name="is_approval_gate", help_text="Only decisions, or only tasks.")
    mine = FlagFilter(method="of_caller", help_text="Only what is asked of the caller's own human roles.")

    class Meta:
        model = Activity
        fields: tuple[str, ...] = ()

    def of_caller(self, rows: Any, name: str, value: bool) -> Any:
        roles = self.request.user.human_roles
        return rows.filter(human_role__in=roles) if value and roles else rows


MOST_AT_ONCE = 1_000


class SubmittedSerializer(serializers.Serializer[Any]):
    """What became of one of several new activities."""

    id = serializers.UUIDField()
    created = serializers.BooleanField()
    deduplicated = serializers.BooleanField(help_text="An equal one is live; this is its id.")
    link = serializers.CharField()


class SubmittedManySerializer(serializers.Serializer[Any]):
    results = SubmittedSerializer(many=True)


NEW = PolymorphicProxySerializer(
    component_name="NewActivityOrMany",
    serializers=[NewActivitySerializer, NewActivitySerializer(many=True)],
    resource_type_field_name=None,
    many=False,
)
SHOWN = PolymorphicProxySerializer(
    component_name="ActivityOrMany",
    serializers=[ActivitySerializer, SubmittedManySerializer],
    resource_type_field_name=None,
    many=False,
)


@described(many="List activities, newest first", one="One activity")
class ActivityViewSet(DecisionActions, OperationActions, VersionedResource):
    """One piece of work for an agent or a person."""

    queryset = Activity.objects.defer("input", "retry")
    serializer_class = ActivitySerializer
    filterset_class = ActivityFilter
    ordering_fields = ("created_at", "priority", "started_at", "finished_at", "due_at", "name")
    lookup_value_converter = "uuid"
    allows_array = True
    scope = "activities"
    required_role: ClassVar[dict[str, Role]] = {
        "create": Role.OPERATOR,
        **DecisionActions.required_role,
        **OperationActions.required_role,
    }

    @operation(
        "Submit one activity, or a list of up to 1,000",
        request=NEW,
        answers={201: SHOWN, 200: SHOWN},
        refusals=(400, 409, 413),
        parameters=(IDEMPOTENCY_KEY,),
        examples=[
            OpenApiExample(
                "For an agent",
                {"name": "Check the order", "agent_role": "qa", "params": {"order": 4711}},
                request_only=True,
            ),
            OpenApiExample(
                "A question to a person",
                {"name": "May it go out?", "human_role": "editor", "is_approval_gate": True},
                request_only=True,
            ),
        ],
    )
    def create(self, request: Request) -> Response:
        """A list creates all of its activities or, when one has a fault, none. With a `dedup_key` that an activity still under
        way has, nothing is created: the answer is 200 with that activity and `deduplicated: true`."""
        if isinstance(request.data, list):
            return self._create_many(request.data)
        (item,) = self._validated([request.data], single=True)
        (submitted,) = self._submitted([item])
        shown = self.shown(Activity.objects.for_tenant(self.tenant_id).get(pk=submitted.id))
        if not submitted.created:
            return Response({**shown, "deduplicated": True})
        return Response(shown, status=201, headers={"Location": link_of(submitted.id)})

    def _create_many(self, bodies: Sequence[Any]) -> Response:
        if not 0 < len(bodies) <= MOST_AT_ONCE:
            raise InvalidRequest([("", f"must have 1 to {MOST_AT_ONCE} elements")])
        submitted = self._submitted(self._validated(bodies))
        results = [
            {"id": one.id, "created": one.created, "deduplicated": not one.created, "link": link_of(one.id)}
            for one in submitted
        ]
        return Response({"results": results}, status=201 if any(one.created for one in submitted) else 200)

    def _validated(self, bodies: Sequence[Any], *, single: bool = False) -> Sequence[NewActivity]:
        body = NewActivitySerializer(
            data=bodies[0] if single else bodies, many=not single, context={"tenant_id": self.tenant_id}
        )
        body.is_valid(raise_exception=True)
        found = [body.validated_data] if single else body.validated_data
        items = [
            new_activity(attrs, asked_by=self.principal.identity, mailbox_id=self._mailbox_of(attrs))
            for attrs in found
        ]
        self._refuse_unknown_outputs(items, single=single)
        return items

    def _mailbox_of(self, attrs: Any) -> UUID | None:
        return producer.open_mailbox(self.tenant_id, attrs["mailbox"]).pk if "mailbox" in attrs else None

    def _refuse_unknown_outputs(self, items: Sequence[NewActivity], *, single: bool) -> None:
        wanted = {item.input_ref for item in items if item.input_ref}
        if not wanted:
            return
        unknown = wanted - selectors.outputs_that_exist(self.tenant_id, wanted)
        faults: list[Fault] = [
            ("input_ref" if single else f"[{index}].input_ref", "is not an output of this tenant")
            for index, item in enumerate(items)
            if item.input_ref in unknown
        ]
        if faults:
            raise InvalidRequest(faults)

    def _submitted(self, items: Sequence[NewActivity]) -> Sequence[Submitted]:
        return submit(items, actor=self.principal.actor)

    def get_queryset(self) -> QuerySet[Activity]:
        rows: QuerySet[Activity] = super().get_queryset()
        return rows

    def shown(self, found: Any, *, many: bool = False) -> Any:
        reasons = wait_reasons.briefly(self.tenant_id, found if many else [found])
        return self.serializer_class(found, many=many, context={"waiting": reasons}).data


__all__ = ("ActivityViewSet",)
