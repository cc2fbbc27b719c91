"""Lists have pages that do not shift, and refuse parameters that they do not know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connections

from activities.models import Activity
from tenants.api.pagination import Cursor
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tests.answers import problem
from tests.cases import in_one_test

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def write(tenant):
    def create_notes(*names: str, **fields) -> None:
        with tenant_scope(tenant.pk):
            Activity.objects.bulk_create(
                Activity(
                    tenant=tenant,
                    name=name,
                    assignee_type="human",
                    human_role="editor",
                    **{"created_at": NOON + timedelta(seconds=number), **fields},
                )
                for number, name in enumerate(names)
            )

    return create_notes


def names(response) -> list[str]:
    assert response.status_code == 200, response.content
    return [note["name"] for note in response.json()["results"]]


def pages(client, path: str, link: str = "next") -> list[list[str]]:
    """Return the names of every page, following the links."""
    names_by_page = []
    while path:
        response = client.get(path)
        names_by_page.append(names(response))
        path = response.json()[link]
    return names_by_page


def test_a_list_shows_the_newest_first_fifty_at_a_time(api, write):
    write(*(f"note {number:02}" for number in range(60)))

    first = api().get(NOTES)

    assert names(first) == [f"note {number:02}" for number in range(59, 9, -1)]
    assert set(first.json()) == {"next", "previous", "results"}
    assert first.json()["previous"] is None


def test_following_next_shows_every_row_once_and_previous_leads_back(api, write):
    write(*"abcdefg")
    client = api()

    forward = pages(client, f"{NOTES}?limit=3")
    last = client.get(f"{NOTES}?limit=3")
    while following := last.json()["next"]:
        last = client.get(following)

    assert forward == [["g", "f", "e"], ["d", "c", "b"], ["a"]]
    assert pages(client, last.json()["previous"], "previous") == [["d", "c", "b"], ["g", "f", "e"]]


def test_links_are_absolute_and_keep_the_other_parameters(api, write):
    write(*"abcd")

    following = urlsplit(api().get(f"{NOTES}?limit=2&ordering=name").json()["next"])

    assert (following.scheme, following.netloc, following.path) == ("http", "testserver", NOTES)
    assert {name: parse_qs(following.query)[name] for name in ("limit", "ordering")} == {
        "limit": ["2"],
        "ordering": ["name"],
    }


def test_added_and_removed_rows_neither_repeat_nor_hide_others(api, tenant, write):
    write(*"abcdef")
    client = api()
    first = client.get(f"{NOTES}?limit=2")

    write("newer", created_at=NOON + timedelta(days=1))
    with tenant_scope(tenant.pk):
        Activity.objects.filter(name="f")._raw_delete("default")

    assert names(first) == ["f", "e"]
    assert names(client.get(first.json()["next"])) == ["d", "c"]


def test_hundreds_of_rows_with_the_same_time_are_each_listed_once(api, write):
    write(*(f"n{number}" for number in range(450)), created_at=NOON)

    all_names = [name for page in pages(api(), f"{NOTES}?limit=200") for name in page]

    assert len(all_names) == 450
    assert len(set(all_names)) == 450


@pytest.mark.parametrize("ordering", ["started_at", "-started_at"])
def test_rows_without_a_value_have_a_place_in_an_ordering(api, write, ordering):
    write("a", "b", "c", started_at=None)
    write("d", "e", started_at=NOON)
    write("f", started_at=NOON + timedelta(hours=1))
    client = api()

    whole = names(client.get(f"{NOTES}?ordering={ordering}"))

    assert [name for page in pages(client, f"{NOTES}?ordering={ordering}&limit=2") for name in page] == whole
    last = client.get(f"{NOTES}?ordering={ordering}&limit=4").json()["next"]
    assert names(client.get(client.get(last).json()["previous"])) == whole[:4]


def test_every_page_is_read_through_the_index_however_deep_it_is(tenant, write):
    write(*(f"n{number}" for number in range(300)))
    with connections["owner"].cursor() as statements:
        statements.execute("ANALYZE activities_activity")
    ordering = ("-created_at", "-id")
    cursor = Cursor(ordering, (NOON + timedelta(seconds=150), uuid7()))

    with tenant_scope(tenant.pk):
        with connections["default"].cursor() as statements:
            statements.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        rows = Activity.objects.for_tenant(tenant).filter(cursor.condition()).order_by(*ordering)
        plan = rows[:51].explain(analyze=True)

    assert "activities_by_time" in plan
    assert "Index Cond" in plan.split("activities_by_time")[1]
    assert "created_at <=" in plan.split("Index Cond")[1].splitlines()[0]


@pytest.mark.parametrize(("limit", "count"), [("1", 1), ("200", 200), ("201", 200), ("99999999", 200)])
def test_a_limit_is_as_requested_but_two_hundred_at_most(api, write, limit, count):
    write(*(f"n{number}" for number in range(205)))

    assert len(names(api().get(f"{NOTES}?limit={limit}"))) == count


@in_one_test("limit", ["0", "-1", "ten", "1.5", "", "٣", "9" * 30])
def test_a_limit_that_is_not_a_positive_number_is_400(api, limit):
    assert (
        problem(api().get(f"{NOTES}?limit={limit}"), 400, "validation_failed")["errors"][0]["path"] == "limit"
    )


def test_a_changed_or_foreign_cursor_is_400(api, write):
    write(*"abc")
    client = api()
    cursor = parse_qs(urlsplit(client.get(f"{NOTES}?limit=1").json()["next"]).query)["cursor"][0]

    cursors = [
        cursor[:-1] + ("A" if cursor[-1] != "A" else "B"),
        "x" + cursor,
        cursor.split(":")[0],
        "",
        "None",
        "😀",
    ]
    for text in cursors:
        refused = problem(client.get(NOTES, {"cursor": text}), 400, "validation_failed")
        assert refused["errors"][0]["path"] == "cursor"
    problem(client.get(NOTES, {"cursor": cursor, "ordering": "name"}), 400, "validation_failed")


@pytest.mark.urls("orchestrator.urls")
def test_a_cursor_of_another_list_with_the_same_ordering_is_400(api, write):
    """Its values may not fit the fields of this list: runs of pipelines always have a start."""
    write("a", "b", started_at=None)
    client = api()
    following = client.get("/api/v1/activities/?ordering=started_at&limit=1").json()["next"]

    refused = client.get(f"/api/v1/pipeline-runs/?{urlsplit(following).query}")

    (error,) = problem(refused, 400, "validation_failed")["errors"]
    assert error == {"path": "cursor", "message": "is not a cursor of this list"}


def test_an_offered_ordering_can_be_chosen(api, write):
    write("b", priority=1)
    write("c", priority=2)
    write("a", priority=2)

    assert names(api().get(f"{NOTES}?ordering=name")) == ["a", "b", "c"]
    assert names(api().get(f"{NOTES}?ordering=-priority,name")) == ["a", "c", "b"]


@in_one_test("ordering", ["tenant", "secret", "", "-", "--name", "name;drop", "tenant__name", "name,,id"])
def test_an_ordering_that_is_not_offered_is_400(api, ordering):
    refused = problem(api().get(NOTES, {"ordering": ordering}), 400, "validation_failed")

    assert refused["errors"][0]["path"] == "ordering"
    assert "created_at, name" in refused["errors"][0]["message"]


def test_filters_restrict_the_list(api, write):
    write("a", "b", priority=5)
    write("c", status="created", priority=7)
    client = api()

    assert names(client.get(f"{NOTES}?name=b")) == ["b"]
    assert names(client.get(f"{NOTES}?priority=7")) == ["c"]
    assert names(client.get(f"{NOTES}?created_after=2026-01-01T12:00:01Z&ordering=name")) == ["b"]
    # Without an offset a time is UTC, and a date is its midnight.
    assert names(client.get(f"{NOTES}?created_after=2026-01-01T12:00:01&ordering=name")) == ["b"]
    assert names(client.get(f"{NOTES}?created_after=2026-01-01&name=b")) == ["b"]
    assert names(client.get(f"{NOTES}?created_after=2026-01-02&name=b")) == []


def test_a_filter_of_several_values_means_any_of_them(api, write):
    write("a")
    write("b", status="done", finished_at=NOON)

    assert sorted(names(api().get(f"{NOTES}?status=created&status=done"))) == ["a", "b"]
    assert names(api().get(f"{NOTES}?status=done")) == ["b"]


def test_a_search_finds_words_in_any_order(api, write):
    write("Red fish", "blue fish", "red bird")

    assert names(api().get(f"{NOTES}?search=fish red")) == ["Red fish"]


def test_unknown_parameters_are_named_and_refused(api, write):
    write("a")

    refused = problem(api().get(f"{NOTES}?nmae=a&statu=done&limit=5"), 400, "validation_failed")

    assert [error["path"] for error in refused["errors"]] == ["nmae", "statu"]


def test_all_errors_of_a_query_string_are_named_at_once(api):
    query = "nmae=a&priority=high&status=unheard-of&name=&ordering=beauty&limit=0"

    refused = problem(api().get(f"{NOTES}?{query}"), 400, "validation_failed")
    with_cursor = problem(api().get(f"{NOTES}?priority=high&limit=0&cursor=x"), 400, "validation_failed")

    assert [error["path"] for error in refused["errors"]] == [
        "nmae",
        "name",
        "priority",
        "status",
        "limit",
        "ordering",
    ]
    assert [error["path"] for error in with_cursor["errors"]] == ["priority", "limit", "cursor"]


@in_one_test(
    ("query", "path"),
    [
        ("priority=high", "priority"),
        ("priority=1.5", "priority"),
        ("status=unheard-of", "status"),
        ("created_after=yesterday", "created"),
        ("name=a&name=b", "name"),
        ("limit=1&limit=2", "limit"),
        ("name=%00", "name"),
        ("name=", "name"),
        ("name=%20", "name"),
        ("status=", "status"),
        ("status=done&status=", "status"),
        ("created_after=", "created_after"),
        ("search=%00", "search"),
        ("search=" + "a" * 201, "search"),
        ("tenant=x", "tenant"),
        ("tenant_id__in=x", "tenant_id__in"),
    ],
)
def test_a_parameter_with_a_bad_value_is_400(api, query, path):
    assert problem(api().get(f"{NOTES}?{query}"), 400, "validation_failed")["errors"][0]["path"] == path


def test_an_empty_list_has_no_links(api):
    assert api().get(NOTES).json() == {"next": None, "previous": None, "results": []}


def test_the_format_may_be_named_and_only_json_is_known(api):
    assert api().get(f"{NOTES}?format=json").status_code == 200
    problem(api().get(f"{NOTES}?format=xml"), 404, "not_found")
