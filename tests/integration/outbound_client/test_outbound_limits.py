"""Responses that are too long, compressed or endless."""

from __future__ import annotations

import time

import pytest

from agents.exceptions import (
    PermanentAgentError,
)
from agents.outbound import client
from tests.integration.outbound_client.peers import Serve, answering, dripping, ok, post


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", b"x" * 1001],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"100\r\n" + b"x" * 256 + b"\r\n"] * 10],
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"x" * 1001],
    ],
)
def test_an_answer_above_the_limit_is_cut_off(parts: list[bytes], serve: Serve) -> None:
    server = serve(answering(*parts))

    with pytest.raises(PermanentAgentError) as caught:
        post(server.url, max_bytes=1000)

    assert caught.value.error_code == "answer_too_large"
    assert str(caught.value) == "The answer is larger than 1000 bytes."


def test_an_answer_of_exactly_the_limit_is_returned(serve: Serve) -> None:
    server = serve(answering(ok(b"x" * 1000)))

    assert post(server.url, max_bytes=1000).body == b"x" * 1000


@pytest.mark.parametrize(
    ("start", "endless"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;" + b"e" * 4000 + b"\r\nx\r\n"),
    ],
)
def test_a_flood_outside_the_body_is_cut_off(start: bytes, endless: bytes, serve: Serve) -> None:
    server = serve(dripping(start, endless))

    with pytest.raises(PermanentAgentError) as caught:
        post(server.url, max_bytes=1000)

    assert caught.value.error_code == "answer_too_large"


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "identity, gzip", "x"])
def test_a_compressed_answer_is_refused(encoding: str, serve: Serve) -> None:
    server = serve(answering(ok(b"\x1f\x8b", f"Content-Encoding: {encoding}")))

    with pytest.raises(PermanentAgentError) as caught:
        post(server.url)

    assert caught.value.error_code == "answer_encoded"


def test_an_answer_with_identity_encoding_is_returned(serve: Serve) -> None:
    server = serve(answering(ok(b"1", "Content-Encoding: Identity")))

    assert post(server.url).body == b"1"


@pytest.mark.parametrize(
    ("status", "only_status"), [(200, True), (202, False), (302, False), (404, False), (500, False)]
)
def test_the_status_counts_even_if_the_body_never_ends(
    status: int, only_status: bool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "EXCERPT_SECONDS", 0.2)

    server = serve(dripping(b"HTTP/1.1 %d Status\r\nContent-Length: 99999\r\n\r\nsorry" % status, b"."))

    start_time = time.monotonic()
    response = post(server.url, seconds=30, only_status=only_status)

    assert time.monotonic() - start_time < 20  # because the deadline is 30
    assert (response.status, response.truncated) == (status, True)
    assert response.body.startswith(b"sorry")


def test_only_the_beginning_of_an_error_body_is_returned(serve: Serve) -> None:
    server = serve(answering(b"HTTP/1.1 500 Oops\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000))

    response = post(server.url, max_bytes=1000)

    assert (response.status, len(response.body), response.truncated) == (500, client.EXCERPT_BYTES, True)
