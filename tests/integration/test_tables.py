"""Reading the rows of datasets by data sources, in pages, and comparing values in SQL as Python compares them."""

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


def make_dataset(
    tenant: Tenant,
    name: str = "ticker",
    rows: Any = (),
    *,
    fields: Any = TICKERS,
    source: str = "db",
    **more: Any,
) -> Dataset:
    with tenant_scope(tenant.pk):
        dataset = Dataset.objects.create(tenant_id=tenant.pk, name=name, source=source, fields=fields, **more)
        DatasetRow.objects.bulk_create(
            [
                DatasetRow(tenant_id=tenant.pk, dataset=dataset, key=str(row.get("id", place)), data=row)
                for place, row in enumerate(rows)
            ]
        )
    return dataset


def tickers(number: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"T{place:05}", "enabled": True, **more} for place in range(number)]


def values(tenant: Tenant, text: str) -> tables.Values:
    return tables.values_of(tenant.pk, resolve(parse(text), tables.catalogue_of(tenant.pk)))


# Datasets


def test_a_data_source_yields_the_values_of_the_rows_that_match_its_conditions(tenant: Tenant) -> None:
    make_dataset(tenant, rows=[*tickers(3), {"id": "off", "enabled": False}, {"id": "unknown"}])

    assert list(values(tenant, "db:ticker:all:id?enabled=true")) == ["T00000", "T00001", "T00002"]
    assert values(tenant, "db:ticker:all:id?enabled=true").count == 3
    assert list(values(tenant, "db:ticker:off:id,enabled")) == [{"id": "off", "enabled": False}]
    assert list(values(tenant, 'db:ticker:all:id?filter={"enabled":{"$exists":false}}')) == ["unknown"]


def test_the_next_reading_includes_new_rows_and_omits_rows_that_no_longer_match(
    tenant: Tenant,
) -> None:
    dataset = make_dataset(tenant, rows=tickers(2))
    result = values(tenant, "db:ticker:all:id?enabled=true")
    assert list(result) == ["T00000", "T00001"]

    datasets.fill(
        tenant.pk, dataset.pk, Upload([{"id": "T00000", "enabled": False}, {"id": "NEW", "enabled": True}])
    )

    assert list(result) == ["T00001", "NEW"]


def test_a_single_key_is_a_literal_and_takes_no_statement(tenant: Tenant) -> None:
    make_dataset(tenant)
    result = values(tenant, "db:ticker:AAPL:id")

    with CaptureQueriesContext(connections[APP]) as queries:
        assert (list(result), result.count) == (["AAPL"], 1)

    assert len(queries) == 0


def test_a_limit_applies_to_values_and_count(tenant: Tenant) -> None:
    make_dataset(tenant, rows=tickers(7))

    result = values(tenant, "db:ticker:all:id?limit=5")

    assert (len(list(result)), result.count) == (5, 5)


def test_ten_thousand_rows_are_read_in_pages_and_in_constant_memory(tenant: Tenant) -> None:
    make_dataset(tenant, rows=tickers(10_000))
    result = values(tenant, "db:ticker:all:id?enabled=true")

    list(result)
    tracemalloc.start()
    with CaptureQueriesContext(connections[APP]) as queries:
        number = sum(1 for _ in result)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert number == result.count == 10_000
    pages = [query["sql"] for query in queries if "pipelines_datasetrow" in query["sql"]]
    assert len(pages) == 10_000 // 500 + 1
    assert peak < 2_000_000


def test_rows_deleted_between_pages_are_omitted_and_no_other_is_repeated_or_missed(tenant: Tenant) -> None:
    dataset = make_dataset(tenant, rows=tickers(1_200))
    reading = iter(values(tenant, "db:ticker:all:id"))
    read = [next(reading)]

    with tenant_scope(tenant.pk):
        DatasetRow.objects.filter(dataset=dataset, key__in=["T00000", "T00100", "T00900"]).delete()
    read += list(reading)

    assert len(read) == len(set(read)) == 1_199
    assert "T00900" not in read


