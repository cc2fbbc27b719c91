"""Datasets over the API: declared, changed and deleted; permissions, repetitions and limits."""

from __future__ import annotations

from typing import Any

from pipelines.models import Dataset, DatasetRow, Schedule
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.integration.datasets_api.ticker import AAPL, DATASETS, FIELDS, ROWS, TICKER, faults, make_dataset


def test_a_dataset_can_be_created_with_rows_listed_changed_and_deleted(api: Any) -> None:
    client = api()

    dataset = make_dataset(client, rows=[AAPL], description="Shares")

    assert dataset["row_count"] == 1
    assert dataset["fields"] == FIELDS
    assert (dataset["source"], dataset["location"], dataset["description"]) == ("db", "", "Shares")
    assert client.get(TICKER).json() == dataset
    assert client.get(DATASETS).json()["results"] == [dataset]
    changed = client.patch(TICKER, {"description": "Stocks"})
    assert (changed.status_code, changed.json()["description"]) == (200, "Stocks")
    put = client.put(TICKER, {"fields": {**FIELDS, "sector": "string"}})
    assert (put.status_code, put.json()["description"]) == (200, "")
    assert client.get(ROWS).json()["results"][0]["data"] == {
        **AAPL, "createdAt": "2024-01-01T00:00:00Z", "sector": None,
    }  # fmt: skip
    assert client.delete(TICKER).status_code == 204
    problem(client.get(TICKER), 404, "not_found")
    problem(client.get(ROWS), 404, "not_found")


def test_every_error_of_a_declaration_has_its_path(api: Any) -> None:
    client = api()
    body = {
        "name": "a b",
        "source": "file",
        "location": "https://example.com",
        "fields": {"a__b": "string", "c": "money"},
    }

    refused = client.post(DATASETS, body)

    assert faults(refused, "invalid_dataset").keys() == {"name", "location", "fields", "fields.c"}
    assert faults(client.post(DATASETS, {"fields": {}, "nope": 1}), "validation_failed").keys() == {
        "name",
        "nope",
    }
    assert faults(client.post(DATASETS, {"name": "x", "fields": {}}), "invalid_dataset").keys() == {"fields"}
    assert faults(
        client.post(DATASETS, {"name": "x", "fields": {"id": "string"}, "source": "api"}), "invalid_dataset"
    )
    assert client.get(DATASETS).json()["results"] == []


@in_one_test(
    "name", ["../etc/passwd", "a/b", "a.csv", "x; DROP TABLE y", "field__in", "", "-", "ü", "a" * 64]
)
def test_an_invalid_name_of_a_dataset_is_refused(api: Any, name: str) -> None:
    answer = api().post(DATASETS, {"name": name, "fields": FIELDS})

    assert answer.status_code == 400
    assert {fault["path"] for fault in answer.json()["errors"]} == {"name"}


@in_one_test(
    "location",
    [
        "http://127.0.0.1/x",
        "https://169.254.169.254/latest",
        "https://localhost/x",
        "file:///etc/passwd",
        "https://[::1]/",
    ],
)
def test_an_internal_address_is_refused_when_it_is_saved(api: Any, location: str) -> None:
    answer = api().post(DATASETS, {"name": "x", "source": "api", "location": location, "fields": FIELDS})

    assert faults(answer, "invalid_dataset").keys() == {"location"}


def test_the_name_of_a_dataset_is_unique_and_cannot_change(api: Any) -> None:
    client = api()
    make_dataset(client)

    problem(
        client.post(DATASETS, {"name": "ticker", "source": "cache", "fields": FIELDS}), 409, "already_exists"
    )
    body = {"name": "other", "source": "cache", "fields": FIELDS}
    assert faults(client.put(TICKER, body), "validation_failed").keys() == {"name", "source"}
    body["description"] = 5
    assert faults(client.put(TICKER, body), "validation_failed").keys() == {"name", "source", "description"}
    body |= {"fields": {"id": "string", "c": "money"}}
    assert faults(client.put(TICKER, body), "validation_failed").keys() == {
        "name", "source", "description", "fields.c",
    }  # fmt: skip
    body |= {"fields": FIELDS, "rows": [{"id": 5}]}
    assert faults(client.put(TICKER, body), "validation_failed").keys() >= {"name", "source", "rows[0].id"}


