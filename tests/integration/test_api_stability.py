"""Clients can rely on the names of operations and of members, and removals are announced long before."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.urls import path
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from activities.models import Activity
from tenants.api.documentation import deprecated
from tenants.api.views import TenantView
from tests.fuzzing.snapshot import FILE, breaking_changes, snapshot_of
from tests.integration.test_api_openapi import schema

BEFORE = json.loads(FILE.read_text(encoding="utf-8"))
SINCE, SUNSET = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


def test_nothing_that_clients_rely_on_was_removed(database: None) -> None:
    """`python -m tests.fuzzing.snapshot` records an intended change."""
    assert list(breaking_changes(BEFORE, snapshot_of(schema()))) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda snapshot: snapshot.pop("activities_list"),
        lambda snapshot: snapshot["activities_list"].update(address="GET /api/v1/works/"),
        lambda snapshot: snapshot["activities_list"]["parameters"].pop("status"),
        lambda snapshot: snapshot["activities_list"]["parameters"].update(status=True),
        lambda snapshot: snapshot["templates_create"]["request"].pop("name"),
        lambda snapshot: snapshot["templates_create"]["request"].update(colour=True),
        lambda snapshot: snapshot["templates_create"]["answers"]["201"].remove("key"),
        lambda snapshot: snapshot["templates_create"]["answers"].pop("201"),
    ],
)
def test_a_breaking_change_is_noticed(change: Any) -> None:
    now = copy.deepcopy(BEFORE)

    change(now)

    assert list(breaking_changes(BEFORE, now))


def test_additions_are_not_breaking_changes() -> None:
    now = copy.deepcopy(BEFORE)
    now["works_list"] = now["activities_list"]
    now["templates_create"]["request"]["colour"] = False
    now["templates_create"]["answers"]["201"].append("colour")

    assert list(breaking_changes(BEFORE, now)) == []


class OldView(TenantView):
    queryset = Activity.objects
    pagination_class = None

    @deprecated(since=SINCE, sunset=SUNSET, instead="/api/v1/docs/#new")
    def get(self, request: Request) -> Response:
        if "broken" in request.query_params:
            raise NotFound
        return Response({"is": "old"})


urlpatterns = [path("api/old/", OldView.as_view())]


@pytest.mark.urls("tests.integration.test_api_stability")
@pytest.mark.parametrize("query", ["", "?broken=1"])
def test_a_deprecated_operation_names_the_day_of_its_removal(api: Any, tenant: Any, query: str) -> None:
    answer = api().get(f"/api/old/{query}")

    assert answer.status_code == (404 if query else 200)
    assert answer["Deprecation"] == f"@{int(SINCE.timestamp())}"
    assert answer["Sunset"] == "Tue, 01 Dec 2026 00:00:00 GMT"
    assert answer["Link"] == '</api/v1/docs/#new>; rel="deprecation"'


def test_a_deprecation_with_a_short_notice_is_refused() -> None:
    with pytest.raises(ValueError, match="less than"):
        deprecated(since=SINCE, sunset=SINCE + timedelta(days=30))
    with pytest.raises(ValueError, match="offset"):
        deprecated(since=SINCE.replace(tzinfo=None), sunset=SUNSET)
