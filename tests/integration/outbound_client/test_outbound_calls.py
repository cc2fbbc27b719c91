"""Outbound calls: what is sent and returned, connections, and failures."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agents import outbound
from agents.exceptions import (
    ConfigurationError,
    RetryableAgentError,
)
from tests.integration.outbound_client.peers import Behaviour, Serve, answering, ok, post, read_request


def test_a_call_sends_headers_and_body_and_returns_status_headers_and_body(serve: Serve) -> None:
    requests: list[tuple[bytes, bytes]] = []

    def behave(connection: socket.socket) -> None:
        requests.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 201 Created\r\nX-Place: Here\r\nContent-Length: 2\r\n\r\nhi")

    server = serve(behave)

    response = post(server.url + "?x=1", headers={"X-Job-Id": "7"}, body=b"[1]")

    assert response == outbound.OutboundResponse(201, {"x-place": "Here", "content-length": "2"}, b"hi")
    head, body = requests[0]
    assert head.startswith(b"POST /run?x=1 HTTP/1.1\r\n")
    lines = head.lower().split(b"\r\n")
    assert b"x-job-id: 7" in lines
    assert b"accept-encoding: identity" in lines
    assert f"host: 127.0.0.1:{server.port}".encode() in lines
    assert body == b"[1]"


def test_calls_share_a_connection(serve: Serve) -> None:
    server = serve(answering(ok(b"1"), times=5))

    assert [post(server.url).body for _ in range(5)] == [b"1"] * 5
    assert server.connections == 1


def test_threads_that_share_the_client_get_their_own_answers(serve: Serve) -> None:
    def echo(connection: socket.socket) -> None:
        while True:
            connection.sendall(ok(read_request(connection)[1]))

    server = serve(echo)

    with ThreadPoolExecutor(8) as pool:
        bodies = [str(number).encode() for number in range(200)]
        answers = list(pool.map(lambda body: post(server.url, body=body).body, bodies))

    assert answers == bodies
    assert server.connections <= 8


def test_a_connection_that_the_server_closed_is_not_reused(serve: Serve) -> None:
    closed = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(ok(b"1"))
        connection.shutdown(socket.SHUT_WR)
        closed.set()

    server = serve(behave)

    post(server.url)
    assert closed.wait(60)
    assert post(server.url).body == b"1"
    assert server.connections == 2


def test_a_forked_process_opens_its_own_connection(serve: Serve) -> None:
    server = serve(answering(ok(b"1"), times=5))
    post(server.url)

    child = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(post(server.url).body != b"1")
    )
    child.start()
    child.join(20)

    assert child.exitcode == 0
    assert server.connections == 2
    assert post(server.url).body == b"1"
    assert server.connections == 2


def test_cookies_of_one_answer_are_not_sent_with_the_next_call(serve: Serve) -> None:
    heads: list[bytes] = []

    def behave(connection: socket.socket) -> None:
        for _ in range(2):
            heads.append(read_request(connection)[0])
            connection.sendall(ok(b"1", "Set-Cookie: session=of-another-tenant; Path=/"))

    server = serve(behave)

    post(server.url)
    post(server.url)

    assert b"cookie" not in heads[1].lower()


def test_a_redirect_is_returned_and_not_followed(serve: Serve) -> None:
    target = serve(answering(ok(b"secret")))
    server = serve(
        answering(f"HTTP/1.1 302 Found\r\nLocation: {target.url}\r\nContent-Length: 0\r\n\r\n".encode())
    )

    response = post(server.url)

    assert (response.status, response.headers["location"]) == (302, target.url)
    assert target.connections == 0


def test_proxies_and_credentials_of_the_environment_are_ignored(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(answering(ok(b"proxy")))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    server = serve(answering(ok(b"direct")))

    assert post(server.url).body == b"direct"
    assert proxy.connections == 0


@pytest.mark.parametrize(
    "behave",
    [
        lambda connection: None,
        answering(b""),
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"),
        answering(b"SSH-2.0-OpenSSH_9.9\r\n"),
        answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        answering(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n"),
    ],
)
def test_a_broken_response_is_retryable(behave: Behaviour, serve: Serve) -> None:
    server = serve(behave)

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url)

    assert caught.value.error_code == "agent_unreachable"


def test_an_unreachable_server_is_retryable_and_named_without_its_path(settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_server:
        port = closed_server.getsockname()[1]
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"127.0.0.1:{port}",)

    with pytest.raises(RetryableAgentError) as caught:
        post(f"http://127.0.0.1:{port}/hooks/secret-in-path?key=secret")

    assert caught.value.error_code == "agent_unreachable"
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_failed_call_is_not_repeated(serve: Serve) -> None:
    server = serve(answering(b""))

    with pytest.raises(RetryableAgentError):
        post(server.url)

    assert server.connections == 1


@pytest.mark.parametrize(
    ("name", "value"), [("X\r\nHost", "a"), ("X", "a\r\nHost: b"), ("", "a"), ("X", "ü"), ("X", "\0")]
)
def test_headers_cannot_break_out_of_their_line(name: str, value: str, serve: Serve) -> None:
    server = serve(answering(ok(b"1")))

    with pytest.raises(ConfigurationError):
        post(server.url, headers={name: value})
    assert server.connections == 0
