"""A request to a list costs what it asks for, not what could be asked."""

from __future__ import annotations

from types import SimpleNamespace

from django.http import QueryDict

from activities.api.activities import ActivityFilter
from activities.models import Activity, BulkJob
from tenants.api.filters import StrictFilterBackend


def test_a_request_copies_only_the_filters_that_it_names() -> None:
    asked = ActivityFilter(QueryDict("agent_role=copywriter&limit=5"), Activity.objects.none())
    assert set(asked.filters) == {"agent_role"}
    assert set(ActivityFilter(QueryDict(), Activity.objects.none()).filters) == set()
    assert "status" in ActivityFilter.base_filters  # what the schema shows


def test_the_filters_of_a_view_that_names_columns_are_made_once() -> None:
    view = SimpleNamespace(filterset_fields=("status", "action"))
    made = [StrictFilterBackend().get_filterset_class(view, BulkJob.objects.none()) for _ in range(2)]
    assert made[0] is made[1]
    assert set(made[0].base_filters) == {"status", "action"}
