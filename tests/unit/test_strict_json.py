"""What the strict JSON parser refuses, with the path of the error."""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants import strict_json
from tenants.strict_json import StrictJSONError

LIMIT = 100_000

integers = st.integers(min_value=-(2**63), max_value=2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
scalars = st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


def refusal(raw: bytes, **limits: Any) -> StrictJSONError:
    with pytest.raises(StrictJSONError) as caught:
        strict_json.loads(raw, **{"max_bytes": LIMIT, **limits})
    return caught.value


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@given(documents)
def test_every_ordinary_document_is_parsed_unchanged(document: Any) -> None:
    raw = json.dumps(document).encode()

    assert strict_json.loads(raw, max_bytes=LIMIT) == document
    assert strict_json.loads(raw, max_bytes=LIMIT, reject_duplicate_keys=True) == document
    strict_json.check(document)


@given(st.binary(max_size=200))
def test_all_bytes_are_read_or_raise_the_one_error(raw: bytes) -> None:
    for reject in (False, True):
        with suppress(StrictJSONError):
            strict_json.loads(raw, max_bytes=LIMIT, reject_duplicate_keys=reject)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"nul",
        b"{'a': 1}",
        b"[1,]",
        b"01",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"line\nbreak"',
        b"{} {}",
        "{}".encode("utf-16"),
    ],
)
def test_text_that_is_not_json_is_invalid(raw: bytes) -> None:
    assert refusal(raw).code == "invalid_json"
    assert refusal(raw, reject_duplicate_keys=True).code == "invalid_json"


def test_a_document_of_the_largest_size_is_read_and_one_byte_more_is_too_large() -> None:
    raw = b'"' + b"a" * 8 + b'"'

    assert strict_json.loads(raw, max_bytes=10) == "aaaaaaaa"
    assert refusal(raw, max_bytes=9).code == "too_large"


@pytest.mark.parametrize("depth", [33, 34, 1_000, 2_000, 45_000])
def test_a_document_nested_too_deep_is_refused_without_recursion(depth: int) -> None:
    error = refusal(nested(depth))

    assert error.code == "invalid_json"
    assert refusal(nested(depth), reject_duplicate_keys=True).code == "invalid_json"


def test_the_deepest_allowed_nesting_is_read() -> None:
    assert strict_json.loads(nested(32), max_bytes=LIMIT)
    assert refusal(nested(33)).path == "[0]" * 32


def test_depth_hidden_behind_a_repeated_key_is_refused() -> None:
    raw = b'{"a":' + nested(1_000) + b',"a":1}'

    assert refusal(raw, reject_duplicate_keys=True).code == "invalid_json"


def test_every_value_counts_towards_the_limit_of_values() -> None:
    assert strict_json.loads(b"[1,2,[3]]", max_bytes=LIMIT, max_nodes=5)
    assert "more than 4 values" in str(refusal(b"[1,2,[3]]", max_nodes=4))
    assert refusal(b"[" + b"1," * 10_000 + b"1]").code == "invalid_json"


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775808", "0", "-0"])
def test_integers_of_64_bits_are_exact(number: str) -> None:
    assert strict_json.loads(number.encode(), max_bytes=LIMIT) == int(number)


@pytest.mark.parametrize(
    "number",
    ["9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616", "9" * 30],
)
def test_integers_beyond_64_bits_are_refused_and_not_rounded(number: str) -> None:
    error = refusal(b'{"a": [0, %s]}' % number.encode())

    assert error.path == "a[1]"
    assert "64 bits" in error.message


def test_an_integer_of_many_thousand_digits_is_refused() -> None:
    assert refusal(b"9" * 50_000).code == "invalid_json"


def test_an_integer_of_many_thousand_digits_is_refused_without_the_advice_of_python() -> None:
    error = refusal(b'{"a": ' + b"9" * 5_000 + b"}", reject_duplicate_keys=True)

    assert (error.code, error.message) == ("invalid_json", "has an integer with too many digits")


@pytest.mark.parametrize("number", ["1e300", "-1.5e20", "18446744073709551616.0"])
def test_large_floats_are_not_integers(number: str) -> None:
    assert strict_json.loads(number.encode(), max_bytes=LIMIT) == float(number)


@pytest.mark.parametrize("raw", [b'{"a": "x\\u0000y"}', b'{"a": ["\\u0000"]}'])
def test_nul_characters_are_refused_with_their_place(raw: bytes) -> None:
    error = refusal(raw)

    assert error.path in ("a", "a[0]")
    assert "NUL" in error.message


def test_a_nul_character_in_a_key_is_refused() -> None:
    assert "NUL" in refusal(b'{"b": {"a\\u0000": 1}}').message


def test_repeated_keys_are_refused_only_on_request() -> None:
    raw = b'{"steps": [{"id": 1}, {"id": 1, "\\u0069d": 2}]}'

    assert strict_json.loads(raw, max_bytes=LIMIT) == {"steps": [{"id": 1}, {"id": 2}]}
    error = refusal(raw, reject_duplicate_keys=True)
    assert (error.path, error.message) == ("steps[1]", 'has the key "id" twice')


def test_a_path_shows_odd_keys_escaped_and_cut() -> None:
    error = refusal(json.dumps({"a b": {"\u202e" + "x" * 100: ["\x00"]}}).encode())

    assert error.path.startswith('["a b"]["\\u202exxx')
    assert len(error.path) < 70


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        {"a": "\udfff"},
        "\x00",
        {"\ud800": 1},
        float("nan"),
        float("-inf"),
        2**63,
        {1: "a"},
        {None: "a"},
        b"bytes",
        {1, 2},
        Decimal(1),
        object(),
        [Colour.RED],
    ],
)
def test_values_that_were_never_text_follow_the_same_rules(value: Any) -> None:
    with pytest.raises(StrictJSONError):
        strict_json.check(value)


def test_tuples_and_subclasses_are_accepted_as_their_base_types() -> None:
    strict_json.check({"a": (1, 2.5, True, None), "b": OrderedDict(c=[])})


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(StrictJSONError, match="deeper than 32"):
        strict_json.check(loop)
