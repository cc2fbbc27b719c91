"""Reading tables: what a data source brings, whether from a dataset, a declared table, a file, an address or Redis."""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as short
from hypothesis import strategies as st

from pipelines import datasets, tables
from pipelines.data_sources import (
    FieldType,
    Operator,
    Query,
    Source,
    Table,
    matches,
    parse,
    read_row,
    resolve,
)
from pipelines.data_sources.query import Comparison
from pipelines.data_sources.shapes import Options
from pipelines.datasets import Upload
from pipelines.datasets.validation import storable
from pipelines.exceptions import SourceUnavailable
from pipelines.models import Dataset, DatasetRow
from tenants.context import APP, tenant_scope
from tenants.models import Tenant

TICKERS = {
    "id": "string",
    "enabled": "boolean",
    "active": "integer",
    "createdAt": "datetime",
    "price": "number",
}


def dataset_of(
    tenant: Tenant,
    name: str = "ticker",
    rows: Any = (),
    *,
    fields: Any = TICKERS,
    source: str = "db",
    **more: Any,
) -> Dataset:
    with tenant_scope(tenant.pk):
        made = Dataset.objects.create(tenant_id=tenant.pk, name=name, source=source, fields=fields, **more)
        DatasetRow.objects.bulk_create(
            [
                DatasetRow(tenant_id=tenant.pk, dataset=made, key=str(row.get("id", place)), data=row)
                for place, row in enumerate(rows)
            ]
        )
    return made


def tickers(number: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"T{place:05}", "enabled": True, **more} for place in range(number)]


def values(tenant: Tenant, text: str) -> tables.Values:
    return tables.values_of(tenant.pk, resolve(parse(text), tables.catalogue_of(tenant.pk)))


# Datasets


def test_values_of_a_dataset_are_those_of_the_rows_that_fulfil_the_conditions(tenant: Tenant) -> None:
    dataset_of(tenant, rows=[*tickers(3), {"id": "off", "enabled": False}, {"id": "unknown"}])

    assert list(values(tenant, "db:ticker:all:id?enabled=true")) == ["T00000", "T00001", "T00002"]
    assert values(tenant, "db:ticker:all:id?enabled=true").count == 3
    assert list(values(tenant, "db:ticker:off:id,enabled")) == [{"id": "off", "enabled": False}]
    assert list(values(tenant, 'db:ticker:all:id?filter={"enabled":{"$exists":false}}')) == ["unknown"]


def test_rows_that_come_later_are_there_the_next_time_and_those_that_no_longer_fit_are_not(
    tenant: Tenant,
) -> None:
    made = dataset_of(tenant, rows=tickers(2))
    found = values(tenant, "db:ticker:all:id?enabled=true")
    assert list(found) == ["T00000", "T00001"]

    datasets.fill(
        tenant.pk, made.pk, Upload([{"id": "T00000", "enabled": False}, {"id": "NEW", "enabled": True}])
    )

    assert list(found) == ["T00001", "NEW"]


def test_one_key_alone_is_a_literal_and_reads_nothing(tenant: Tenant) -> None:
    dataset_of(tenant)
    found = values(tenant, "db:ticker:AAPL:id")

    with CaptureQueriesContext(connections[APP]) as asked:
        assert (list(found), found.count) == (["AAPL"], 1)

    assert len(asked) == 0


def test_a_limit_holds_for_values_and_count(tenant: Tenant) -> None:
    dataset_of(tenant, rows=tickers(7))

    found = values(tenant, "db:ticker:all:id?limit=5")

    assert (len(list(found)), found.count) == (5, 5)


def test_ten_thousand_rows_come_in_pages_and_in_constant_memory(tenant: Tenant) -> None:
    dataset_of(tenant, rows=tickers(10_000))
    found = values(tenant, "db:ticker:all:id?enabled=true")

    list(found)
    tracemalloc.start()
    with CaptureQueriesContext(connections[APP]) as asked:
        number = sum(1 for _ in found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert number == found.count == 10_000
    pages = [query["sql"] for query in asked if "pipelines_datasetrow" in query["sql"]]
    assert len(pages) == 10_000 // 500 + 1
    assert peak < 2_000_000


def test_rows_that_come_and_go_between_pages_are_neither_doubled_nor_missed(tenant: Tenant) -> None:
    made = dataset_of(tenant, rows=tickers(1_200))
    reading = iter(values(tenant, "db:ticker:all:id"))
    read = [next(reading)]

    with tenant_scope(tenant.pk):
        DatasetRow.objects.filter(dataset=made, key__in=["T00000", "T00100", "T00900"]).delete()
    read += list(reading)

    assert len(read) == len(set(read)) == 1_199
    assert "T00900" not in read


def test_a_dataset_that_is_gone_or_changed_is_told_instead_of_misread(tenant: Tenant) -> None:
    made = dataset_of(tenant, rows=tickers(2))
    found = values(tenant, "db:ticker:all:id?active=1")

    with tenant_scope(tenant.pk):
        Dataset.objects.filter(pk=made.pk).update(fields={"id": "string", "active": "string"})
    with pytest.raises(SourceUnavailable, match="db:ticker was changed or deleted"):
        list(found)
    with tenant_scope(tenant.pk):
        made.delete()
    with pytest.raises(SourceUnavailable):
        _ = values_again(found).count


def values_again(found: tables.Values) -> tables.Values:
    return tables.values_of(found.tenant_id, found.query)


def test_a_tenant_neither_sees_nor_reads_anothers_dataset(tenant: Tenant, other_tenant: Tenant) -> None:
    dataset_of(tenant, rows=tickers(2))

    assert "ticker" not in tables.catalogue_of(other_tenant.pk)[Source.DB]
    query = resolve(parse("db:ticker:all:id"), tables.catalogue_of(tenant.pk))
    with pytest.raises(SourceUnavailable):
        list(tables.values_of(other_tenant.pk, query))


# SQL says what `matches` says

EARLIEST, LATEST = (
    datetime.fromisoformat(text) for text in ("0001-01-02", "9999-12-30")
)  # without a zone, as drawn
TEXTS = st.text(st.sampled_from("aAbäß😀%_'\"\\{}, ~"), max_size=3) | st.sampled_from(
    ["null", "NULL", "{a,b}"]
)
NUMBERS = (
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(-2, 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.1, -0.0, 2.0**53, 2**53 + 1, 2.0**60, 2**60 + 1, 1e22, 5e-324])
)
KINDS: dict[FieldType, Any] = {
    FieldType.STRING: TEXTS,
    FieldType.INTEGER: st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    FieldType.NUMBER: NUMBERS,
    FieldType.BOOLEAN: st.booleans(),
    FieldType.DATETIME: st.datetimes(EARLIEST, LATEST).map(lambda at: at.replace(tzinfo=UTC))
    | st.sampled_from([datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 1, UTC)]),
}
MIXED = Table({kind.value: kind for kind in FieldType}, key="none")


