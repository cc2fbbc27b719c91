"""How data sources are parsed, and how their errors are reported."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data_sources import (
    BatchGate,
    DataSource,
    DataSourceError,
    Expand,
    Filter,
    Options,
    ParamsError,
    Source,
    check,
    looks_like,
    parse,
    read_params,
    unescape,
)
from tests.unit.data_sources.catalogue import CATALOGUE, TICKER, query, steady

printable = st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc", "Zl", "Zp"])
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(printable, max_size=30)


def conditions_of(text: str) -> list[tuple[str, str, Any]]:
    """Return the conditions of a data source with typed values."""
    return [(part.field, part.operator.value, part.value) for part in query(text).comparisons]


def refusal(text: str) -> str:
    with pytest.raises(DataSourceError) as caught:
        parse(text)
    return str(caught.value)


def test_all_ids_of_a_table() -> None:
    assert parse("db:ticker:all:id") == DataSource(Source.DB, "ticker", Filter(), ("id",))
    assert conditions_of("db:ticker:all:id") == []


def test_a_single_id_is_the_value_itself_and_reads_no_table() -> None:
    assert parse("db:ticker:AAPL:id").filter == Filter("AAPL")
    assert query("db:ticker:AAPL:id").literal == "AAPL"
    assert query("db:user:42:id").literal == 42


@pytest.mark.parametrize(
    "text",
    [
        "db:ticker:all:id",
        "db:ticker:AAPL:status",
        "db:ticker:AAPL:id?enabled=true",
        "db:ticker:AAPL:id,status",
    ],
)
def test_a_data_source_whose_value_depends_on_a_row_has_no_literal(text: str) -> None:
    assert query(text).literal is None


def test_a_specific_id_still_honours_the_other_conditions() -> None:
    assert conditions_of("db:ticker:AAPL:id?enabled=true") == [
        ("id", "$eq", "AAPL"),
        ("enabled", "$eq", True),
    ]


def test_conditions_and_options_are_distinguished() -> None:
    source = parse("db:ticker:all:id?enabled=true&batchSize=10&staggerDelay=1000")

    assert source.options == Options(batch_size=10, stagger_ms=1_000)
    assert [condition.field for condition in source.filter.conditions] == ["enabled"]


def test_every_option_is_read() -> None:
    options = parse(
        "db:ticker:all:id?expand=zip&batch_gate=completion&limit=7&staggerDelay=0&batchSize=5"
    ).options

    assert options == Options(5, 0, Expand.ZIP, BatchGate.COMPLETION, 7)


def test_conditions_are_joined_and_take_the_types_of_their_fields() -> None:
    assert conditions_of("db:ticker:all:id?enabled=true&active=1&batchSize=5") == [
        ("enabled", "$eq", True),
        ("active", "$eq", 1),
    ]
    assert conditions_of("db:user:all:email?active=1") == [("active", "$eq", True)]
    assert (
        conditions_of("db:ticker:all:id?createdAt=2024-01-01T01:00:00+01:00")[0][2].isoformat()
        == "2024-01-01T00:00:00+00:00"
    )


def test_a_json_filter_has_types_and_operators() -> None:
    text = 'db:ticker:all:id?filter={"enabled":true,"status":"active","createdAt":{"$gte":"2024-01-01"}}'

    (enabled, status, created) = conditions_of(text)

    assert (enabled, status) == (("enabled", "$eq", True), ("status", "$eq", "active"))
    assert (created[0], created[1], created[2].isoformat()) == (
        "createdAt",
        "$gte",
        "2024-01-01T00:00:00+00:00",
    )


def test_a_json_filter_may_hold_what_separates_options_and_be_followed_by_more() -> None:
    text = 'db:ticker:all:id?active=1&filter={"status":"a&b=c?d:e%41}\\"{"}&batchSize=3'

    assert conditions_of(text) == [("active", "$eq", 1), ("status", "$eq", 'a&b=c?d:e%41}"{')]
    assert parse(text).options.batch_size == 3


@steady
@given(st.dictionaries(st.sampled_from(sorted(TICKER.fields)), scalars, min_size=1))
def test_a_json_filter_means_the_same_raw_and_encoded(filter_: dict[str, Any]) -> None:
    document = json.dumps(filter_, ensure_ascii=False)

    raw = parse(f"db:ticker:all:id?filter={document}&limit=5")
    encoded = parse(f"db:ticker:all:id?filter={quote(document, safe='')}&limit=5")

    assert raw == encoded
    assert {condition.field: condition.value for condition in raw.filter.conditions} == filter_


@steady
@given(st.text(printable, min_size=1, max_size=60))
def test_any_text_can_be_a_value_once_it_is_percent_encoded(value: str) -> None:
    encoded = quote(value, safe="").replace("all", "%61ll")

    source = parse(f"db:ticker:{encoded}:id?status={encoded}")

    assert source.filter.key == value
    assert source.filter.conditions[0].value == value


def test_rows_named_all_and_fields_named_like_options_can_be_addressed() -> None:
    assert parse("db:ticker:%61ll:id").filter.key == "all"
    assert parse("db:ticker:ALL:id").filter.key == "ALL"
    assert parse('db:ticker:all:limit?filter={"limit":3}').filter.conditions[0].field == "limit"


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("db:ticker:all", 11, "must have the form <source>:<table>:<filter>:<field>"),
        ("db:ticker:a:b:id", 13, "a colon within the filter is written %3A"),
        ("sql:ticker:all:id", 1, 'unknown source "sql": must be one of db, api, file, cache'),
        ("DB:ticker:all:id", 1, "unknown source"),
        ("db::all:id", 4, '"" is not a valid table name'),
        ("db:ticker::id", 11, "the filter is missing"),
        ("db:ticker:all:", 15, '"" is not a valid field name'),
        ("db:ticker:all:id,", 18, '"" is not a valid field name'),
        ("db:ticker:all:id,id", 15, "a field is named twice"),
        ("db:ticker:enabled=true:id", 11, "conditions are options after the ?"),
        ("db:ticker:New York:id", 14, '" " must be written %20'),
        ("db:ticker:å b:id", 12, '" " must be written %20'),
        ("db:ticker:5%:id", 12, "a percent sign must be followed by two hexadecimal digits"),
        ("db:ticker:%FF:id", 11, "not UTF-8"),
        ("db:ticker:all:id?", 18, "expected an option of the form name=value"),
        ("db:ticker:all:id?enabled", 18, "expected an option of the form name=value"),
        ("db:ticker:all:id?enabled=true&", 31, "expected an option of the form name=value"),
        ("db:ticker:all:id?a=1&a=2", 22, "a is given twice; for several values use $in"),
        ("db:ticker:all:id?batchSize=5&batchSize=6", 30, "batchSize is given twice"),
        ("db:ticker:all:id?batchSize=0", 28, "batchSize must be a whole number from 1 to 10,000"),
        ("db:ticker:all:id?batchSize=1e3", 28, "batchSize must be a whole number"),
        ("db:ticker:all:id?batchSize=٣", 28, "batchSize must be a whole number"),
        ("db:ticker:all:id?staggerDelay=-1", 31, "staggerDelay must be a whole number from 0 to 86,400,000"),
        ("db:ticker:all:id?expand=sum", 25, "expand must be one of product, zip"),
        ("db:ticker:all:id?batch_gate=", 29, "batch_gate must be one of delay, start, completion"),
        ("db:ticker:all:id?filter=", 25, "must be an object"),
        ("db:ticker:all:id?filter=1", 25, "must be an object"),
        ("db:ticker:all:id?filter={}", 25, "must have at least one condition"),
        ('db:ticker:all:id?filter={"a":1', 31, "is not valid JSON"),
        ("db:ticker:all:id?filter=%7B%22a%22", 25, "is not valid JSON"),
        ('db:ticker:all:id?filter={"a":1}}', 32, "expected & or the end after the JSON filter"),
        ("db:ticker:all:id?filter=%7B%22a%22:1%7D%7D", 25, "nothing may follow its closing brace"),
        ('db:ticker:all:id?filter={"a":1,"a":2}', 25, '"a" is given twice'),
        ('db:ticker:all:id?filter={"a":{"$gt":1,"$gt":2}}', 25, '"$gt" is given twice'),
        ('db:ticker:all:id?filter={"a":{}}', 25, '"a" must have an operator'),
        ('db:ticker:all:id?filter={"a":{"$regex":"^a"}}', 25, 'unknown operator "$regex"'),
        ('db:ticker:all:id?filter={"a":{"gt":1}}', 25, 'unknown operator "gt"'),
        ('db:ticker:all:id?filter={"$or":[{"a":1}]}', 25, "cannot be compared with a list"),
        ('db:ticker:all:id?filter={"a":[1]}', 25, "for several values use $in"),
        ('db:ticker:all:id?filter={"a":{"$eq":{"b":1}}}', 25, "cannot be compared with an object"),
        ('db:ticker:all:id?filter={"a":{"$in":1}}', 25, "$in must be a list"),
        ('db:ticker:all:id?filter={"a":{"$in":[]}}', 25, "$in must have 1 to 500 members"),
        ('db:ticker:all:id?filter={"a":{"$in":[[1]]}}', 25, "cannot be compared with a list"),
        ('db:ticker:all:id?filter={"a":{"$exists":1}}', 25, "$exists must be true or false"),
        ('db:ticker:all:id?filter={"a":{"$lt":null}}', 25, "$lt needs a value that has an order"),
        ('db:ticker:all:id?filter={"a":NaN}', 25, "NaN is not JSON"),
        ('db:ticker:all:id?filter={"a":1e999}', 25, "too large"),
        ('db:ticker:all:id?filter={"a":9223372036854775808}', 25, "beyond 64 bits"),
        ("db:ticker:all:" + ",".join(f"f{i}" for i in range(21)), 85, "must have at most 20 fields"),
        ("db:ticker:all:id?" + "&".join(f"f{i}=1" for i in range(21)), 128, "must have at most 20 conditions"),
        ("db:ticker:all:" + "i" * 4_000, 4_001, "must have at most 4,000 characters"),
    ],
)  # fmt: skip
def test_an_error_names_its_character(text: str, at: int, message: str) -> None:
    error = refusal(text)

    assert error.startswith(f"character {at}: ")
    assert message in error


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(DataSourceError) as caught:
        parse("sql:9lives:a'b:i d?batchSize=x&expand=y&a__b=1")

    assert len(caught.value.errors) == 7
    positions = [error.position for error in caught.value.errors]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("db:tickr:all:id", ['character 4: unknown table "tickr", did you mean ticker?']),
        ("file:ticker:all:id", ['character 6: unknown table "ticker"']),
        ("db:ticker:all:ids,enabled", ['character 15: unknown field "ids", did you mean id?']),
        ("db:ticker:all:id?enabld=true", ['character 18: unknown field "enabld", did you mean enabled?']),
        ("db:ticker:all:id?enabled=maybe&active=x&createdAt=soon", [
            "character 18: enabled must be true or false", "character 32: active must be a whole number",
            "character 41: createdAt must be a time such as 2024-01-01 or 2024-01-01T08:00:00Z"]),
        ("db:user:x:email", ["character 9: id must be a whole number"]),
        ("db:event:x:name", ["character 10: the table event has no key: use all, with conditions as options"]),
        ('db:ticker:all:id?filter={"active":"1"}', ["character 25: active $eq must be a whole number"]),
        ('db:ticker:all:id?filter={"active":true}', ["character 25: active $eq must be a whole number"]),
        ('db:ticker:all:id?filter={"active":1.5}', ["character 25: active $eq must be a whole number"]),
        ('db:ticker:all:id?filter={"enabled":1}', ["character 25: enabled $eq must be true or false"]),
        ('db:ticker:all:id?filter={"status":{"$in":["a",1]}}', ["character 25: status $in must be text"]),
        ('db:ticker:all:id?filter={"enabled":{"$gt":1}}', ["character 25: enabled $gt cannot be used: true and false have no order"]),
    ],
)  # fmt: skip
def test_a_data_source_that_does_not_fit_the_catalogue_is_refused_with_the_reason(
    text: str, errors: list[str]
) -> None:
    assert [str(error) for error in check(parse(text), CATALOGUE)] == errors
    with pytest.raises(DataSourceError):
        query(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AAPL",
        "news",
        "http://x.example:80/a:b",
        "file:///etc/hosts:1:2",
        "db: see: notes",
        "urn:isbn:1:2",
        "12:30:00:00",
        "db:ticker",
        5,
        None,
        ["db:a:b:c"],
    ],
)
def test_a_text_that_is_not_a_data_source_is_used_as_it_is(text: Any) -> None:
    assert not looks_like(text)
    assert read_params({"value": text}).literals == {"value": text}


def test_data_sources_in_parameters_are_found_and_their_errors_name_the_path() -> None:
    params = read_params(
        {"tickerId": "db:ticker:all:id", "source": "news", "deep": {"x": "db:a:all:b"}, "plain": "\\db:a:b:c"}
    )

    assert params.sources == {"tickerId": parse("db:ticker:all:id")}
    assert params.literals == {"source": "news", "deep": {"x": "db:a:all:b"}, "plain": "db:a:b:c"}
    with pytest.raises(ParamsError) as caught:
        read_params({"a b": "db:x:all:y z", "c": "DB:x:all:y"})
    assert [error.path for error in caught.value.errors] == ['params["a b"]', "params.c"]
    with pytest.raises(ParamsError, match="at most 5"):
        read_params({f"p{i}": "db:x:all:y" for i in range(6)})


@pytest.mark.parametrize(
    ("text", "plain"),
    [("\\db:a:b:c", "db:a:b:c"), ("\\\\db:a:b:c", "\\db:a:b:c"), ("\\n", "\\n"), ("\\\\host", "\\\\host")],
)
def test_a_backslash_keeps_text_from_being_a_data_source(text: str, plain: str) -> None:
    assert not looks_like(text)
    assert unescape(text) == plain
