"""Search looks for words in an activity's name, description, parameters, metadata and error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections

from activities import selectors
from activities.models import Activity
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.integration.activities_api.submitted import ACTIVITIES
from tests.plans import recorded_statements, rows_read, sequential_scans

pytestmark = pytest.mark.usefixtures("engine")

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def create(tenant: Tenant, *names: str, **fields: Any) -> None:
    """Create an activity for each name, each a second after the one before."""
    with tenant_scope(tenant.pk):
        Activity.objects.bulk_create(
            Activity(
                tenant=tenant, name=name, assignee_type="agent", agent_role="qa",
                **{"created_at": NOON + timedelta(seconds=number), **fields},
            )
            for number, name in enumerate(names)
        )  # fmt: skip


def search_names(client: Any, search: str, **query: str) -> list[str]:
    response = client.get(ACTIVITIES, {"search": search, **query})
    assert response.status_code == 200, response.content
    return [one["name"] for one in response.json()["results"]]


@pytest.fixture
def activities(tenant: Tenant) -> None:
    create(tenant, "Params", params={"order": {"number": 4711}, "shop": ["Bremen"]})
    create(tenant, "Metadata", metadata={"ticket": "ABC-7", "note": 'the "old" one\nof 50% off'})
    create(
        tenant,
        "Error",
        status="failed",
        finished_at=NOON,
        error={"code": "agent_error", "message": "Kontingent erschöpft"},
    )
    create(tenant, "Text", description="Bremen, in the morning")


@in_one_test(
    ("search", "names"),
    [
        ("4711", ["Params"]), ("order", ["Params"]), ("abc-7", ["Metadata"]), ("ERSCHÖPFT", ["Error"]), ("agent_error", ["Error"]),
        ("bremen", ["Params", "Text"]), ("bremen 4711", ["Params"]), ("bremen abc-7", []), ("nothing-has-this", []),
        ("50%", ["Metadata"]), ("4%1", []), (",", ["Error", "Metadata", "Params", "Text"]), ("47_1", []), ('"old\\"', []),
    ],
)  # fmt: skip
def test_a_search_finds_words_in_params_metadata_and_errors(
    api: Any, activities: None, search: str, names: list[str]
) -> None:
    assert sorted(search_names(api(), search)) == names


def test_a_bulk_action_takes_the_same_search_as_the_list(api: Any, activities: None) -> None:
    body = {"action": "priority", "priority": "urgent", "filter": {"search": "4711"}, "dry_run": True}

    counted = api("operator").post(f"{ACTIVITIES}bulk/", body).json()

    assert (counted["count"], [one["name"] for one in counted["sample"]]) == (1, ["Params"])


def test_nothing_of_another_tenant_is_found(api: Any, activities: None, other_tenant: Tenant) -> None:
    create(
        other_tenant,
        "Theirs",
        params={"order": 4711},
        error={"message": "Kontingent"},
        metadata={"ticket": "ABC-7"},
    )

    for word in ("4711", "Kontingent", "ABC-7"):
        assert "Theirs" not in search_names(api(), word)
        assert search_names(api(tenant=other_tenant), word) == ["Theirs"]


def test_a_search_covers_the_newest_activities_before_a_given_date(
    api: Any, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectors, "SEARCHED", 3)
    create(tenant, *"abcdefg", params={"order": 4711})

    assert search_names(api(), "4711") == ["g", "f", "e"]
    assert search_names(api(), "4711", created_before=(NOON + timedelta(seconds=3)).isoformat()) == [
        "c",
        "b",
        "a",
    ]


def test_a_search_reads_by_index_no_more_than_its_bound(
    api: Any, tenant: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds however many activities there are, of the tenant and of others, and when nothing matches."""
    bound = 100
    monkeypatch.setattr(selectors, "SEARCHED", bound)
    for each in (tenant, other_tenant):
        create(each, *map(str, range(10 * bound)), params={"order": 4711})
    with connections["owner"].cursor() as cursor:
        cursor.execute("ANALYZE activities_activity")

    for query in ("?search=no-such-word", "?search=no-such-word&status=failed&agent_role=qa"):
        with recorded_statements(APP) as queries:
            assert api().get(f"{ACTIVITIES}{query}").json()["results"] == []

        (query_of_search,) = [each for each in queries if "no-such-word" in str(each)]
        with tenant_scope(tenant.pk):
            assert sequential_scans(*query_of_search, more_than=0) == [], query
            assert rows_read(*query_of_search) <= 2 * (bound + 1), query


def test_a_search_that_is_too_long_or_contains_nul_is_refused(api: Any) -> None:
    problem(api().get(f"{ACTIVITIES}?search={'a' * 201}"), 400, "validation_failed")
    problem(api().get(f"{ACTIVITIES}?search=a%00b"), 400, "validation_failed")