@st.composite
def _situations(draw: Any) -> tuple[list[dict[str, Any]], tuple[Comparison, ...]]:
    pool = {kind: draw(st.lists(made, min_size=1, max_size=4)) for kind, made in KINDS.items()}
    row = st.fixed_dictionaries({kind.value: st.none() | st.sampled_from(pool[kind]) for kind in FieldType})
    rows = draw(st.lists(row, max_size=6))
    comparisons = tuple(_comparison(draw, pool) for _ in range(draw(st.integers(1, 2))))
    return rows, comparisons


def _comparison(draw: Any, pool: Any) -> Comparison:
    kind = draw(st.sampled_from(FieldType))
    value = st.sampled_from(pool[kind]) | KINDS[kind]
    ordered = () if kind is FieldType.BOOLEAN else (Operator.GT, Operator.GTE, Operator.LT, Operator.LTE)
    operator = draw(st.sampled_from([*(set(Operator) - {"$gt", "$gte", "$lt", "$lte"}), *ordered]))
    if operator is Operator.EXISTS:
        return Comparison(kind.value, operator, draw(st.booleans()))
    if operator in (Operator.IN, Operator.NIN):
        return Comparison(
            kind.value, operator, tuple(draw(st.lists(st.none() | value, min_size=1, max_size=3)))
        )
    return Comparison(kind.value, operator, draw(value if operator in ordered else st.none() | value))


@short(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(situation=_situations())
def test_the_database_finds_what_python_finds(tenant: Tenant, situation: Any) -> None:
    raw, comparisons = situation
    fields = {name: kind.value for name, kind in MIXED.fields.items()}
    with tenant_scope(tenant.pk):
        Dataset.objects.for_tenant(tenant.pk).delete()
    as_json = [json.loads(json.dumps({k: tables.plain(v) for k, v in row.items()})) for row in raw]
    rows = [read_row(row, Table(MIXED.fields)) for row in as_json]
    stored = [{name: storable(value) for name, value in row.items()} for row in rows]
    dataset_of(tenant, "mixed", [{"place": place, **row} for place, row in enumerate(stored)], fields=fields)
    query = Query(Source.DB, "mixed", Table(MIXED.fields), ("string",), comparisons, Options())

    found = [row["place"] for row in tables.rows_of(tenant.pk, query)]

    assert found == [place for place, row in enumerate(rows) if matches(row, comparisons)]
    assert tables.values_of(tenant.pk, query).count == len(found)


@pytest.mark.parametrize(
    "condition",
    [
        {"$in": [9007199254740993, 0.1]}, {"$in": [9007199254740992.0, 5, None]}, {"$nin": [0.1, 1152921504606846976]},
        {"$eq": 9007199254740993}, {"$gt": 9007199254740992.0}, {"$lte": 0.1}, {"$eq": 1152921504606846976.0}, {"$ne": 0.1},
    ],
)  # fmt: skip
def test_numbers_are_compared_by_their_digits_and_not_as_floats(
    tenant: Tenant, condition: dict[str, Any]
) -> None:
    numbers = [2**53, 2**53 + 1, 0.1, 0.5, 5, 2**60, -0.0, None]
    rows = [{"id": str(place), "price": storable(number)} for place, number in enumerate(numbers)]
    dataset_of(tenant, rows=rows)
    query = resolve(
        parse(f'db:ticker:all:id?filter={{"price":{json.dumps(condition)}}}'), tables.catalogue_of(tenant.pk)
    )

    found = list(tables.values_of(tenant.pk, query))

    assert found == [row["id"] for row in rows if matches(row, query.comparisons)]
    assert 0 < len(found) < len(rows)
