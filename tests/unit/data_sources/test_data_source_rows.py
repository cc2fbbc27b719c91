"""Which rows match the conditions of a data source, and how rows are converted to the types of their table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data_sources import (
    FieldType,
    Operator,
    RowError,
    Source,
    Table,
    TableError,
    check,
    matches,
    parse,
    read_row,
    read_table,
)
from tests.unit.data_sources.catalogue import TICKER, USER, query, steady, values

ROW = {
    "id": "AAPL",
    "enabled": True,
    "active": 1,
    "status": "active",
    "price": 2.5,
    "createdAt": "2024-06-01",
}


@pytest.mark.parametrize(
    ("filter_", "row", "expected"),
    [
        ({"status": "active"}, ROW, True),
        ({"status": "Active"}, ROW, False),
        ({"status": None}, ROW | {"status": None}, True),
        ({"status": None}, ROW, False),
        ({"status": "active"}, ROW | {"status": None}, False),
        ({"status": {"$ne": "old"}}, ROW, True),
        ({"status": {"$ne": "old"}}, ROW | {"status": None}, True),
        ({"status": {"$ne": None}}, ROW | {"status": None}, False),
        ({"status": {"$in": ["x", "active"]}}, ROW, True),
        ({"status": {"$in": ["x", None]}}, ROW | {"status": None}, True),
        ({"status": {"$nin": ["x"]}}, ROW | {"status": None}, True),
        ({"status": {"$nin": ["active"]}}, ROW, False),
        ({"status": {"$exists": True}}, ROW, True),
        ({"status": {"$exists": False}}, ROW | {"status": None}, True),
        ({"price": {"$gt": 2, "$lte": 2.5}}, ROW, True),
        ({"price": {"$gt": 2.5}}, ROW, False),
        ({"price": {"$lt": 9}}, ROW | {"price": None}, False),
        ({"status": {"$gte": "a", "$lt": "b"}}, ROW, True),
        ({"createdAt": {"$gte": "2024-06-01", "$lt": "2024-06-01T00:00:01Z"}}, ROW, True),
        ({"createdAt": {"$gt": "2024-05-31T23:00:00-02:00"}}, ROW, False),
        ({"enabled": True, "active": 2}, ROW, False),
    ],
)  # fmt: skip
def test_conditions_match_the_rows_that_they_should(
    filter_: dict[str, Any], row: dict[str, Any], expected: bool
) -> None:
    comparisons = query(f"db:ticker:all:id?filter={json.dumps(filter_)}").comparisons

    assert matches(read_row(row, TICKER), comparisons) is expected


def test_values_of_different_types_are_never_equal() -> None:
    (one,) = query("db:ticker:all:id?active=1").comparisons
    (yes,) = query("db:ticker:all:id?enabled=true").comparisons

    assert not matches({"active": True}, [one])
    assert not matches({"enabled": 1}, [yes])
    assert not matches({"active": "1"}, [one])


@steady
@given(value=values, operand=values, others=st.lists(values, min_size=1, max_size=3))
def test_opposite_operators_give_opposite_results(
    value: int | None, operand: int | None, others: list[int | None]
) -> None:
    row = read_row({"id": "a", "active": value}, TICKER)

    def holds(operator: Operator, other: Any) -> bool:
        text = json.dumps({"active": {operator.value: other}})
        return matches(row, query(f"db:ticker:all:id?filter={text}").comparisons)

    assert holds(Operator.EQ, operand) is (value == operand)
    assert holds(Operator.NE, operand) is not holds(Operator.EQ, operand)
    assert holds(Operator.IN, others) is (value in others)
    assert holds(Operator.NIN, others) is not holds(Operator.IN, others)
    if operand is not None:
        assert holds(Operator.GT, operand) is (value is not None and value > operand)
        assert holds(Operator.LTE, operand) is (value is not None and not holds(Operator.GT, operand))
        assert holds(Operator.GTE, operand) is (holds(Operator.GT, operand) or value == operand)
        assert holds(Operator.LT, operand) is (value is not None and not holds(Operator.GTE, operand))


def test_rows_are_converted_to_the_types_of_their_table_or_refused() -> None:
    text = {"id": "7", "email": "", "active": "TRUE"}

    assert read_row(text, USER, as_text=True) == {"id": 7, "email": "", "active": True}
    assert read_row({"id": 7}, USER) == {"id": 7, "email": None, "active": None}
    with pytest.raises(RowError) as caught:
        read_row({"id": "7", "email": 5, "active": "yes", "more": 1}, USER)
    assert caught.value.errors == {
        '"more"': "is not a field of this table",
        "id": "must be a whole number",
        "email": "must be text",
        "active": "must be true or false",
    }


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"id": None},
        {"id": ""},
        {"id": "a\x00"},
        {"id": "a", "active": 2**63},
        {"id": "a", "price": float("inf")},
        {"id": "a", "active": float("nan")},
    ],
)
def test_rows_without_a_key_or_with_values_that_cannot_be_stored_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(RowError):
        read_row(row, TICKER)


def test_every_declared_table_can_be_named_in_a_data_source() -> None:
    table = read_table("price-list", {"id": "string", "limit": "number"})

    assert table == Table({"id": FieldType.STRING, "limit": FieldType.NUMBER})
    assert (
        check(parse('db:price-list:all:limit?filter={"limit":1}'), {Source.DB: {"price-list": table}}) == []
    )


def test_a_table_that_no_data_source_could_name_is_refused() -> None:
    fields = {"a__b": "string", "_c": "string", "d": "text", "e": None, "f": ["string"], 5: "string"}

    with pytest.raises(TableError) as caught:
        read_table("pg_catalog.pg_user", fields, path="dataset")

    assert [error.path for error in caught.value.errors] == [
        "dataset.name",
        "dataset.fields",
        "dataset.fields",
        "dataset.fields.d",
        "dataset.fields.e",
        "dataset.fields.f",
        "dataset.fields",
    ]
    for nothing in ({}, [], None, {f"f{i}": "string" for i in range(101)}):
        with pytest.raises(TableError):
            read_table("a", nothing)
