"""The cost of the filters of a list depends on what a request uses, not on what it could use."""

from __future__ import annotations

from types import SimpleNamespace

from django.http import QueryDict

from activities.api.activities import ActivityFilter
from activities.models import Activity, BulkJob
from tenants.api.filters import StrictFilterBackend


def test_a_request_copies_only_the_filters_that_it_names() -> None:
    def filters_of(query: str) -> set[str]:
        return set(ActivityFilter(QueryDict(query), Activity.objects.none()).filters)

    assert filters_of("agent_role=copywriter&limit=5") == {"agent_role"}
    assert filters_of("") == set()
    assert "status" in ActivityFilter.base_filters  # from which the schema is made


def test_the_filter_class_of_a_view_that_names_columns_is_built_once() -> None:
    view = SimpleNamespace(filterset_fields=("status", "action"))
    first, second = (
        StrictFilterBackend().get_filterset_class(view, BulkJob.objects.none()) for _ in range(2)
    )
    assert first is second
    assert set(first.base_filters) == {"status", "action"}
