"""How answers of agents are parsed, and the excerpts of them that may be displayed."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.contracts import Completed, Output, Usage
from agents.outbound import client
from agents.redaction import excerpt
from agents.response_parser import InvalidAnswer, read_completed


def test_a_complete_answer_is_parsed() -> None:
    answer = {
        "output": {"content": "# Title", "data": {"a": [1]}, "content_type": "text/html; charset=utf-8"},
        "usage": {"input_tokens": 5, "output_tokens": 7, "cost_usd": 0.1, "model": "small"},
        "session_id": "s-1",
    }

    assert read_completed(answer) == Completed(
        Output("# Title", {"a": [1]}, "text/html; charset=utf-8"), Usage(5, 7, Decimal("0.1"), "small"), "s-1"
    )


@pytest.mark.parametrize(
    "nothing", [{}, {"content": None, "data": None, "content_type": None}, MappingProxyType({})]
)
def test_everything_but_the_output_object_is_optional(nothing: Any) -> None:
    assert read_completed({"output": nothing}) == Completed(Output())
    assert read_completed({"output": nothing, "usage": {}}) == Completed(Output(), Usage())


def test_unknown_keys_are_tolerated_everywhere() -> None:
    answer = {"output": {"content": "a", "tone": 1}, "usage": {"seconds": 2}, "trace": []}

    assert read_completed(answer) == Completed(Output("a"), Usage())


def test_a_whole_number_of_tokens_may_be_written_as_a_float() -> None:
    """As some JSON libraries write all numbers."""
    completed = read_completed({"output": {}, "usage": {"input_tokens": 5.0, "output_tokens": 7}})

    assert repr(completed.usage) == repr(Usage(5, 7))


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ([], ""),
        (None, ""),
        ("text", ""),
        ({}, "output"),
        ({"output": None}, "output"),
        ({"output": "text"}, "output"),
        ({"output": {"content": 5}}, "output.content"),
        ({"output": {"content_type": 5}}, "output.content_type"),
        ({"output": {"content_type": "markdown"}}, "output.content_type"),
        ({"output": {"content_type": "text/html\r\nX: y"}}, "output.content_type"),
        ({"output": {"content_type": "text/" + "x" * 100}}, "output.content_type"),
        ({"output": {}, "usage": 5}, "usage"),
        ({"output": {}, "usage": {"input_tokens": -1}}, "usage.input_tokens"),
        ({"output": {}, "usage": {"input_tokens": True}}, "usage.input_tokens"),
        ({"output": {}, "usage": {"output_tokens": 1.5}}, "usage.output_tokens"),
        ({"output": {}, "usage": {"output_tokens": 2**62}}, "usage.output_tokens"),
        ({"output": {}, "usage": {"cost_usd": "much"}}, "usage.cost_usd"),
        ({"output": {}, "usage": {"cost_usd": -0.1}}, "usage.cost_usd"),
        ({"output": {}, "usage": {"cost_usd": float("nan")}}, "usage.cost_usd"),
        ({"output": {}, "usage": {"cost_usd": 1e300}}, "usage.cost_usd"),
        ({"output": {}, "usage": {"cost_usd": True}}, "usage.cost_usd"),
        ({"output": {}, "usage": {"model": ""}}, "usage.model"),
        ({"output": {}, "session_id": 5}, "session_id"),
        ({"output": {}, "session_id": "x" * 201}, "session_id"),
    ],
)
def test_an_error_names_its_path_in_the_answer(answer: Any, path: str) -> None:
    with pytest.raises(InvalidAnswer) as caught:
        read_completed(answer)

    assert [error[0] for error in caught.value.errors] == [path]
    assert caught.value.error_code == "invalid_agent_answer"
    assert not caught.value.retryable
    assert path in str(caught.value)


def test_all_errors_of_an_answer_are_reported_at_once() -> None:
    with pytest.raises(InvalidAnswer) as caught:
        read_completed(
            {"output": {"content": 1, "content_type": 1}, "usage": {"cost_usd": "x"}, "session_id": 1}
        )

    paths = [error[0] for error in caught.value.errors]
    assert paths == ["output.content", "output.content_type", "usage.cost_usd", "session_id"]


@pytest.mark.parametrize(("sent", "exact"), [(1, "1"), (0.3, "0.3"), ("0.000001", "0.000001"), (0, "0")])
def test_a_cost_keeps_the_digits_that_were_written(sent: Any, exact: str) -> None:
    usage = read_completed({"output": {}, "usage": {"cost_usd": sent}}).usage

    assert usage is not None
    assert usage.cost_usd == Decimal(exact)


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("\u0665", None),
        ("0", 0),
        (" 7 ", 7),
        ("1.5", 1.5),
        ("3601", 3600),
        ("9" * 5000, 3600),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30),
        ("Thu, 01 Jan 2026 01:00:30 +0100", 30),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0),
        ("Fri, 02 Jan 2026 00:00:00 GMT", 3600),
        ("Thu, 99 Jan 2026 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_capped(header: str | None, seconds: float | None) -> None:
    assert client.retry_after_seconds(header, now=NOW) == seconds


@given(st.text())
def test_no_retry_after_header_raises(header: str) -> None:
    wait = client.retry_after_seconds(header)

    assert wait is None or 0 <= wait <= 3600


def test_an_excerpt_is_short_and_on_one_printable_line() -> None:
    text = excerpt(b"<h1>\r\n\tNo\x00\xff \xe2\x80\xaework</h1>" + b"x" * 1000)

    assert text.startswith("<h1> No � work</h1>xxx")
    assert len(text) == 200


def test_an_excerpt_of_the_end_keeps_the_last_line() -> None:
    text = excerpt("Traceback\n" + "x" * 1000 + "\nMemoryError\n", end=True)

    assert text.endswith("xxx MemoryError")
    assert len(text) == 200


def test_an_excerpt_hides_secrets_but_not_every_short_word() -> None:
    assert excerpt("token abcdef-secret is a", secrets=("abcdef-secret", "a", "")) == "token [secret] is a"


@given(st.binary())
def test_every_body_has_a_printable_excerpt(body: bytes) -> None:
    assert excerpt(body).isprintable()
