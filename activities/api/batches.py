"""Batches of model providers and their items, for one tenant."""

from __future__ import annotations

from typing import Any, ClassVar

import django_filters
from django.db.models import Count, QuerySet
from rest_framework import serializers

from activities import provider_batches
from activities.models import BatchItem, ProviderBatch
from activities.models.batch import ItemState
from agents.api.role_names import RoleFilter
from tenants.api.filters import StrictFilterSet
from tenants.api.serializers import Computed, ResponseSerializer
from tenants.api.views import ListResource, Resource, describe_resource
from tenants.models import Role


class BatchSerializer(ResponseSerializer):
    """A batch of one provider and model. Its items were chosen before it was sent."""

    id = serializers.UUIDField()
    provider = Computed(
        str,
        lambda batch: provider_batches.provider_name(batch.provider),
        help_text="The adapter, and the provider's host and port.",
    )
    model = serializers.CharField()
    state = serializers.CharField(help_text="bound, sending, sent, ended or refused")
    size = serializers.IntegerField(help_text="Number of its items.")
    items = Computed(
        dict[str, int], lambda batch: batch.item_counts, help_text="Number of its items, by state."
    )
    sendings = serializers.IntegerField(
        help_text="How often it was sent. It is sent again if the provider's answer was lost and the provider does not have the batch."
    )
    external_id = serializers.CharField(help_text="The provider's id of the batch.")
    error = serializers.DictField(allow_null=True)
    created_at = serializers.DateTimeField()
    sent_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class BatchItemSerializer(ResponseSerializer):
    """A run that waits for a batch, or has waited for one."""

    id = serializers.UUIDField(help_text="The `custom_id` of its request.")
    activity = serializers.UUIDField(source="activity_id")
    run = serializers.UUIDField(source="run_id")
    batch = serializers.UUIDField(source="batch_id", allow_null=True)
    agent_role = serializers.CharField()
    provider = Computed(str, lambda item: provider_batches.provider_name(item.provider))
    model = serializers.CharField()
    state = serializers.CharField(help_text="collected, bound, answered, failed, moved or dropped")
    leave_at = serializers.DateTimeField(help_text="When it moves to the real-time route at the latest.")
    created_at = serializers.DateTimeField()
    closed_at = serializers.DateTimeField(allow_null=True)


class BatchItemFilter(StrictFilterSet):
    state = django_filters.ChoiceFilter(choices=ItemState.choices)
    batch = django_filters.UUIDFilter(field_name="batch_id")
    activity = django_filters.UUIDFilter(field_name="activity_id")
    agent_role = RoleFilter()


@describe_resource(many="Batches of model providers, newest first", one="One batch")
class BatchViewSet(Resource):
    queryset = ProviderBatch.objects
    serializer_class = BatchSerializer
    filterset_fields = ("state", "model")
    ordering_fields = ("created_at",)
    scope = "queues"
    required_role: ClassVar[dict[str, Role]] = {"list": Role.OPERATOR, "retrieve": Role.OPERATOR}

    def show(self, rows: Any, *, many: bool = False) -> Any:
        """Add the number of items by state, with one query for all batches."""
        batches = {batch.pk: batch for batch in (rows if many else [rows])}
        items = BatchItem.objects.for_tenant(self.tenant_id).filter(batch_id__in=batches)
        for batch in batches.values():
            batch.item_counts = dict.fromkeys(ItemState.values, 0)
        for batch_id, state, number in (
            items.order_by().values_list("batch_id", "state").annotate(Count("id"))
        ):
            batches[batch_id].item_counts[state] = number
        return super().show(rows, many=many)


@describe_resource(many="Work in batches, newest first")
class BatchItemList(ListResource):
    queryset = BatchItem.objects
    serializer_class = BatchItemSerializer
    filterset_class = BatchItemFilter
    ordering_fields = ("created_at",)
    scope = "queues"
    required_role: ClassVar[dict[str, Role]] = {"list": Role.OPERATOR}

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().defer("body", "begun")
