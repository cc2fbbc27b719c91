"""Dead letters: work that failed for good, listed, replayed or dismissed, one by one or many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import deadletters
from activities.api.dead_letter_bodies import DismissalSerializer, ReplaySerializer
from activities.api.dead_letter_filter import DeadLetterFilter, conditions_of
from activities.api.dead_letters_shown import DeadLetterSerializer, DismissedSerializer, ReplayedSerializer
from activities.api.decisions import EmptySerializer
from activities.exceptions import TransitionRefused
from activities.models import DeadLetter
from agents.api.digests import Digested
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import read
from tenants.api.views import TenantViewSet
from tenants.models import Role


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
        "Try one failure again",
        operation_id="dead_letters_replay_one",
        request=EmptySerializer,
        answer=DeadLetterSerializer,
        refusals=(404,),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )
    @action(detail=True, methods=["post"], url_path="replay")
    def replay_one(self, request: Request, pk: UUID) -> Response:
        """409 when it was dealt with before."""
        read(EmptySerializer, request.data)
        self.refuse_changed(DeadLetterSerializer(self.get_object()).data)
        chosen = DeadLetter.objects.for_tenant(self.tenant_id).filter(pk=pk)
        if not deadletters.replay(self.tenant_id, chosen, actor=self.principal.actor).count:
            raise _dealt_with(self.get_object())
        return Response(DeadLetterSerializer(self.get_object()).data)

    def _chosen(self, body: Mapping[str, Any]) -> QuerySet[DeadLetter]:
        rows: QuerySet[DeadLetter] = DeadLetter.objects.for_tenant(self.tenant_id)
        if "ids" in body:
            return rows.filter(pk__in=body["ids"])
        return rows.filter(**conditions_of(body["filter"]))


def _dealt_with(letter: DeadLetter) -> TransitionRefused:
    who = f" by {letter.closed_by}" if letter.closed_by else ""
    now = letter.activity.status if letter.activity else "not failed any more"
    said = f"This failure is {letter.state}{who}; what failed is {now}."
    return TransitionRefused(letter.activity_id or letter.pk, "retry", now, said)
