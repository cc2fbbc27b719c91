"""Words are found in all that an activity says: its name and description, what its agent is given, and what it failed with."""

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
from tests.plans import asked_of, read_from_end_to_end, rows_read

pytestmark = pytest.mark.usefixtures("engine")

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def made(tenant: Tenant, *names: str, **fields: Any) -> None:
    """Each a second after the one before."""
    with tenant_scope(tenant.pk):
        Activity.objects.bulk_create(
            Activity(
                tenant=tenant, name=name, assignee_type="agent", agent_role="qa",
                **{"created_at": NOON + timedelta(seconds=number), **fields},
            )
            for number, name in enumerate(names)
        )  # fmt: skip


def found(client: Any, search: str, **query: str) -> list[str]:
    answer = client.get(ACTIVITIES, {"search": search, **query})
    assert answer.status_code == 200, answer.content
    return [one["name"] for one in answer.json()["results"]]


@pytest.fixture
def some(tenant: Tenant) -> None:
    made(tenant, "Params", params={"order": {"number": 4711}, "shop": ["Bremen"]})
    made(tenant, "Metadata", metadata={"ticket": "ABC-7", "note": 'the "old" one\nof 50% off'})
    made(
        tenant,
        "Error",
        status="failed",
        finished_at=NOON,
        error={"code": "agent_error", "message": "Kontingent erschöpft"},
    )
    made(tenant, "Text", description="Bremen, in the morning")


@in_one_test(
    ("search", "names"),
    [
        ("4711", ["Params"]), ("order", ["Params"]), ("abc-7", ["Metadata"]), ("ERSCHÖPFT", ["Error"]), ("agent_error", ["Error"]),
        ("bremen", ["Params", "Text"]), ("bremen 4711", ["Params"]), ("bremen abc-7", []), ("nothing-has-this", []),
        ("50%", ["Metadata"]), ("4%1", []), (",", ["Error", "Metadata", "Params", "Text"]), ("47_1", []), ('"old\\"', []),
    ],
)  # fmt: skip
def test_a_search_finds_words_in_params_metadata_and_errors(
    api: Any, some: None, search: str, names: list[str]
) -> None:
    assert sorted(found(api(), search)) == names


def test_a_bulk_action_finds_what_the_list_finds(api: Any, some: None) -> None:
    body = {"action": "priority", "priority": "urgent", "filter": {"search": "4711"}, "dry_run": True}

    counted = api("operator").post(f"{ACTIVITIES}bulk/", body).json()

    assert (counted["count"], [one["name"] for one in counted["sample"]]) == (1, ["Params"])


def test_nothing_of_another_tenant_is_found(api: Any, some: None, other_tenant: Tenant) -> None:
    made(
        other_tenant,
        "Theirs",
        params={"order": 4711},
        error={"message": "Kontingent"},
        metadata={"ticket": "ABC-7"},
    )

    for word in ("4711", "Kontingent", "ABC-7"):
        assert "Theirs" not in found(api(), word)
        assert found(api(tenant=other_tenant), word) == ["Theirs"]


def test_a_search_looks_at_the_newest_and_further_back_where_it_is_told_to(
    api: Any, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectors, "SEARCHED", 3)
    made(tenant, *"abcdefg", params={"order": 4711})

    assert found(api(), "4711") == ["g", "f", "e"]
    assert found(api(), "4711", created_before=(NOON + timedelta(seconds=3)).isoformat()) == ["c", "b", "a"]


@pytest.mark.parametrize(
    "query", ["?search=no-such-word", "?search=no-such-word&status=failed&agent_role=qa"]
)
def test_a_search_reads_by_index_no_more_than_its_bound(
    api: Any, tenant: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """However many activities there are, of the tenant and of others, and when nothing is found."""
    bound = 100
    monkeypatch.setattr(selectors, "SEARCHED", bound)
    for each in (tenant, other_tenant):
        made(each, *map(str, range(3_000)), params={"order": 4711})
    with connections["owner"].cursor() as cursor:
        cursor.execute("ANALYZE activities_activity")

    with asked_of(APP) as asked:
        assert api().get(f"{ACTIVITIES}{query}").json()["results"] == []

    (searched,) = [each for each in asked if "no-such-word" in str(each)]
    with tenant_scope(tenant.pk):
        assert read_from_end_to_end(*searched, more_than=0) == []
        assert rows_read(*searched) <= 2 * (bound + 1)


def test_a_search_that_is_too_long_or_holds_what_no_text_holds_is_refused(api: Any) -> None:
    problem(api().get(f"{ACTIVITIES}?search={'a' * 201}"), 400, "validation_failed")
    problem(api().get(f"{ACTIVITIES}?search=a%00b"), 400, "validation_failed")
