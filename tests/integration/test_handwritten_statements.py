"""Hand-written SQL statements: parameters, rows, batching, and preparation once per connection."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from django.db import IntegrityError, connections, transaction
from django.db.utils import Error
from psycopg.types.json import Jsonb

from tenants.context import OWNER
from tenants.sql import Array, JsonArray, Statement


@pytest.fixture(autouse=True)
def own_connection(database: None) -> Iterator[None]:
    connections[OWNER].close()
    yield
    connections[OWNER].close()  # drops its temporary tables


def _execute(text: str) -> None:
    with connections[OWNER].cursor() as cursor:
        cursor.execute(text)


def test_rows_have_named_columns_with_python_values() -> None:
    statement = Statement(
        "types",
        "SELECT %(number)s::int AS number, %(data)s::jsonb AS data, %(names)s::text[] AS names, '100%%' AS share -- of %(nobody)s\n",
    )
    (row,) = statement.run({"number": 3, "data": Jsonb({"a": [1]}), "names": ["x", "y"]}, using=OWNER)
    assert (row.number, row.data, row.names, row.share) == (3, {"a": [1]}, ["x", "y"], "100%")


def test_a_parameter_can_have_another_type_in_each_call() -> None:
    statement = Statement("value", "SELECT coalesce(%(value)s::numeric, -1)::text AS value")
    values = [statement.run({"value": value}, using=OWNER)[0].value for value in (1, None, 2**40, 2**70, 1)]
    assert values == ["1", "-1", str(2**40), str(2**70), "1"]


def test_changes_of_a_statement_are_rolled_back_with_its_transaction() -> None:
    _execute("CREATE TEMPORARY TABLE noted (id int PRIMARY KEY)")
    note = Statement("note", "INSERT INTO noted VALUES (%(id)s)")
    count = Statement("count", "SELECT count(*) AS found FROM noted")
    with transaction.atomic(using=OWNER):
        assert note.run({"id": 1}, using=OWNER) == []
        transaction.set_rollback(True, using=OWNER)
    assert count.run({}, using=OWNER)[0].found == 0


def test_an_array_is_returned_unchanged() -> None:
    statement = Statement(
        "arrays",
        "SELECT %(texts)s::text[] AS texts, %(ids)s::uuid[] AS ids, %(data)s::jsonb[] AS data, %(times)s::float8[] AS times",
    )
    texts = [
        "",
        "plain",
        "NULL",
        None,
        "a,b",
        "{}",
        'say "so"',
        "back\\slash\\",
        "line\nline\ttab",
        "ümläut 🐝",
        " ",
    ]
    ids = [uuid4(), None]
    (row,) = statement.run(
        {"texts": Array(texts), "ids": Array(ids), "data": Array(['{"a": ["\\"x\\""]}', "null", None]), "times": Array([0.5, 86400.0])},
        using=OWNER,
    )  # fmt: skip
    assert (row.texts, row.ids) == (texts, ids)
    assert (row.data, row.times) == ([{"a": ['"x"']}, None, None], [0.5, 86400.0])


def test_equal_statements_with_lists_are_sent_as_one() -> None:
    _execute("CREATE TEMPORARY TABLE listed (id int, of text, place jsonb)")
    add = Statement(
        "add",
        "INSERT INTO listed SELECT i, %(of)s, %(places)s::jsonb FROM unnest(%(ids)s::int[]) AS i RETURNING id, place",
    )
    lists = ("ids", "places")
    with transaction.atomic(using=OWNER):
        first = add.run_with_next(
            {"ids": [1], "of": "a", "places": JsonArray([b"1"])}, using=OWNER, lists=lists
        )
        other = add.run_with_next({"ids": [9], "of": "b", "places": JsonArray()}, using=OWNER, lists=lists)
        second = add.run_with_next(
            {"ids": [2, 3], "of": "a", "places": JsonArray([b'{"x": 2}'])}, using=OWNER, lists=lists
        )
        rows = [(row.id, row.place) for row in second.fetch()]  # sends all of them, in their order
        late = add.run_with_next({"ids": [4], "of": "a", "places": JsonArray()}, using=OWNER, lists=lists)

    both = [1, {"x": 2}]
    assert rows == [(1, both), (2, both), (3, both)]
    assert first.fetch() == second.fetch()
    assert [row.id for row in other.fetch()] == [9]
    assert [(row.id, row.place) for row in late.fetch()] == [(4, [])]


def test_values_that_cannot_be_sent_leave_the_connection_usable() -> None:
    add = Statement("add", "SELECT name FROM unnest(%(names)s::text[]) AS name")
    with pytest.raises(Error, match="NUL"), transaction.atomic(using=OWNER):
        add.run_with_next({"names": ["\x00"]}, using=OWNER, lists=("names",))
    with transaction.atomic(using=OWNER):
        fine = add.run_with_next({"names": ["x"]}, using=OWNER, lists=("names",))
    assert [row.name for row in fine.fetch()] == ["x"]


def test_lists_are_sent_at_once_outside_a_transaction() -> None:
    add = Statement("add", "SELECT name FROM unnest(%(names)s::text[]) AS name")
    assert [
        row.name for row in add.run_with_next({"names": ["x"]}, using=OWNER, lists=("names",)).fetch()
    ] == ["x"]


def test_a_refused_statement_raises_an_error_of_django_and_can_be_run_again() -> None:
    _execute("CREATE TEMPORARY TABLE once (id int PRIMARY KEY)")
    note = Statement("note", "INSERT INTO once VALUES (%(id)s) RETURNING id")
    for _ in range(2):
        with transaction.atomic(using=OWNER):
            note.run({"id": 1}, using=OWNER)
            with pytest.raises(IntegrityError), transaction.atomic(using=OWNER):
                note.run({"id": 1}, using=OWNER)
            transaction.set_rollback(True, using=OWNER)


def test_a_new_column_of_a_table_causes_an_error_only_once() -> None:
    _execute("CREATE TEMPORARY TABLE grown (id int); INSERT INTO grown VALUES (1)")
    all_of_it = Statement("all", "SELECT * FROM grown")
    assert [row._asdict() for row in all_of_it.run({}, using=OWNER)] == [{"id": 1}]
    _execute("ALTER TABLE grown ADD COLUMN name text DEFAULT 'x'")
    with pytest.raises(Error, match="result type"):
        all_of_it.run({}, using=OWNER)
    assert [row._asdict() for row in all_of_it.run({}, using=OWNER)] == [{"id": 1, "name": "x"}]


def test_a_deallocated_statement_is_prepared_again() -> None:
    statement = Statement("value", "SELECT %(value)s::int AS value, 'forgotten' AS name")
    statement.run({"value": 1}, using=OWNER)
    _execute("DEALLOCATE ALL")
    with pytest.raises(Error, match="does not exist"):
        statement.run({"value": 1}, using=OWNER)
    assert statement.run({"value": 2}, using=OWNER)[0].value == 2


def test_execute_wrappers_see_the_statement_and_can_stop_it() -> None:
    statement, statements = Statement("value", "SELECT %(value)s::int AS value"), []

    def note(execute: object, sql: str, params: dict[str, int], many: bool, context: object) -> None:
        statements.append((sql, params["value"]))
        raise ConnectionError

    with connections[OWNER].execute_wrapper(note), pytest.raises(ConnectionError):
        statement.run({"value": 1}, using=OWNER)
    assert statements == [(statement.text, 1)]