def test_reading_a_changed_or_deleted_dataset_is_refused(tenant: Tenant) -> None:
    dataset = make_dataset(tenant, rows=tickers(2))
    result = values(tenant, "db:ticker:all:id?active=1")

    with tenant_scope(tenant.pk):
        Dataset.objects.filter(pk=dataset.pk).update(fields={"id": "string", "active": "string"})
    with pytest.raises(SourceUnavailable, match="db:ticker was changed or deleted"):
        list(result)
    with tenant_scope(tenant.pk):
        dataset.delete()
    with pytest.raises(SourceUnavailable):
        _ = same_values(result).count


def same_values(result: tables.Values) -> tables.Values:
    return tables.values_of(result.tenant_id, result.query)


def test_a_tenant_can_neither_see_nor_read_the_dataset_of_another(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    make_dataset(tenant, rows=tickers(2))

    assert "ticker" not in tables.catalogue_of(other_tenant.pk)[Source.DB]
    query = resolve(parse("db:ticker:all:id"), tables.catalogue_of(tenant.pk))
    with pytest.raises(SourceUnavailable):
        list(tables.values_of(other_tenant.pk, query))


# SQL selects what `matches` selects

# Without a zone, as drawn.
EARLIEST, LATEST = (datetime.fromisoformat(text) for text in ("0001-01-02", "9999-12-30"))
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
    pool = {
        kind: draw(st.lists(values_of_kind, min_size=1, max_size=4)) for kind, values_of_kind in KINDS.items()
    }
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
def test_sql_selects_the_rows_that_python_selects(tenant: Tenant, situation: Any) -> None:
    raw, comparisons = situation
    fields = {name: kind.value for name, kind in MIXED.fields.items()}
    with tenant_scope(tenant.pk):
        Dataset.objects.for_tenant(tenant.pk).delete()
    as_json = [json.loads(json.dumps({k: tables.plain(v) for k, v in row.items()})) for row in raw]
    rows = [read_row(row, Table(MIXED.fields)) for row in as_json]
    stored = [{name: storable(value) for name, value in row.items()} for row in rows]
    make_dataset(
        tenant, "mixed", [{"place": place, **row} for place, row in enumerate(stored)], fields=fields
    )
    query = Query(Source.DB, "mixed", Table(MIXED.fields), ("string",), comparisons, Options())

    result = [row["place"] for row in tables.rows_of(tenant.pk, query)]

    assert result == [place for place, row in enumerate(rows) if matches(row, comparisons)]
    assert tables.values_of(tenant.pk, query).count == len(result)


@pytest.mark.parametrize(
    "condition",
    [
        {"$in": [9007199254740993, 0.1]}, {"$in": [9007199254740992.0, 5, None]}, {"$nin": [0.1, 1152921504606846976]},
        {"$eq": 9007199254740993}, {"$gt": 9007199254740992.0}, {"$lte": 0.1}, {"$eq": 1152921504606846976.0}, {"$ne": 0.1},
    ],
)  # fmt: skip
def test_numbers_are_compared_exactly_and_not_as_floats(tenant: Tenant, condition: dict[str, Any]) -> None:
    numbers = [2**53, 2**53 + 1, 0.1, 0.5, 5, 2**60, -0.0, None]
    rows = [{"id": str(place), "price": storable(number)} for place, number in enumerate(numbers)]
    make_dataset(tenant, rows=rows)
    query = resolve(
        parse(f'db:ticker:all:id?filter={{"price":{json.dumps(condition)}}}'), tables.catalogue_of(tenant.pk)
    )

    result = list(tables.values_of(tenant.pk, query))

    assert result == [row["id"] for row in rows if matches(row, query.comparisons)]
    assert 0 < len(result) < len(rows)
