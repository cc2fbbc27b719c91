"""Data sources over rows that are not stored in a dataset: the platform's own tables, files, addresses and Redis."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import outbound
from pipelines import deliverables, keys, tables, versions
from pipelines.data_sources import DataSourceError, FieldType
from pipelines.exceptions import SourceUnavailable
from pipelines.models import Dataset
from pipelines.tables import fetched
from tenants.context import tenant_scope
from tenants.models import Channel, Tenant
from tenants.redis import client
from tests.integration.outbound_client.conftest import serve
from tests.integration.outbound_client.peers import Serve, read_request
from tests.integration.test_tables import values

__all__ = ("serve",)

FIELDS = {"id": "string", "enabled": "boolean", "price": "number", "at": "datetime"}


def make_dataset(tenant: Tenant, source: str, **members: Any) -> Dataset:
    with tenant_scope(tenant.pk):
        return Dataset.objects.create(
            tenant_id=tenant.pk, name="ticker", source=source, **{"fields": FIELDS, **members}
        )


def refusal(tenant: Tenant, text: str) -> str:
    with pytest.raises(SourceUnavailable) as refused:
        list(values(tenant, text))
    return str(refused.value)


# Declared tables


def test_declared_tables_yield_rows_of_the_tenant_in_the_order_of_their_ids(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    for owner in (tenant, other_tenant):
        versions.save(
            owner.pk,
            {"key": "flow", "name": "Flow", "steps": [{"id": "a", "human_role": "editor"}]},
            actor="test",
        )
        deliverables.create(owner.pk, {"key": f"blog-{owner.slug}", "name": "Blog", "pipelines": ["flow"]})
        with tenant_scope(owner.pk):
            for name in ("b", "a"):
                Channel.objects.create(tenant_id=owner.pk, kind="ads", name=name)

    assert list(values(tenant, "db:pipeline:all:key?enabled=true")) == ["flow"]
    assert list(values(tenant, "db:deliverable:all:key,status")) == [{"key": "blog-acme", "status": "active"}]
    assert list(values(tenant, "db:channel:all:name?kind=ads")) == ["b", "a"]
    assert list(
        values(tenant, 'db:channel:all:name?filter={"expires_at":{"$exists":false},"name":{"$gt":"a"}}')
    ) == ["b"]
    assert list(values(tenant, 'db:channel:all:name?filter={"expires_at":{"$ne":"2024-01-01"}}')) == [
        "b",
        "a",
    ]
    (found,) = values(tenant, "db:deliverable:all:id,created_at")
    assert values(tenant, f"db:deliverable:{found['id']}:key").count == 1
    assert list(values(tenant, "db:deliverable:no-uuid:key")) == []
    assert found["created_at"].endswith("Z")


def test_undeclared_tables_and_fields_cannot_be_read(tenant: Tenant) -> None:
    for text in (
        "db:tenants_apitoken:all:id",
        "db:user:all:id",
        "db:channel:all:details",
        "db:deliverable:all:tenant",
    ):
        with pytest.raises(DataSourceError):
            values(tenant, text)


def test_a_dataset_hides_the_declared_table_of_the_same_name(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        Dataset.objects.create(tenant_id=tenant.pk, name="channel", fields={"id": "string"})

    assert list(values(tenant, "db:channel:all:id")) == []
    assert tables.catalogue_of(tenant.pk)["db"]["channel"].fields == {"id": FieldType.STRING}


# Files


@pytest.fixture
def folder(tmp_path: Path, settings: Any, tenant: Tenant) -> Path:
    settings.ORCHESTRATOR_DATA_FOLDER = str(tmp_path)
    own = tmp_path / str(tenant.pk)
    own.mkdir()
    return own


def test_the_values_of_a_file_get_the_types_of_the_dataset(folder: Path, tenant: Tenant) -> None:
    make_dataset(tenant, "file")
    (folder / "ticker.csv").write_text("id,enabled,price,at\nA,TRUE,1.5,2024-01-01\nB,false,,\n", "utf-8")

    assert list(values(tenant, "file:ticker:all:id,price,at?enabled=true")) == [
        {"id": "A", "price": 1.5, "at": "2024-01-01T00:00:00Z"}
    ]
    (folder / "ticker.csv").unlink()
    (folder / "ticker.json").write_text('[{"id": "C", "enabled": true}]', "utf-8")
    assert list(values(tenant, "file:ticker:all:id?enabled=true")) == ["C"]


def test_ten_thousand_rows_of_a_file_are_read_in_constant_memory(folder: Path, tenant: Tenant) -> None:
    make_dataset(tenant, "file")
    lines = "".join(f"T{place:05},true,{place},2024-01-01\n" for place in range(10_000))
    (folder / "ticker.csv").write_text(f"id,enabled,price,at\n{lines}", "utf-8")
    result = values(tenant, "file:ticker:all:id?enabled=true")

    tracemalloc.start()
    number = sum(1 for _ in result)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert number == result.count == 10_000
    assert peak < 500_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,price\nA,1\nB,much\n", "file:ticker, line 3: price must be a number."),
        ("id,nope\nA,1\n", 'line 2: "nope" is not a field of this table'),
        ("id,price\nA\n", "line 2 has 1 value"),
        ("price\n1\n", "line 2: id is missing"),
    ],
)
def test_an_invalid_row_of_a_file_is_named_by_its_line(
    folder: Path, tenant: Tenant, content: str, message: str
) -> None:
    make_dataset(tenant, "file")
    (folder / "ticker.csv").write_text(content, "utf-8")

    assert message in refusal(tenant, "file:ticker:all:id")


def _nothing(place: Path, outside: Path) -> None: ...


def _link(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def _folder_of_the_name(place: Path, outside: Path) -> None:
    place.mkdir()


def _pipe(place: Path, outside: Path) -> None:
    os.mkfifo(place)


def _large(place: Path, outside: Path) -> None:
    place.write_bytes(b"id\n" + b"x" * 2_000)


@pytest.mark.parametrize("make_entry", [_nothing, _link, _folder_of_the_name, _pipe, _large])
def test_only_regular_files_of_the_tenants_own_folder_are_read(
    folder: Path, tenant: Tenant, tmp_path: Path, settings: Any, make_entry: Callable[[Path, Path], None]
) -> None:
    settings.ORCHESTRATOR_DATA_SOURCE_BYTES = 1_000
    outside = tmp_path / "outside.csv"
    outside.write_text("id\nsecret\n", "utf-8")
    make_dataset(tenant, "file")
    make_entry(folder / "ticker.csv", outside)

    assert "secret" not in refusal(tenant, "file:ticker:all:id")


def test_a_folder_that_is_a_symbolic_link_is_not_read(
    tmp_path: Path, settings: Any, tenant: Tenant, other_tenant: Tenant
) -> None:
    settings.ORCHESTRATOR_DATA_FOLDER = str(tmp_path)
    (tmp_path / str(other_tenant.pk)).mkdir()
    (tmp_path / str(other_tenant.pk) / "ticker.csv").write_text("id\nsecret\n", "utf-8")
    (tmp_path / str(tenant.pk)).symlink_to(tmp_path / str(other_tenant.pk))
    make_dataset(tenant, "file")

    assert "has no folder of files" in refusal(tenant, "file:ticker:all:id")


# Addresses


@pytest.fixture
def answering(serve: Serve, settings: Any) -> Iterator[Callable[..., Any]]:
    """`answering(body, status=200)`: a server that answers this."""
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    outbound.close_connections()

    def start(body: Any, status: int = 200) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()

        def behave(connection: Any) -> None:
            while True:
                read_request(connection)
                connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(raw), raw))

        return serve(behave)

    yield start
    outbound.close_connections()


def test_rows_at_an_address_are_fetched_once_for_several_readings(answering: Any, tenant: Tenant) -> None:
    rows = [{"id": "A", "enabled": True}, {"id": "B", "enabled": False}, {"id": "C", "enabled": True}]
    server = answering(rows)
    make_dataset(tenant, "api", location=server.url)
    result = values(tenant, "api:ticker:all:id?enabled=true&limit=5")

    assert (result.count, list(result), list(result)) == (2, ["A", "C"], ["A", "C"])
    assert server.connections == 1


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ([{"id": "A"}, {"id": 5}], 200, "row 2: id must be text"),
        ({"rows": []}, 200, "must be a list of objects"),
        (b"[", 200, "is not valid JSON"),
        ([], 404, "answered with status 404"),
        ([], 302, "answered with status 302"),
        ([{"id": "A" * 2_000}], 200, "larger than 1000 bytes"),
    ],
)
def test_an_answer_that_is_no_list_of_rows_is_refused_with_a_reason(
    answering: Any, tenant: Tenant, settings: Any, body: Any, status: int, message: str
) -> None:
    settings.ORCHESTRATOR_DATA_SOURCE_BYTES = 1_000
    make_dataset(tenant, "api", location=answering(body, status).url)

    assert message in refusal(tenant, "api:ticker:all:id")


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:9/x",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "file:///etc/passwd",
    ],
)
def test_an_internal_address_is_not_called_even_if_it_was_saved(
    tenant: Tenant, settings: Any, location: str
) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    make_dataset(tenant, "api", location=location)

    assert refusal(tenant, "api:ticker:all:id").startswith("api:ticker: ")


# Redis


def test_rows_in_redis_are_read_while_they_exist(tenant: Tenant) -> None:
    make_dataset(tenant, "cache")
    fetched.keep_rows(tenant.pk, "ticker", [{"id": "A", "enabled": True}, {"id": "B"}])

    assert list(values(tenant, "cache:ticker:all:id")) == ["A", "B"]
    assert values(tenant, "cache:ticker:all:id?enabled=true").count == 1
    fetched.drop_rows(tenant.pk, "ticker")
    assert "is empty: its rows have expired" in refusal(tenant, "cache:ticker:all:id")


def test_rows_in_redis_expire_after_the_configured_time(tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_DATASET_CACHE_SECONDS = 77
    fetched.keep_rows(tenant.pk, "ticker", [])

    assert 70 < client().ttl(keys.rows_of(tenant.pk, "ticker")) <= 77
