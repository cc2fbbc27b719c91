"""Dead letters that look alike, together, each group with its newest as an example."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities import deadletters
from activities.api.dead_letter_filter import DeadLetterFilter
from activities.models import DeadLetter
from agents.api.documentation import operation
from tenants.api.views import TenantView


class ExampleSerializer(serializers.Serializer[Any]):
    """The newest of a group."""

    id = serializers.UUIDField()
    activity = serializers.UUIDField(allow_null=True)
    mailbox_item = serializers.UUIDField(allow_null=True)
    name = serializers.CharField()
    error = serializers.DictField()


class GroupSerializer(serializers.Serializer[Any]):
    """Failures that look alike."""

    fingerprint = serializers.CharField()
    agent_role = serializers.CharField(
        help_text="Empty for items of mailboxes that consumers outside take from."
    )
    reason = serializers.CharField()
    count = serializers.IntegerField()
    open = serializers.IntegerField(help_text="How many of them nobody has dealt with yet.")
    first_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField()
    example = ExampleSerializer()


class DeadLetterGroups(ViewSetMixin, TenantView):
    """Counted over all letters that the filters leave."""

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
        "id": letter.pk, "activity": letter.activity_id, "mailbox_item": letter.mailbox_item_id, "name": letter.name, "error": letter.error
    }  # fmt: skip
