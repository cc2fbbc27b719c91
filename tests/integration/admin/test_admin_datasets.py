"""Datasets in the admin: declared, filled from files after a preview, and listed."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from pipelines import datasets
from pipelines.admin import dataset as admin_dataset
from pipelines.datasets import Declaration, Upload
from pipelines.models import Dataset, DatasetRow, Schedule
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import list_url, messages_of, page_url, visible_text
from tests.cases import in_one_test
from tests.forms import forms_of

FIELDS = {"id": "string", "enabled": "boolean", "price": "number"}
FORM = {
    "name": "ticker",
    "source": "db",
    "location": "",
    "description": "",
    "fields": '{"id": "string", "price": "number"}',
}


@pytest.fixture
def ticker(tenant: Tenant) -> Dataset:
    rows = [{"id": "AAPL", "enabled": True, "price": 1.5}, {"id": "<b>MSFT</b>"}]
    return datasets.create(tenant.pk, Declaration("ticker", FIELDS, rows=Upload(rows)))


def reloaded(dataset: Dataset) -> Dataset:
    with tenant_scope(dataset.tenant_id):
        return Dataset.objects.get(pk=dataset.pk)


def keys(dataset: Dataset) -> list[str]:
    with tenant_scope(dataset.tenant_id):
        return list(DatasetRow.objects.order_by("id").values_list("key", flat=True))


def upload(root: Client, dataset: Dataset, name: str, content: bytes, **more: str) -> Any:
    place = f"{list_url(Dataset)}{dataset.pk}/upload/"
    return root.post(place, {"file": SimpleUploadedFile(name, content), "look": "1", **more})


def test_a_dataset_can_be_declared_listed_and_changed(root: Client, tenant: Tenant) -> None:
    added = root.post(f"{list_url(Dataset)}add/", {**FORM, "tenant": str(tenant.pk)})
    assert added.status_code == 302, visible_text(added)
    with tenant_scope(tenant.pk):
        dataset = Dataset.objects.get()

    changed = root.post(page_url(dataset), {**FORM, "fields": '{"id": "string"}', "description": "Shares"})

    assert changed.status_code == 302, visible_text(changed)
    reloaded_dataset = reloaded(dataset)
    assert (reloaded_dataset.fields, reloaded_dataset.description, reloaded_dataset.version) == (
        {"id": "string"},
        "Shares",
        2,
    )
    assert "ticker acme Database id string 0" in visible_text(root.get(list_url(Dataset)))


@in_one_test(
    ("members", "fault"),
    [
        ({"name": "a b"}, "use letters, digits and single _"),
        ({"fields": '{"id": "money"}'}, "fields.id: must be one of string"),
        ({"fields": "[1]"}, "Enter an object"),
        ({"fields": '{"a__b": "string"}'}, "is not a valid field name"),
        ({"location": "https://example.com"}, "is only for the source api"),
        ({"source": "api"}, "is required: the address of the rows"),
        ({"source": "api", "location": "https://127.0.0.1/"}, "is not a public address"),
    ],
)
def test_errors_are_shown_in_the_form(
    root: Client, tenant: Tenant, members: dict[str, str], fault: str
) -> None:
    refused = root.post(f"{list_url(Dataset)}add/", {**FORM, "tenant": str(tenant.pk), **members})

    assert refused.status_code == 200
    assert fault in visible_text(refused)
    with tenant_scope(tenant.pk):
        assert not Dataset.objects.exists()


def test_fields_that_do_not_match_the_rows_are_refused_with_the_row(root: Client, ticker: Dataset) -> None:
    refused = root.post(page_url(ticker), {**FORM, "fields": '{"id": "string", "price": "boolean"}'})

    assert "rows[0].price: must be true or false" in visible_text(refused)
    assert reloaded(ticker).fields == FIELDS


def test_the_first_rows_are_escaped_and_all_rows_are_listed(root: Client, ticker: Dataset) -> None:
    page = root.get(page_url(ticker)).content.decode()
    listed = root.get(f"{list_url(DatasetRow)}?dataset={ticker.pk}")

    assert "&lt;b&gt;MSFT" in page
    assert "<b>MSFT" not in page
    assert listed.status_code == 200
    assert "AAPL" in visible_text(listed)


def test_a_file_is_previewed_before_it_is_stored(root: Client, ticker: Dataset) -> None:
    preview = upload(root, ticker, "rows.csv", b"id,price\nAAPL,2\nTSLA,3\n", replace="on")

    assert "1 row would be added, 1 changed and 1 removed; 2 in all." in visible_text(preview)
    assert "TSLA" in visible_text(preview)
    assert len(keys(ticker)) == 2
    stored = forms_of(preview)["upload_form"].send(root, ("store", "1"))
    assert stored.status_code == 302, visible_text(stored)
    assert keys(ticker) == ["AAPL", "TSLA"]
    assert messages_of(stored) == ["1 row was added, 1 changed and 1 removed; 2 in all."]
    assert "1 row was added" in visible_text(root.get(f"{list_url(Dataset)}{ticker.pk}/history/"))


@in_one_test(
    ("name", "content", "fault"),
    [
        (
            "rows.csv",
            b"id,price\nA,much\nB,1\n,2\n",
            "rows[0].price must be a number (line 2) rows[2].id is missing",
        ),
        ("rows.csv", b"id,nope\nA,1\n", "is not a field of this table (line 1)"),
        ("rows.csv", b"id,price\nA\n", "line 2 has 1 value"),
        ("rows.json", b'[{"id": 5}]', "rows[0].id must be text"),
        ("rows.json", b"[", "The JSON cannot be read"),
        ("rows.xls", b"x", "must end with .csv or .json"),
    ],
)
def test_a_file_with_errors_is_refused_and_the_errors_are_named(
    root: Client, ticker: Dataset, name: str, content: bytes, fault: str
) -> None:
    refused = upload(root, ticker, name, content)

    assert fault in visible_text(refused)
    assert len(keys(ticker)) == 2


def test_a_file_of_somebody_else_or_an_expired_file_is_not_stored(root: Client, ticker: Dataset) -> None:
    handle = admin_dataset.keep("somebody:else", "rows.csv", b"id\nX\n")

    refused = root.post(f"{list_url(Dataset)}{ticker.pk}/upload/", {"store": "1", "kept": handle})

    assert "The file has expired." in visible_text(refused)
    assert "Choose a file." in visible_text(
        root.post(f"{list_url(Dataset)}{ticker.pk}/upload/", {"look": "1"})
    )


def test_a_dataset_is_deleted_with_its_rows_unless_schedules_read_it(root: Client, ticker: Dataset) -> None:
    with tenant_scope(ticker.tenant_id):
        schedule = Schedule.objects.create(
            tenant_id=ticker.tenant_id,
            name="Nightly",
            target_type="agent",
            agent_role="qa",
            params={"t": "db:ticker:all:id"},
        )

    place = f"{list_url(Dataset)}{ticker.pk}/delete/"
    refused = root.post(place, {"post": "yes"})
    assert messages_of(refused) == ["Not deleted: it is read by the schedules Nightly."]
    with tenant_scope(ticker.tenant_id):
        Schedule.objects.filter(pk=schedule.pk).delete()

    assert "with its 2 rows" in visible_text(root.get(place))
    assert root.post(place, {"post": "yes"}).status_code == 302
    assert keys(ticker) == []
    assert "delete_selected" not in root.get(list_url(Dataset)).content.decode()
