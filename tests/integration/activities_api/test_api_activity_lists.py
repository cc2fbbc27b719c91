"""Lists of activities over the API: filters, order, pages and permissions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from activities import wait_reasons
from activities.models import ActivityRun
from tenants.context import APP, tenant_scope
from tests.answers import problem
from tests.api_objects import create_deliverable
from tests.cases import in_one_test
from tests.integration.activities_api.submitted import ACTIVITIES, body, faults

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def activities(api, tenant) -> list[dict[str, Any]]:
    """Four activities: two of agents, one of them for later, and two of people, one of them cancelled."""
    client = api("operator")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    bodies = [
        body(name="Alpha", priority=5, deliverable=create_deliverable(tenant)),
        body(name="Beta", agent_role="seo", not_before=later, dedup_key="b"),
        {"name": "Gamma", "human_role": "editor", "description": "about alpha"},
        {"name": "Delta", "human_role": "lawyer"},
    ]
    created = [client.post(ACTIVITIES, one).json() for one in bodies]
    client.post(f"{created[3]['link']}cancel/")
    return created


def names(client: Any, **query: Any) -> list[str]:
    response = client.get(ACTIVITIES, query)
    assert response.status_code == 200, response.content
    return [item["name"] for item in response.json()["results"]]


def test_lists_begin_with_the_newest(api, activities):
    assert names(api()) == ["Delta", "Gamma", "Beta", "Alpha"]


def test_lists_can_be_filtered_and_ordered(api, activities):
    client = api()
    for query, expected in (
        ({"status": "cancelled"}, ["Delta"]), ({"status": "created,cancelled"}, ["Delta", "Gamma", "Beta", "Alpha"]),
        ({"agent_role": "seo"}, ["Beta"]), ({"human_role": "editor"}, ["Gamma"]), ({"assignee_type": "agent"}, ["Beta", "Alpha"]),
        ({"priority": "5"}, ["Alpha"]), ({"dedup_key": "b"}, ["Beta"]), ({"search": "alpha"}, ["Gamma", "Alpha"]),
        ({"ordering": "created_at"}, ["Alpha", "Beta", "Gamma", "Delta"]),
        ({"ordering": "-name", "assignee_type": "agent"}, ["Beta", "Alpha"]),
        ({"ordering": "priority", "limit": 1}, ["Alpha"]), ({"step": "x"}, []), ({"pipeline_run": str(uuid4())}, []),
        ({"deliverable": activities[0]["deliverable"]}, ["Alpha"]),
        ({"parent": str(uuid4())}, []), ({"created_before": "2020-01-01T00:00:00Z"}, []),
        ({"created_after": "2020-01-01T00:00:00Z", "status": "created"}, ["Gamma", "Beta", "Alpha"]),
    ):  # fmt: skip
        assert names(client, **query) == expected, query


@in_one_test("offset", ["+02:00", "%2B02:00", "%2B0200"])
def test_the_plus_of_an_offset_in_a_filter_may_be_unencoded(api, activities, offset):
    client = api()

    for time, count in (
        ("2020-01-01T00:00:00", 4),
        ("2020-01-01T00:00", 4),
        ("2999-01-01T00:00:00.123456", 0),
    ):
        answer = client.get(f"{ACTIVITIES}?created_after={time}{offset}")
        assert len(answer.json()["results"]) == count, answer.content


def test_an_unknown_or_malformed_filter_is_400(api, activities):
    client = api()
    for query in (
        "colour=red", "status=odd", "status=created,odd", "priority=high", "pipeline_run=5", "created_after=soon", "ordering=params",
        "limit=0", "status=created,", "status=,", f"ids={uuid4()},",
    ):  # fmt: skip
        assert query.partition("=")[0] in faults(client.get(f"{ACTIVITIES}?{query}")), query


def test_pages_follow_each_other_without_gap_or_repetition(api, activities):
    client, seen, address = api(), [], f"{ACTIVITIES}?limit=3&ordering=-priority"

    while address:
        page = client.get(address).json()
        seen += [item["name"] for item in page["results"]]
        address = page["next"]

    assert sorted(seen) == ["Alpha", "Beta", "Delta", "Gamma"]


def test_each_item_says_why_it_waits(api, activities):
    reasons = {item["name"]: item["waiting_for"] for item in api().get(ACTIVITIES).json()["results"]}

    assert {name: reason and reason["code"] for name, reason in reasons.items()} == {
        "Alpha": "queued", "Beta": "not_before", "Gamma": "human", "Delta": None,
    }  # fmt: skip


def test_a_page_takes_the_same_number_of_statements_whatever_is_on_it(api, tenant):
    client = api()

    def statements() -> int:
        wait_reasons._recent.clear()
        with CaptureQueriesContext(connections[APP]) as captured:
            assert client.get(ACTIVITIES).status_code == 200
        return len(captured)

    client.post(ACTIVITIES, [body(), {"name": "x", "human_role": "editor"}])
    client.get(ACTIVITIES)
    few = statements()
    client.post(ACTIVITIES, [body(agent_role=role) for role in ("seo", "qa", "dev") for _ in range(10)])

    assert statements() == few <= 6


def test_a_malformed_id_is_not_found(api, tenant):
    problem(api().get(f"{ACTIVITIES}no-such-id/"), 404, "not_found")


def test_reading_needs_a_viewer_and_submitting_an_operator(api, tenant):
    assert api("viewer").get(ACTIVITIES).status_code == 200
    assert problem(api("reviewer").post(ACTIVITIES, body()), 403, "forbidden")["required_role"] == "operator"
    assert api("operator").post(ACTIVITIES, body()).status_code == 201


def test_runs_of_an_activity_are_listed_newest_first(api, tenant):
    created = api().post(ACTIVITIES, body()).json()
    with tenant_scope(tenant.pk):
        for number in (1, 2):
            ActivityRun.objects.create(
                tenant=tenant, activity_id=created["id"], status="failed", fence=number, attempt=number, wake_reason="new_task",
                grant="g", timeout_seconds=60,
            )  # fmt: skip

    runs = api("viewer").get(f"{created['link']}runs/").json()

    assert [run["attempt"] for run in runs["results"]] == [2, 1]
    assert runs["results"][0]["activity"] == created["id"]
    assert api().get(f"{created['link']}runs/?limit=1").json()["next"]
