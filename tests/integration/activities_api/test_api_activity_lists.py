"""Activities are found, narrowed and paged, by those who may see them."""

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
from tests.api_objects import a_deliverable
from tests.integration.activities_api.submitted import ACTIVITIES, body, faults
from tests.integration.test_api_access import problem

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def some(api, tenant) -> list[dict[str, Any]]:
    """Four activities: two of agents, one of them put off, and two of people, one of them cancelled."""
    client = api("operator")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    given = [
        body(name="Alpha", priority=5, deliverable=a_deliverable(tenant)),
        body(name="Beta", agent_role="seo", not_before=later, dedup_key="b"),
        {"name": "Gamma", "human_role": "editor", "description": "about alpha"},
        {"name": "Delta", "human_role": "lawyer"},
    ]
    made = [client.post(ACTIVITIES, one).json() for one in given]
    client.post(f"{made[3]['link']}cancel/")
    return made


def names(client: Any, **query: Any) -> list[str]:
    found = client.get(ACTIVITIES, query)
    assert found.status_code == 200, found.content
    return [item["name"] for item in found.json()["results"]]


def test_lists_begin_with_the_newest(api, some):
    assert names(api()) == ["Delta", "Gamma", "Beta", "Alpha"]


def test_a_list_is_narrowed_and_ordered_as_asked(api, some):
    client = api()
    for query, found in (
        ({"status": "cancelled"}, ["Delta"]), ({"status": "created,cancelled"}, ["Delta", "Gamma", "Beta", "Alpha"]),
        ({"agent_role": "seo"}, ["Beta"]), ({"human_role": "editor"}, ["Gamma"]), ({"assignee_type": "agent"}, ["Beta", "Alpha"]),
        ({"priority": "5"}, ["Alpha"]), ({"dedup_key": "b"}, ["Beta"]), ({"search": "alpha"}, ["Gamma", "Alpha"]),
        ({"ordering": "created_at"}, ["Alpha", "Beta", "Gamma", "Delta"]),
        ({"ordering": "-name", "assignee_type": "agent"}, ["Beta", "Alpha"]),
        ({"ordering": "priority", "limit": 1}, ["Alpha"]), ({"step": "x"}, []), ({"pipeline_run": str(uuid4())}, []),
        ({"parent": str(uuid4())}, []), ({"created_before": "2020-01-01T00:00:00Z"}, []),
        ({"created_after": "2020-01-01T00:00:00Z", "status": "created"}, ["Gamma", "Beta", "Alpha"]),
    ):  # fmt: skip
        assert names(client, **query) == found, query


def test_a_deliverable_narrows_a_list(api, some):
    assert names(api(), deliverable=some[0]["deliverable"]) == ["Alpha"]


def test_an_unknown_or_malformed_filter_is_400(api, some):
    client = api()
    for query in (
        "colour=red", "status=odd", "status=created,odd", "priority=high", "pipeline_run=5", "created_after=soon", "ordering=params",
        "limit=0",
    ):  # fmt: skip
        assert query.partition("=")[0] in faults(client.get(f"{ACTIVITIES}?{query}")), query


def test_pages_follow_each_other_without_gap_or_repetition(api, some):
    client, seen, address = api(), [], f"{ACTIVITIES}?limit=3&ordering=-priority"

    while address:
        page = client.get(address).json()
        seen += [item["name"] for item in page["results"]]
        address = page["next"]

    assert sorted(seen) == ["Alpha", "Beta", "Delta", "Gamma"]


def test_each_item_says_why_it_waits(api, some):
    reasons = {item["name"]: item["waiting_for"] for item in api().get(ACTIVITIES).json()["results"]}

    assert {name: reason and reason["code"] for name, reason in reasons.items()} == {
        "Alpha": "queued", "Beta": "not_before", "Gamma": "human", "Delta": None,
    }  # fmt: skip


def test_a_page_costs_the_same_whatever_is_on_it(api, tenant):
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


def test_an_id_that_is_none_is_not_there(api, tenant):
    problem(api().get(f"{ACTIVITIES}no-such-id/"), 404, "not_found")


def test_reading_needs_a_viewer_and_submitting_an_operator(api, tenant):
    assert api("viewer").get(ACTIVITIES).status_code == 200
    assert problem(api("reviewer").post(ACTIVITIES, body()), 403, "forbidden")["required_role"] == "operator"
    assert api("operator").post(ACTIVITIES, body()).status_code == 201


def test_runs_of_an_activity_are_listed_newest_first(api, tenant):
    made = api().post(ACTIVITIES, body()).json()
    with tenant_scope(tenant.pk):
        for number in (1, 2):
            ActivityRun.objects.create(
                tenant=tenant, activity_id=made["id"], status="failed", fence=number, attempt=number, wake_reason="new_task",
                grant="g", timeout_seconds=60,
            )  # fmt: skip

    found = api("viewer").get(f"{made['link']}runs/").json()

    assert [run["attempt"] for run in found["results"]] == [2, 1]
    assert found["results"][0]["activity"] == made["id"]
    assert api().get(f"{made['link']}runs/?limit=1").json()["next"]
