"""What dead letters can be narrowed by, in an address and in a body."""

from __future__ import annotations

import django_filters

from activities.models import DeadLetter
from activities.models.dead_letter import BurialReason, DeadLetterState


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
CONDITIONS = {
    name: f"{found.field_name}__{found.lookup_expr}" for name, found in DeadLetterFilter.base_filters.items()
}
