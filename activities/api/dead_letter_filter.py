"""What dead letters can be narrowed by, in an address and in a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from django.db.models import QuerySet

from activities.models import DeadLetter
from activities.models.dead_letter import BurialReason, DeadLetterState, LetterKind

IS_NULL = {
    LetterKind.ACTIVITY.value: False,
    LetterKind.MAILBOX_ITEM.value: True,
}  # the activity of such a letter


class DeadLetterFilter(django_filters.FilterSet):
    kind = django_filters.ChoiceFilter(choices=LetterKind.choices, method="of_kind")
    agent_role = django_filters.CharFilter()
    mailbox = django_filters.CharFilter(field_name="mailbox_key")
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

    def of_kind(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        return rows.filter(activity_id__isnull=IS_NULL[value])


_CONDITIONS = {
    name: f"{found.field_name}__{found.lookup_expr}" for name, found in DeadLetterFilter.base_filters.items()
}


def conditions_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same conditions from a body, whose values are checked and converted already."""
    plain = {_CONDITIONS[name]: value for name, value in given.items() if name != "kind"}
    return plain | ({"activity_id__isnull": IS_NULL[given["kind"]]} if "kind" in given else {})