def test_changed_fields_must_match_the_rows(api: Any) -> None:
    client = api()
    make_dataset(
        client, fields={"id": "string", "x": "string", "y": "integer"}, rows=[{"id": "a", "x": "one", "y": 1}]
    )

    assert faults(client.patch(TICKER, {"fields": {"id": "string", "x": "integer"}})).keys() == {"rows[0].x"}
    assert faults(client.patch(TICKER, {"fields": {"x": "string"}}), "invalid_dataset").keys() == {
        "fields.id"
    }
    assert client.get(TICKER).json()["fields"]["x"] == "string"
    assert client.patch(TICKER, {"fields": {"id": "string", "y": "number"}}).status_code == 200
    assert client.get(ROWS).json()["results"][0]["data"] == {"id": "a", "y": 1}


def test_a_dataset_that_schedules_read_is_not_deleted(api: Any, tenant: Tenant) -> None:
    client = api()
    make_dataset(client)
    make_dataset(client, name="user")
    with tenant_scope(tenant.pk):
        for name, text in (
            ("Nightly", "db:ticker:all:id?enabled=true"),
            ("Other", "cache:ticker:all:id"),
            ("Text", "ticker"),
        ):
            Schedule.objects.create(
                tenant_id=tenant.pk,
                name=name,
                target_type="agent",
                agent_role="qa",
                params={"t": text, "n": 1},
                cron="* * * * *",
            )

    refused = problem(client.delete(TICKER), 409, "dataset_in_use")

    assert "Nightly" in refused["detail"]
    assert "Other" not in refused["detail"]
    assert client.delete(f"{DATASETS}user/").status_code == 204


def test_a_field_that_schedules_read_is_not_removed(api: Any, tenant: Tenant) -> None:
    client = api()
    fields = {"id": "string", "symbol": "string", "spare": "string"}
    make_dataset(client, fields=fields)
    with tenant_scope(tenant.pk):
        schedule = Schedule.objects.create(
            tenant_id=tenant.pk, name="Nightly", target_type="agent", agent_role="qa", cron="* * * * *"
        )

    for text, field in (
        ("db:ticker:all:id,symbol", "symbol"),
        ("db:ticker:all:id?symbol=AAPL", "symbol"),
        ('db:ticker:all:id?filter={"symbol":{"$exists":true}}', "symbol"),
        ("db:ticker:AAPL:symbol", "id"),
    ):
        with tenant_scope(tenant.pk):
            Schedule.objects.filter(pk=schedule.pk).update(params={"t": text})
        rest = {name: kind for name, kind in fields.items() if name != field}
        for change in (client.put, client.patch):
            assert "Nightly" in problem(change(TICKER, {"fields": rest}), 409, "dataset_in_use")["detail"], (
                text
            )
    assert client.get(TICKER).json()["fields"] == fields
    del fields["spare"]
    assert client.patch(TICKER, {"fields": fields}).json()["fields"] == fields


def test_only_admins_write_and_everybody_reads(api: Any) -> None:
    make_dataset(api(), rows=[AAPL])
    operator = api("operator")

    for answer in (
        operator.post(DATASETS, {}), operator.put(TICKER, {}), operator.patch(TICKER, {}), operator.delete(TICKER),
        operator.post(ROWS, {"rows": []}), operator.delete(f"{ROWS}AAPL/"),
    ):  # fmt: skip
        assert problem(answer, 403, "forbidden")["required_role"] == "admin"
    assert api("viewer").get(ROWS).json()["results"][0]["key"] == "AAPL"


def test_a_dataset_of_another_tenant_is_not_found(api: Any, other_tenant: Tenant) -> None:
    make_dataset(api(), rows=[AAPL])
    other = api(tenant=other_tenant)

    for answer in (
        other.get(TICKER), other.get(ROWS), other.put(TICKER, {"fields": FIELDS}), other.delete(TICKER),
        other.post(ROWS, {"rows": [AAPL]}), other.delete(f"{ROWS}AAPL/"),
    ):  # fmt: skip
        problem(answer, 404, "not_found")
    assert make_dataset(other)["row_count"] == 0


