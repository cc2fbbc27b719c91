"""Hand-written statements are prepared once for each connection, and nobody notices that they are."""

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
    connections[OWNER].close()  # with it its temporary tables go


def _do(text: str) -> None:
    with connections[OWNER].cursor() as cursor:
        cursor.execute(text)


def test_rows_have_names_and_their_values_are_those_of_python() -> None:
    asked = Statement(
        "asked",
        "SELECT %(number)s::int AS number, %(told)s::jsonb AS told, %(names)s::text[] AS names, '100%%' AS share -- of %(nobody)s\n",
    )
    (row,) = asked.run({"number": 3, "told": Jsonb({"a": [1]}), "names": ["x", "y"]}, using=OWNER)
    assert (row.number, row.told, row.names, row.share) == (3, {"a": [1]}, ["x", "y"], "100%")


def test_a_parameter_may_have_another_type_each_time() -> None:
    asked = Statement("asked", "SELECT coalesce(%(value)s::numeric, -1)::text AS value")
    found = [asked.run({"value": value}, using=OWNER)[0].value for value in (1, None, 2**40, 2**70, 1)]
    assert found == ["1", "-1", str(2**40), str(2**70), "1"]


def test_what_a_statement_changes_is_undone_with_its_transaction() -> None:
    _do("CREATE TEMPORARY TABLE noted (id int PRIMARY KEY)")
    note = Statement("note", "INSERT INTO noted VALUES (%(id)s)")
    count = Statement("count", "SELECT count(*) AS found FROM noted")
    with transaction.atomic(using=OWNER):
        assert note.run({"id": 1}, using=OWNER) == []
        transaction.set_rollback(True, using=OWNER)
    assert count.run({}, using=OWNER)[0].found == 0


def test_an_array_comes_back_as_it_was_given() -> None:
    told = Statement(
        "told",
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
    (row,) = told.run(
        {"texts": Array(texts), "ids": Array(ids), "data": Array(['{"a": ["\\"x\\""]}', "null", None]), "times": Array([0.5, 86400.0])},
        using=OWNER,
    )  # fmt: skip
    assert (row.texts, row.ids) == (texts, ids)
    assert (row.data, row.times) == ([{"a": ['"x"']}, None, None], [0.5, 86400.0])


def test_statements_that_do_the_same_with_lists_become_one_when_they_are_sent() -> None:
    _do("CREATE TEMPORARY TABLE listed (id int, of text, place jsonb)")
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


def test_lists_whose_values_cannot_be_written_leave_the_connection_as_it_was() -> None:
    add = Statement("add", "SELECT name FROM unnest(%(names)s::text[]) AS name")
    with pytest.raises(Error, match="NUL"), transaction.atomic(using=OWNER):
        add.run_with_next({"names": ["\x00"]}, using=OWNER, lists=("names",))
    with transaction.atomic(using=OWNER):
        fine = add.run_with_next({"names": ["x"]}, using=OWNER, lists=("names",))
    assert [row.name for row in fine.fetch()] == ["x"]


def test_outside_of_a_transaction_lists_are_sent_at_once() -> None:
    add = Statement("add", "SELECT name FROM unnest(%(names)s::text[]) AS name")
    assert [
        row.name for row in add.run_with_next({"names": ["x"]}, using=OWNER, lists=("names",)).fetch()
    ] == ["x"]


def test_a_refused_statement_raises_the_error_of_django_and_may_be_run_again() -> None:
    _do("CREATE TEMPORARY TABLE once (id int PRIMARY KEY)")
    note = Statement("note", "INSERT INTO once VALUES (%(id)s) RETURNING id")
    for _ in range(2):
        with transaction.atomic(using=OWNER):
            note.run({"id": 1}, using=OWNER)
            with pytest.raises(IntegrityError), transaction.atomic(using=OWNER):
                note.run({"id": 1}, using=OWNER)
            transaction.set_rollback(True, using=OWNER)


def test_a_table_that_got_a_column_meanwhile_is_an_error_only_once() -> None:
    _do("CREATE TEMPORARY TABLE grown (id int); INSERT INTO grown VALUES (1)")
    all_of_it = Statement("all", "SELECT * FROM grown")
    assert [row._asdict() for row in all_of_it.run({}, using=OWNER)] == [{"id": 1}]
    _do("ALTER TABLE grown ADD COLUMN name text DEFAULT 'x'")
    with pytest.raises(Error, match="result type"):
        all_of_it.run({}, using=OWNER)
    assert [row._asdict() for row in all_of_it.run({}, using=OWNER)] == [{"id": 1, "name": "x"}]


def test_a_statement_that_the_server_has_forgotten_is_prepared_again() -> None:
    asked = Statement("asked", "SELECT %(value)s::int AS value, 'forgotten' AS name")
    asked.run({"value": 1}, using=OWNER)
    _do("DEALLOCATE ALL")
    with pytest.raises(Error, match="does not exist"):
        asked.run({"value": 1}, using=OWNER)
    assert asked.run({"value": 2}, using=OWNER)[0].value == 2


def test_wrappers_see_the_statement_and_may_keep_it_from_the_server() -> None:
    asked, seen = Statement("asked", "SELECT %(value)s::int AS value"), []

    def note(execute: object, sql: str, params: dict[str, int], many: bool, context: object) -> None:
        seen.append((sql, params["value"]))
        raise ConnectionError

    with connections[OWNER].execute_wrapper(note), pytest.raises(ConnectionError):
        asked.run({"value": 1}, using=OWNER)
    assert seen == [(asked.text, 1)]
