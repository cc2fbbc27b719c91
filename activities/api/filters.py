"""By what lists of activities can be narrowed."""

from __future__ import annotations

from typing import Any

import django_filters

from activities.models import Activity
from activities.models.activity import AssigneeType
from activities.states import Status


class StatusFilter(django_filters.BaseInFilter, django_filters.ChoiceFilter):
    """One status, or several with commas."""


class ActivityFilter(django_filters.FilterSet):
    status = StatusFilter(
        choices=[(s.value, s.value) for s in Status], help_text="One status, or several with commas."
    )
    agent_role = django_filters.CharFilter()
    human_role = django_filters.CharFilter()
    assignee_type = django_filters.ChoiceFilter(choices=AssigneeType.choices)
    priority = django_filters.NumberFilter()
    pipeline_run = django_filters.UUIDFilter(field_name="pipeline_run_id")
    step = django_filters.CharFilter()
    branch = django_filters.NumberFilter()
    parent = django_filters.UUIDFilter(field_name="parent_id")
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    schedule = django_filters.UUIDFilter(field_name="schedule_id")
    dedup_key = django_filters.CharFilter()
    created_after = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Activity
        fields: tuple[str, ...] = ()


class InboxFilter(django_filters.FilterSet):
    human_role = django_filters.CharFilter()
    pipeline_run = django_filters.UUIDFilter(field_name="pipeline_run_id")
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    gate = django_filters.BooleanFilter(
        field_name="is_approval_gate", help_text="Only decisions, or only tasks."
    )
    mine = django_filters.BooleanFilter(
        method="of_caller", help_text="Only what is asked of the caller's own human roles."
    )

    class Meta:
        model = Activity
        fields: tuple[str, ...] = ()

    def of_caller(self, rows: Any, name: str, value: bool) -> Any:
        roles = self.request.user.human_roles
        return rows.filter(human_role__in=roles) if value and roles else rows