def test_a_repeated_call_with_its_key_takes_effect_once(api: Any) -> None:
    client = api()
    make_dataset(client, fields={"city": "string"})

    for body, kind in (('{"rows": [{"city": "Rome"}]}', "application/json"), ("city\nOslo\n", "text/csv")):
        answers = [client.generic("POST", ROWS, body, kind, HTTP_IDEMPOTENCY_KEY=kind) for _ in range(2)]
        assert answers[0].content == answers[1].content
    problem(
        client.generic("POST", ROWS, "city\nBern\n", "text/csv", HTTP_IDEMPOTENCY_KEY="text/csv"),
        422,
        "idempotency_key_reused",
    )
    assert client.get(TICKER).json()["row_count"] == 2


def test_a_change_with_an_old_version_is_refused(api: Any) -> None:
    client = api()
    make_dataset(client)
    stale = client.get(TICKER)["ETag"]
    client.post(ROWS, {"rows": [AAPL]}, HTTP_IF_MATCH=stale)

    for answer in (
        client.post(ROWS, {"rows": []}, HTTP_IF_MATCH=stale), client.delete(f"{ROWS}AAPL/", HTTP_IF_MATCH=stale),
        client.patch(TICKER, {"description": "x"}, HTTP_IF_MATCH=stale), client.delete(TICKER, HTTP_IF_MATCH=stale),
    ):  # fmt: skip
        problem(answer, 412, "precondition_failed")
    assert client.get(TICKER).json()["row_count"] == 1


def test_limits_of_datasets_have_their_errors(api: Any, settings: Any) -> None:
    client = api()
    make_dataset(client)
    settings.ORCHESTRATOR_DATASET_ROWS_PER_CALL, settings.ORCHESTRATOR_DATASET_ROWS = 2, 3
    settings.ORCHESTRATOR_DATASET_BODY_BYTES, settings.ORCHESTRATOR_DATASETS_PER_TENANT = 2_000, 1

    problem(client.post(ROWS, {"rows": [{"id": name} for name in "abc"]}), 413, "too_many_rows")
    problem(client.generic("POST", ROWS, "id\na\nb\nc\n", "text/csv"), 413, "too_many_rows")
    problem(client.post(ROWS, {"rows": [{"id": "x" * 2_000}]}), 413, "body_too_large")
    assert client.post(ROWS, {"rows": [{"id": "a"}, {"id": "b"}]}).json()["rows"] == 2
    problem(client.post(ROWS, {"rows": [{"id": "c"}, {"id": "d"}]}), 409, "dataset_full")
    assert client.post(f"{ROWS}?replace=true", {"rows": [{"id": "c"}, {"id": "d"}]}).json()["rows"] == 2
    problem(client.post(DATASETS, {"name": "second", "fields": FIELDS}), 409, "too_many_datasets")


def test_one_call_can_add_ten_thousand_rows(api: Any, tenant: Tenant) -> None:
    client = api()
    make_dataset(client)

    filled = client.post(ROWS, {"rows": [{"id": f"{place:05}", "enabled": True} for place in range(10_000)]})

    assert filled.json()["added"] == 10_000
    with tenant_scope(tenant.pk):
        ids = DatasetRow.objects.for_tenant(tenant.pk).order_by("id").values_list("key", flat=True)
        assert list(ids[:3]) == ["00000", "00001", "00002"]


def test_rows_of_a_cache_are_stored_outside_postgresql(api: Any, tenant: Tenant) -> None:
    client = api()
    make_dataset(client, source="cache", rows=[AAPL])

    filled = client.post(ROWS, {"rows": [{"id": "MSFT"}]})

    assert filled.json()["rows"] == 2
    assert client.get(TICKER).json()["row_count"] == 2
    assert client.delete(f"{ROWS}AAPL/").status_code == 204
    problem(client.get(ROWS), 409, "rows_elsewhere")
    with tenant_scope(tenant.pk):
        assert not DatasetRow.objects.for_tenant(tenant.pk).exists()
        assert Dataset.objects.for_tenant(tenant.pk).count() == 1


def test_rows_of_a_file_cannot_be_changed_over_the_api(api: Any) -> None:
    client = api()
    dataset = make_dataset(client, source="file")

    assert dataset["row_count"] is None
    problem(client.post(ROWS, {"rows": [AAPL]}), 409, "rows_elsewhere")
    problem(client.delete(f"{ROWS}AAPL/"), 409, "rows_elsewhere")
