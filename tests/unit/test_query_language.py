"""The query language of the activities' list: what it accepts, and the positions of its errors."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.states import SETTLED, Status
from console.activities.listing import _FILTERS, _SEARCHED
from console.activities.query_language import FIELDS, Condition, QueryError, parse

ID = "01a20146-3c77-704b-9279-1d37fd515cc4"


def error_of(text: str) -> QueryError:
    with pytest.raises(QueryError) as raised:
        parse(text)
    return raised.value


def test_an_empty_query_matches_everything() -> None:
    assert parse("") == parse("   ") == []


def test_several_conditions_are_combined_with_and() -> None:
    assert parse('status:failed role:seo wake:rejection age:<2h name:"home page" bees') == [
        Condition("status", ("failed",)),
        Condition("role", ("seo",)),
        Condition("wake", ("rejection",)),
        Condition("age", timedelta(hours=2), "<"),
        Condition("name", "home page"),
        Condition("words", "bees"),
    ]


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("status:failed,blocked", Condition("status", ("blocked", "failed"))),
        ("status:ended", Condition("status", tuple(sorted(SETTLED)))),
        ("-status:done", Condition("status", ("done",), negated=True)),
        ("STATUS:Done", Condition("status", ("done",))),
        ("for:people", Condition("for", ("human",))),
        ("role:seo,qa", Condition("role", ("seo", "qa"))),
        ("priority:urgent", Condition("priority", 1)),
        ("priority:<5", Condition("priority", 5, "<")),
        ("attempts:>1", Condition("attempts", 1, ">")),
        ("age:>3d", Condition("age", timedelta(days=3), ">")),
        (f"run:{ID}", Condition("run", UUID(ID))),
        ('"status:done"', Condition("words", "status:done")),
        ('-"not this"', Condition("words", "not this", negated=True)),
        ("well-known", Condition("words", "well-known")),
        ("name:a:b", Condition("name", "a:b")),
    ],
)
def test_each_field_has_its_own_syntax(text: str, condition: Condition) -> None:
    assert parse(text) == [condition]


def test_open_and_ended_together_are_all_statuses() -> None:
    (open_ones,), (ended,) = parse("status:open"), parse("status:ended")

    assert sorted((*open_ones.value, *ended.value)) == sorted(map(str, Status))


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("status:open roel:seo", 13, "Unknown field roel. Did you mean role?"),
        ("colour:red", 1, "Unknown field colour. Known fields: status, role"),
        ("status:faild", 8, "did you mean failed?"),
        ("status:", 8, "status: a value is missing."),
        ('name:"home', 6, "The closing quotation mark is missing."),
        ('name:"a"b', 9, "A space is missing."),
        ("age:2h", 5, "use < for younger or > for older"),
        ("age:<2 h", 6, "use a number with s, m, h, d or w"),
        ("age:<999999w", 6, "use at most 3650d"),
        ("status:<done", 8, "status cannot be compared with <."),
        ("priority:99", 10, "use 1 to 20"),
        ("priority:0109", 10, "use 1 to 20"),
        ("attempts:many", 10, "use a whole number"),
        ("run:42", 5, "use an id"),
        ("bees -", 7, "A word is missing."),
        ("a\x00", 2, "is not allowed"),
        ("x" * 501, 501, "at most 500 characters"),
        ("a " * 21, 42, "at most 20 conditions"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_an_error_says_what_is_wrong_and_where(text: str, position: int, words: str) -> None:
    error = error_of(text)

    assert (error.position, words in error.message) == (position, True), error.message


@given(st.text(max_size=80))
def test_any_text_is_understood_or_has_an_error_within_it(text: str) -> None:
    position, conditions = 1, []
    try:
        conditions = parse(text)
    except QueryError as refused:
        position = refused.position

    assert 1 <= position <= len(text) + 1
    assert all(condition.field in {*FIELDS, "words"} for condition in conditions)


def test_every_field_can_be_queried() -> None:
    assert {*_FILTERS, *_SEARCHED} == {*FIELDS, "words"}
