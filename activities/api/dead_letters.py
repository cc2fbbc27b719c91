"""Dead letters, the records of work that failed finally: lists them, and replays or dismisses one or many."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities import dead_letters
from activities.api.serializers import link_of
from activities.exceptions import TransitionRefused
from activities.models import DeadLetter
from activities.models.dead_letter import DeadLetterReason, DeadLetterState, LetterKind
from agents.api.role_names import RoleFilter, RoleName
from tenants.api.documentation import command, operation, posting
from tenants.api.etags import DigestEtag
from tenants.api.filters import MomentFilter, StrictFilterSet, filter_by_body
from tenants.api.problems import InvalidRequest
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    EmptySerializer,
    Flag,
    Identifier,
    Moment,
    Number,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import Resource, TenantView, describe_resource
from tenants.models import Role

MOST_AT_ONCE = 10_000
FASTEST = 1_000  # a second; more would be the same as no limit


class ChoiceSerializer(StrictSerializer):
    """The filters of the list of dead letters; at least one is required. `{"state": "open"}` selects all that are open."""

    kind = OneOf(choices=LetterKind.values, **OPTIONAL)
    agent_role = RoleName(max_length=63, **OPTIONAL)
    mailbox = Text(max_length=200, **OPTIONAL)
    reason = OneOf(choices=DeadLetterReason.values, **OPTIONAL)
    fingerprint = Text(max_length=64, **OPTIONAL)
    state = OneOf(choices=DeadLetterState.values, **OPTIONAL)
    activity = Identifier(**OPTIONAL)
    pipeline_run = Identifier(**OPTIONAL)
    created_after = Moment(**OPTIONAL)
    created_before = Moment(**OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError(
                'must have at least one condition; {"state": "open"} chooses all that are open'
            )
        return attrs


class ChosenSerializer(StrictSerializer):
    """Base of actions on many dead letters: exactly one of `ids` and `filter`."""

    ids = serializers.ListField(child=Identifier(), allow_empty=False, max_length=MOST_AT_ONCE, **OPTIONAL)
    filter = ChoiceSerializer(**OPTIONAL)
    dry_run = Flag(help_text="Only count the matches.", **OPTIONAL)

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        given = [name in attrs or name in invalid for name in ("ids", "filter")]
        return (
            {} if any(given) and not all(given) else {"ids": ["exactly one of ids and filter must be given"]}
        )


class ReplaySerializer(ChosenSerializer):
    """Dead letters to replay."""

    per_second = Number(
        min_value=0.001,
        max_value=FASTEST,
        help_text="How many start per second. Default: all at once.",
        **OPTIONAL,
    )


class DismissalSerializer(ChosenSerializer):
    """Dead letters that will not be tried again."""

    reason = Text(max_length=2_000)


class DeadLetterFilter(StrictFilterSet):
    kind = django_filters.ChoiceFilter(choices=LetterKind.choices, method="of_kind")
    agent_role = RoleFilter()
    mailbox = django_filters.CharFilter(field_name="mailbox_key")
    reason = django_filters.ChoiceFilter(choices=DeadLetterReason.choices)
    fingerprint = django_filters.CharFilter()
    state = django_filters.ChoiceFilter(choices=DeadLetterState.choices)
    activity = django_filters.UUIDFilter(field_name="activity_id")
    pipeline_run = django_filters.UUIDFilter(field_name="pipeline_run_id")
    created_after = MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")

    def of_kind(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        return rows.filter(activity_id__isnull=value == LetterKind.MAILBOX_ITEM)


class DeadLetterSerializer(ResponseSerializer):
    """The record of work that failed permanently. If a replay fails again, there is a further one."""

    id = serializers.UUIDField()
    kind = serializers.CharField(help_text="What failed: activity or mailbox_item.")
    activity = serializers.UUIDField(source="activity_id", allow_null=True)
    mailbox = Computed(
        str | None,
        lambda letter: letter.mailbox_key or None,
        help_text="The key of the mailbox, if an item of a mailbox failed.",
    )
    mailbox_item = serializers.UUIDField(source="mailbox_item_id", allow_null=True)
    name = serializers.CharField()
    activity_status = Computed(
        str | None,
        lambda letter: letter.activity.status if letter.activity else None,
        help_text="The current status of the activity.",
    )
    agent_role = serializers.CharField()
    reason = serializers.CharField(help_text=f"One of {', '.join(DeadLetterReason.values)}.")
    error = serializers.DictField(help_text="`code` and `message` of the last failure.")
    attempts = serializers.IntegerField()
    stalls = serializers.IntegerField()
    cost_usd = serializers.DecimalField(
        max_digits=14,
        decimal_places=6,
        help_text="The cost that all runs have reported, also after the failure, while it is open.",
    )
    fingerprint = serializers.CharField(help_text="Equal for similar failures.")
    run = serializers.UUIDField(source="run_id", allow_null=True, help_text="The run that failed last.")
    pipeline_run = serializers.UUIDField(source="pipeline_run_id", allow_null=True)
    state = serializers.CharField(
        help_text="open, replayed, or closed (cancelled, reassigned, or handled by a person)."
    )
    escalation = serializers.UUIDField(
        source="escalation_id", allow_null=True, help_text="The activity that asks a person to handle it."
    )
    planning = serializers.UUIDField(
        source="planning_id", allow_null=True, help_text="The activity that woke a planner because of it."
    )
    created_at = serializers.DateTimeField()
    handled_at = serializers.DateTimeField(allow_null=True, help_text="When people were notified.")
    closed_at = serializers.DateTimeField(allow_null=True)
    closed_by = Computed(str | None, lambda letter: letter.closed_by or None)
    link = serializers.SerializerMethodField(help_text="The address of the activity or item.")

    def get_link(self, letter: DeadLetter) -> str:
        if letter.activity_id is None:
            return f"/api/v1/mailboxes/{quote(letter.mailbox_key, safe='')}/items/{letter.mailbox_item_id}/"
        return link_of(letter.activity_id)


class DismissedSerializer(serializers.Serializer[Any]):
    """The result of the action, or of its dry run."""

    count = serializers.IntegerField()
    skipped = serializers.IntegerField(
        help_text="Selected dead letters that were already handled, whose `dedup_key` other unfinished work has, or whose pipeline run is "
        "being replayed."
    )
    dry_run = serializers.BooleanField()


class ReplayedSerializer(DismissedSerializer):
    seconds = serializers.FloatField(help_text="Seconds until the last of them starts.")


@describe_resource(many="Dead letters, newest first", one="One dead letter")
class DeadLetterViewSet(DigestEtag, Resource):
    queryset = DeadLetter.objects
    serializer_class = DeadLetterSerializer
    filterset_class = DeadLetterFilter
    ordering_fields = ("created_at",)
    scope = "dead-letters"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("replay", "replay_one", "dismiss"), Role.OPERATOR
    )

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().select_related("activity")

    @posting("Replay dead letters", ReplaySerializer, ReplayedSerializer, filters=False)
    @action(detail=False, methods=["post"])
    def replay(self, request: Request) -> Response:
        """Each activity starts for the reasons of its last run, with its full number of attempts, and its pipeline run continues. A
        repeated replay starts nothing twice: current work is skipped."""
        body = read(ReplaySerializer, request.data)
        dry_run = body.get("dry_run", False)
        done = dead_letters.replay(
            self.tenant_id, self._select(body), actor=self.principal.actor, per_second=body.get("per_second"), dry_run=dry_run
        )  # fmt: skip
        return Response({**asdict(done), "dry_run": dry_run})

    @posting("Dismiss dead letters", DismissalSerializer, DismissedSerializer, filters=False)
    @action(detail=False, methods=["post"])
    def dismiss(self, request: Request) -> Response:
        """Cancels the activities, with their subtasks and the questions to people about them."""
        body = read(DismissalSerializer, request.data)
        dry_run = body.get("dry_run", False)
        done = dead_letters.dismiss(
            self.tenant_id, self._select(body), actor=self.principal.actor, reason=body["reason"], dry_run=dry_run
        )  # fmt: skip
        return Response({**asdict(done), "dry_run": dry_run})

    @command(
        "Replay one dead letter",
        EmptySerializer,
        DeadLetterSerializer,
        operation_id="dead_letters_replay_one",
    )
    @action(detail=True, methods=["post"], url_path="replay")
    def replay_one(self, request: Request, pk: UUID) -> Response:
        """409 if it was already handled, other unfinished work has its `dedup_key`, or its pipeline run is being replayed."""
        self.refuse_changed(DeadLetterSerializer(self.get_object()).data)
        chosen = DeadLetter.objects.for_tenant(self.tenant_id).filter(pk=pk)
        if not dead_letters.replay(self.tenant_id, chosen, actor=self.principal.actor).count:
            raise _why_not_replayed(self.get_object())
        return Response(DeadLetterSerializer(self.get_object()).data)

    def _select(self, body: Mapping[str, Any]) -> QuerySet[DeadLetter]:
        rows: QuerySet[DeadLetter] = DeadLetter.objects.for_tenant(self.tenant_id)
        if "ids" in body:
            return self._select_by_id(rows, body["ids"])
        return filter_by_body(DeadLetterFilter, rows, body["filter"], self.request)

    def _select_by_id(self, rows: QuerySet[DeadLetter], ids: Sequence[UUID]) -> QuerySet[DeadLetter]:
        chosen = rows.filter(pk__in=ids)
        known = set(chosen.values_list("pk", flat=True))
        if unknown := [index for index, letter_id in enumerate(ids) if letter_id not in known]:
            raise InvalidRequest(
                [(f"ids[{index}]", "is not a dead letter of this tenant") for index in unknown]
            )
        return chosen


def _why_not_replayed(letter: DeadLetter) -> TransitionRefused:
    if letter.state == DeadLetterState.OPEN:
        text = (
            "Other unfinished work has the dedup key of its activity, or the pipeline run is being replayed."
        )
        return TransitionRefused(letter.activity_id or letter.pk, "retry", letter.state, text)
    actor = f" by {letter.closed_by}" if letter.closed_by else ""
    if letter.activity is None:
        status, sentence = "not failed any more", "its item is no longer failed"
    else:
        status = letter.activity.status
        sentence = f"its activity is now {status}"
    text = f"This dead letter was already {letter.state}{actor}; {sentence}."
    return TransitionRefused(letter.activity_id or letter.pk, "retry", status, text)


class ExampleSerializer(ResponseSerializer):
    """The newest dead letter of a group."""

    id = serializers.UUIDField()
    activity = serializers.UUIDField(source="activity_id", allow_null=True)
    mailbox_item = serializers.UUIDField(source="mailbox_item_id", allow_null=True)
    name = serializers.CharField()
    error = serializers.DictField()


class GroupSerializer(serializers.Serializer[Any]):
    """Dead letters with the same fingerprint."""

    fingerprint = serializers.CharField()
    agent_role = serializers.CharField(help_text="Empty for items of mailboxes whose items clients take.")
    reason = serializers.CharField()
    count = serializers.IntegerField()
    open = serializers.IntegerField(help_text="How many of them are not handled yet.")
    first_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField()
    example = ExampleSerializer()


class DeadLetterGroups(ViewSetMixin, TenantView):
    """The groups count all dead letters that match the filters."""

    queryset = DeadLetter.objects
    filterset_class = DeadLetterFilter
    ordering = ("-count", "fingerprint", "reason")
    scope = "dead-letters"

    def get_queryset(self) -> QuerySet[Any]:
        return dead_letters.groups(super().get_queryset())

    @operation(
        "Dead letters grouped by fingerprint, most frequent first",
        answer=GroupSerializer(many=True),
        refusals=(400,),
    )
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        letters = DeadLetter.objects.for_tenant(self.tenant_id).select_related("activity")
        return self.get_paginated_response(
            [
                {**group._asdict(), "example": ExampleSerializer(letter).data}
                for group, letter in dead_letters.with_examples(page, letters)
            ]
        )
