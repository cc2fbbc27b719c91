"""What approvals can be narrowed by."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import django_filters
from django.db.models import Exists, OuterRef, QuerySet

from activities.approvals.reading import STATUSES
from activities.models import Activity, Approval, ApprovalLink


class ApprovalFilter(django_filters.FilterSet):
    type = django_filters.CharFilter()
    status = django_filters.ChoiceFilter(
        method="with_status", choices=[(status, status) for status in STATUSES]
    )
    human_role = django_filters.CharFilter(method="asked_of")
    activity = django_filters.UUIDFilter(method="about", help_text="Only approvals about this activity.")

    class Meta:
        model = Approval
        fields: tuple[str, ...] = ()

    def with_status(self, rows: Any, name: str, value: str) -> Any:
        return rows.filter(Exists(_item(status__in=STATUSES[value])))

    def asked_of(self, rows: Any, name: str, value: str) -> Any:
        return rows.filter(Exists(_item(human_role=value)))

    def about(self, rows: Any, name: str, value: UUID) -> Any:
        links = ApprovalLink.objects.filter(tenant_id=OuterRef("tenant_id"), approval_id=OuterRef("pk"))
        return rows.filter(Exists(links.filter(activity_id=value)))


def _item(**conditions: Any) -> QuerySet[Activity]:
    """The activity that an approval of an outer query extends."""
    return Activity.objects.filter(tenant_id=OuterRef("tenant_id"), pk=OuterRef("pk"), **conditions)
