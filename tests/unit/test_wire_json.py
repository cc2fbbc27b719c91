"""Numbers beyond 64 bits, as PostgreSQL returns them."""

from __future__ import annotations

import json

import orjson
import pytest

from tenants import wire_json


@pytest.mark.parametrize("text", ["6e23", "-3.3e27", "1e300", "18446744073709551616"])
def test_a_wide_number_is_written_as_it_was_read(text: str) -> None:
    from_postgres = int(float(text))  # jsonb writes all of its digits

    written = wire_json.dumps_stored({"a": [from_postgres, (1, from_postgres)], "b": {"c": from_postgres}})

    assert json.loads(written) == {"a": [float(text), [1, float(text)]], "b": {"c": float(text)}}


def test_other_values_are_written_as_before_and_unsupported_ones_still_raise() -> None:
    assert wire_json.dumps_stored({"b": 2**64 - 1, "a": -(2**63)}, option=orjson.OPT_SORT_KEYS) == (
        b'{"a":-9223372036854775808,"b":18446744073709551615}'
    )
    assert wire_json.dumps_stored({1}, default=list) == b"[1]"
    with pytest.raises(TypeError, match="not JSON serializable"):
        wire_json.dumps_stored(object())
