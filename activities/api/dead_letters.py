"""Dead letters: work that failed for good, listed, grouped by what failed alike, replayed or dismissed, one by one or many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities import deadletters
from activities.api.decisions import EmptySerializer
from activities.api.serializers import link_of
from activities.exceptions import TransitionRefused
from activities.models import DeadLetter
from activities.models.dead_letter import BurialReason, DeadLetterState
from agents.api.digests import Digested
from agents.api.documentation import IDEMPOTENCY_KEY, operation
from agents.api.shown import Shown
from agents.api.strict import OPTIONAL, Flag, Identifier, Moment, Number, OneOf, StrictSerializer, Text, read
from tenants.api.views import TenantView, TenantViewSet
from tenants.models import Role

MOST_AT_ONCE = 10_000
FASTEST = 1_000  # a second; more would be the same as no limit


class DeadLetterSerializer(Shown):
    """One failure for good. A replay that fails again makes a further one."""

    id = serializers.UUIDField()
    activity = serializers.UUIDField(source="activity_id")
    name = serializers.CharField(source="activity.name")
    activity_status = serializers.CharField(source="activity.status", help_text="Of the activity, now.")
    agent_role = serializers.CharField()
    reason = serializers.CharField(help_text=f"One of {', '.join(BurialReason.values)}.")
    error = serializers.DictField(help_text="`code` and `message` of the last failure.")
    attempts = serializers.IntegerField()
    stalls = serializers.IntegerField()
    cost_usd = serializers.DecimalField(
        max_digits=14, decimal_places=6, help_text="Reported by all runs until then."
    )
    fingerprint = serializers.CharField(help_text="Equal for failures that look alike.")
    run = serializers.UUIDField(source="run_id", allow_null=True, help_text="The run that failed last.")
    pipeline_run = serializers.UUIDField(source="pipeline_run_id", allow_null=True)
    state = serializers.CharField(
        help_text="open; replayed; or closed: cancelled, handed on, or dealt with by a person."
    )
    escalation = serializers.UUIDField(
        source="escalation_id", allow_null=True, help_text="The activity that asks a person about it."
    )
    created_at = serializers.DateTimeField()
    handled_at = serializers.DateTimeField(allow_null=True, help_text="When people were told.")
    closed_at = serializers.DateTimeField(allow_null=True)
    closed_by = serializers.SerializerMethodField()
    link = serializers.SerializerMethodField(help_text="Of the activity.")

    def get_closed_by(self, letter: DeadLetter) -> str | None:
        return letter.closed_by or None

    def get_link(self, letter: DeadLetter) -> str:
        return link_of(letter.activity_id)


class ExampleSerializer(serializers.Serializer[Any]):
    """The newest of a group."""

    id = serializers.UUIDField()
    activity = serializers.UUIDField()
    name = serializers.CharField()
    error = serializers.DictField()


class GroupSerializer(serializers.Serializer[Any]):
    """Failures that look alike."""

    fingerprint = serializers.CharField()
    agent_role = serializers.CharField()
    reason = serializers.CharField()
    count = serializers.IntegerField()
    open = serializers.IntegerField(help_text="How many of them nobody has dealt with yet.")
    first_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField()
    example = ExampleSerializer()


class ChoiceSerializer(StrictSerializer):
    """What the list can be narrowed by. An empty object chooses everything."""

    agent_role = Text(max_length=63, **OPTIONAL)
    reason = OneOf(choices=BurialReason.values, **OPTIONAL)
    fingerprint = Text(max_length=64, **OPTIONAL)
    state = OneOf(choices=DeadLetterState.values, **OPTIONAL)
    activity = Identifier(**OPTIONAL)
    pipeline_run = Identifier(**OPTIONAL)
    created_after = Moment(**OPTIONAL)
    created_before = Moment(**OPTIONAL)


class ChosenSerializer(StrictSerializer):
    """Base of what is done to many: exactly one of `ids` and `filter`."""

    ids = serializers.ListField(child=Identifier(), allow_empty=False, max_length=MOST_AT_ONCE, **OPTIONAL)
    filter = ChoiceSerializer(**OPTIONAL)
    dry_run = Flag(help_text="Only count what would be done.", **OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("ids" in attrs) == ("filter" in attrs):
            raise serializers.ValidationError({"ids": ["exactly one of ids and filter must be given"]})
        return attrs


class ReplaySerializer(ChosenSerializer):
    """Failures to be tried again."""

    per_second = Number(
        min_value=0.001,
        max_value=FASTEST,
        help_text="So many start in a second. Left out: all at once.",
        **OPTIONAL,
    )


class DismissalSerializer(ChosenSerializer):
    """Failures that nobody wants to try again."""

    reason = Text(max_length=2_000)


class DismissedSerializer(serializers.Serializer[Any]):
    """What was done, or in a dry run would be."""

    count = serializers.IntegerField()
    skipped = serializers.IntegerField(
        help_text="Chosen, but dealt with before, or equal to work that is under way."
    )
    dry_run = serializers.BooleanField()


class ReplayedSerializer(DismissedSerializer):
    seconds = serializers.FloatField(help_text="Until the last of them starts.")


class DeadLetterFilter(django_filters.FilterSet):
    agent_role = django_filters.CharFilter()
    reason = django_filters.ChoiceFilter(choices=BurialReason.choices)
    fingerprint = django_filters.CharFilter()
    state = django_filters.ChoiceFilter(choices=DeadLetterState.choices)
    activity = django_filters.UUIDFilter(field_name="activity_id")
    pipeline_run = django_filters.UUIDFilter(field_name="pipeline_run_id")
    created_after = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = DeadLetter
        fields: tuple[str, ...] = ()


#: The same conditions for a body, whose values are checked and converted already.
_CONDITIONS = {
    name: f"{found.field_name}__{found.lookup_expr}" for name, found in DeadLetterFilter.base_filters.items()
}


class DeadLetterViewSet(Digested, TenantViewSet):
    queryset = DeadLetter.objects
    serializer_class = DeadLetterSerializer
    filterset_class = DeadLetterFilter
    ordering_fields = ("created_at",)
    lookup_value_converter = "uuid"
    scope = "dead-letters"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("replay", "replay_one", "dismiss"), Role.OPERATOR
    )

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().select_related("activity")

    @operation(
        "Work that failed for good, newest first", answer=DeadLetterSerializer(many=True), refusals=(400,)
    )
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(DeadLetterSerializer(page, many=True).data)

    @operation("One dead letter", answer=DeadLetterSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(DeadLetterSerializer(self.get_object()).data)

    @operation(
        "Try failed work again", request=ReplaySerializer, answer=ReplayedSerializer, parameters=(IDEMPOTENCY_KEY,), filters=False
    )  # fmt: skip
    @action(detail=False, methods=["post"])
    def replay(self, request: Request) -> Response:
        """Each starts for the reasons that it ran for last, with all its attempts, and its pipeline run goes on. Repeating a replay
        starts nothing twice: what is under way is skipped."""
        body = read(ReplaySerializer, request.data)
        dry_run = body.get("dry_run", False)
        done = deadletters.replay(
            self.tenant_id, self._chosen(body), actor=self.principal.actor, per_second=body.get("per_second"), dry_run=dry_run
        )  # fmt: skip
        return Response({**asdict(done), "dry_run": dry_run})

    @operation(
        "Give failed work up", request=DismissalSerializer, answer=DismissedSerializer, parameters=(IDEMPOTENCY_KEY,), filters=False
    )  # fmt: skip
    @action(detail=False, methods=["post"])
    def dismiss(self, request: Request) -> Response:
        """The activities are cancelled, with everything that was asked because of them."""
        body = read(DismissalSerializer, request.data)
        dry_run = body.get("dry_run", False)
        done = deadletters.dismiss(
            self.tenant_id, self._chosen(body), actor=self.principal.actor, reason=body["reason"], dry_run=dry_run
        )  # fmt: skip
        return Response({**asdict(done), "dry_run": dry_run})

    @operation(
        "Try one failure again", request=EmptySerializer, answer=DeadLetterSerializer, refusals=(404,), parameters=(IDEMPOTENCY_KEY,)
    )  # fmt: skip
    @action(detail=True, methods=["post"], url_path="replay")
    def replay_one(self, request: Request, pk: UUID) -> Response:
        """409 when it was dealt with before."""
        read(EmptySerializer, request.data)
        self.get_object()
        chosen = DeadLetter.objects.for_tenant(self.tenant_id).filter(pk=pk)
        if not deadletters.replay(self.tenant_id, chosen, actor=self.principal.actor).count:
            raise _dealt_with(self.get_object())
        return Response(DeadLetterSerializer(self.get_object()).data)

    def _chosen(self, body: Mapping[str, Any]) -> QuerySet[DeadLetter]:
        rows: QuerySet[DeadLetter] = DeadLetter.objects.for_tenant(self.tenant_id)
        if "ids" in body:
            return rows.filter(pk__in=body["ids"])
        return rows.filter(**{_CONDITIONS[name]: value for name, value in body["filter"].items()})


class DeadLetterGroups(ViewSetMixin, TenantView):
    queryset = DeadLetter.objects
    filterset_class = DeadLetterFilter
    ordering = ("-count", "fingerprint", "reason")
    scope = "dead-letters"

    def get_queryset(self) -> QuerySet[Any]:
        return deadletters.groups(super().get_queryset())

    @operation(
        "Failures that look alike, together, most frequent first",
        answer=GroupSerializer(many=True),
        refusals=(400,),
    )
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        letters = DeadLetter.objects.for_tenant(self.tenant_id).select_related("activity")
        examples = letters.in_bulk([group.example for group in page])
        return self.get_paginated_response(
            [{**group._asdict(), "example": _example(examples[UUID(group.example)])} for group in page]
        )


def _example(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.pk, "activity": letter.activity_id, "name": letter.activity.name, "error": letter.error
    }  # fmt: skip


def _dealt_with(letter: DeadLetter) -> TransitionRefused:
    who = f" by {letter.closed_by}" if letter.closed_by else ""
    said = f"This failure is {letter.state}{who}; its activity is {letter.activity.status}."
    return TransitionRefused(letter.activity_id, "retry", letter.activity.status, said)
