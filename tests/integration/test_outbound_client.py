"""The outbound client against real sockets on loopback, most of them ill-behaved."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agents import outbound
from agents.exceptions import (
    AgentError,
    ConfigurationError,
    OutboundRefused,
    PermanentAgentError,
    RetryableAgentError,
)
from agents.outbound import addresses, budget, client, policy, transport

Behaviour = Callable[[socket.socket], None]


class Server:
    """A listener that behaves as a function of the accepted connection says. Counts connections."""

    def __init__(self, behaviour: Behaviour, context: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self._behaviour = behaviour
        self._context = context
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/run"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            self._behaviour(connection)
            connection.close()

    def close(self) -> None:
        for opened in (self._listener, *self._open):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()


Serve = Callable[..., Server]


@pytest.fixture(autouse=True)
def closed_world(settings: Any) -> Iterator[None]:
    """Nothing may be called unless the test says so."""
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    settings.ORCHESTRATOR_EGRESS_DENY = ()
    settings.ORCHESTRATOR_EGRESS_CA_FILE = None
    yield
    outbound.close_connections()


@pytest.fixture
def serve(settings: Any) -> Iterator[Serve]:
    """Starts servers that may be called."""
    servers: list[Server] = []

    def start(behaviour: Behaviour, *, allowed: bool = True, context: ssl.SSLContext | None = None) -> Server:
        servers.append(Server(behaviour, context))
        if allowed:
            settings.ORCHESTRATOR_EGRESS_ALLOW += (f"127.0.0.1:{servers[-1].port}",)
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A name service under the test's control."""
    table: dict[str, list[str]] = {}

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        if host not in table:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0)) for address in table[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return table


def post(
    url: str, *, seconds: float = 20, max_bytes: int = 100_000, **options: Any
) -> outbound.OutboundResponse:
    options = {"headers": {}, "body": b"{}", **options}
    return outbound.send("POST", url, deadline_seconds=seconds, max_bytes=max_bytes, **options)


def read_request(connection: socket.socket) -> tuple[bytes, bytes]:
    """One whole request: its head and its body. Raises OSError when the client has gone."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
    while len(body) < length:
        body += _some(connection)
    return head, body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionResetError
    return data


def answering(*parts: bytes, times: int = 1) -> Behaviour:
    def behave(connection: socket.socket) -> None:
        for _ in range(times):
            read_request(connection)
            for part in parts:
                connection.sendall(part)

    return behave


def ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def until_gone(connection: socket.socket, data: bytes) -> None:
    """Send the same bytes again and again until the client hangs up."""
    while True:
        connection.sendall(data)
        time.sleep(0.01)


def test_a_call_carries_its_headers_and_body_and_returns_status_headers_and_body(serve: Serve) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def behave(connection: socket.socket) -> None:
        seen.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 201 Created\r\nX-Place: Here\r\nContent-Length: 2\r\n\r\nhi")

    server = serve(behave)

    response = post(server.url + "?x=1", headers={"X-Job-Id": "7"}, body=b"[1]")

    assert response == outbound.OutboundResponse(201, {"x-place": "Here", "content-length": "2"}, b"hi")
    head, body = seen[0]
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


def test_threads_share_the_client_and_never_get_each_others_answers(serve: Serve) -> None:
    def echo(connection: socket.socket) -> None:
        while True:
            connection.sendall(ok(read_request(connection)[1]))

    server = serve(echo)

    with ThreadPoolExecutor(8) as pool:
        bodies = [str(number).encode() for number in range(200)]
        answers = list(pool.map(lambda body: post(server.url, body=body).body, bodies))

    assert answers == bodies
    assert server.connections <= 8


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(serve: Serve) -> None:
    closed = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(ok(b"1"))
        connection.shutdown(socket.SHUT_WR)
        closed.set()

    server = serve(behave)

    post(server.url)
    assert closed.wait(10)
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
    hidden = serve(answering(ok(b"secret")))
    server = serve(
        answering(f"HTTP/1.1 302 Found\r\nLocation: {hidden.url}\r\nContent-Length: 0\r\n\r\n".encode())
    )

    response = post(server.url)

    assert (response.status, response.headers["location"]) == (302, hidden.url)
    assert hidden.connections == 0


def test_proxies_and_credentials_of_the_environment_are_ignored(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(answering(ok(b"proxy")))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    server = serve(answering(ok(b"direct")))

    assert post(server.url).body == b"direct"
    assert proxy.connections == 0


def test_an_address_that_is_not_allowed_is_never_connected_to(
    serve: Serve, names: dict[str, list[str]]
) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    names.update({"inside.example": ["127.0.0.1"], "localhost": ["127.0.0.1"]})
    port = server.port

    for host in (
        "127.0.0.1",
        "127.1",
        "2130706433",
        "localhost",
        "inside.example",
        "[::ffff:127.0.0.1]",
        "0",
    ):
        for scheme in ("http", "https"):
            with pytest.raises(OutboundRefused):
                post(f"{scheme}://{host}:{port}/")

    assert server.connections == 0


def test_a_name_that_points_inside_after_it_was_checked_is_refused_at_the_call(
    serve: Serve, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    monkeypatch.setattr(policy, "PORTS", frozenset({server.port}))
    url = f"https://flip.example:{server.port}/"
    names["flip.example"] = ["93.184.216.34"]
    outbound.check_url(url)

    names["flip.example"] = ["127.0.0.1"]

    with pytest.raises(OutboundRefused, match=r"127\.0\.0\.1 is not a public address"):
        post(url)
    assert server.connections == 0


def test_a_name_with_one_good_and_one_bad_address_is_refused_whole(
    serve: Serve, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"secret")), allowed=False)
    monkeypatch.setattr(policy, "PORTS", frozenset({server.port}))
    names["mixed.example"] = ["127.0.0.1", "93.184.216.34"]

    with pytest.raises(OutboundRefused):
        post(f"https://mixed.example:{server.port}/")
    assert server.connections == 0


def test_the_name_is_resolved_once_and_the_judged_address_is_connected_to(
    serve: Serve, names: dict[str, list[str]], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"1")))
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agent.internal:{server.port}",)
    names["agent.internal"] = ["127.0.0.1"]
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def listening(host: str, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", listening)

    assert post(f"http://agent.internal:{server.port}/").body == b"1"
    assert asked == ["agent.internal"]


def test_only_https_and_the_ports_of_the_web_are_called_even_at_public_addresses(
    serve: Serve, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(answering(ok(b"1")), allowed=False)
    monkeypatch.setattr(addresses, "is_public", lambda address: True)
    names["agent.example"] = ["127.0.0.1"]

    with pytest.raises(OutboundRefused, match="port"):
        post(f"https://agent.example:{server.port}/")
    monkeypatch.setattr(policy, "PORTS", frozenset({server.port}))
    with pytest.raises(OutboundRefused, match="https"):
        post(f"http://agent.example:{server.port}/")
    assert server.connections == 0


def test_an_allowed_name_that_points_to_a_metadata_service_is_refused(
    serve: Serve, names: dict[str, list[str]], settings: Any
) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("agent.internal:80",)
    names["agent.internal"] = ["169.254.169.254"]

    with pytest.raises(OutboundRefused, match="metadata"):
        post("http://agent.internal:80/")


def test_the_next_address_is_tried_when_the_first_does_not_answer(
    serve: Serve, names: dict[str, list[str]], settings: Any
) -> None:
    server = serve(answering(ok(b"1")))
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agent.internal:{server.port}",)
    names["agent.internal"] = ["127.0.0.2", "127.0.0.1"]  # nobody listens on the first

    assert post(f"http://agent.internal:{server.port}/").body == b"1"


def test_a_place_taken_off_the_allow_list_is_refused_though_its_connection_is_still_open(
    serve: Serve, settings: Any
) -> None:
    server = serve(answering(ok(b"1"), times=2))
    post(server.url)

    settings.ORCHESTRATOR_EGRESS_ALLOW = ()

    with pytest.raises(OutboundRefused):
        post(server.url)


def test_nothing_goes_out_without_a_budget(serve: Serve) -> None:
    server = serve(answering(ok(b"1")))

    with pytest.raises(RuntimeError, match="call_budget"):
        outbound.guarded_transport().handle_request(httpx2.Request("GET", server.url))
    assert server.connections == 0


def test_a_library_with_its_own_client_is_guarded_by_the_transport(serve: Serve) -> None:
    server = serve(answering(ok(b"1")))
    library = httpx2.Client(transport=outbound.guarded_transport(), trust_env=False)

    with outbound.call_budget(20, 1_000):
        assert library.get(server.url).content == b"1"
        with pytest.raises(OutboundRefused):
            library.get("http://127.0.0.1:1/")


def test_sockets_of_this_machine_are_never_opened(tmp_path: Path) -> None:
    with pytest.raises(OutboundRefused):
        transport.GuardedBackend(policy.current()).connect_unix_socket(str(tmp_path / "socket"))


def dripping(start: bytes, drop: bytes) -> Behaviour:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(start)
        until_gone(connection, drop)

    return behave


def silent(connection: socket.socket) -> None:
    """Takes everything and never says a word."""
    while connection.recv(65536):
        pass


def _wait(event: threading.Event) -> None:
    event.wait(20)


SLOW: dict[str, Behaviour] = {
    "silent": silent,
    "dripping headers": dripping(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "dripping body": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"x"),
    "dripping chunks": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}


@pytest.mark.parametrize("slow", list(SLOW))
def test_a_slow_answer_ends_at_the_deadline(slow: str, serve: Serve) -> None:
    server = serve(SLOW[slow])
    started = time.monotonic()

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url, seconds=0.4)

    assert caught.value.error_code == "agent_timeout"
    assert time.monotonic() - started < 5


def test_a_receiver_that_does_not_read_ends_at_the_deadline(serve: Serve) -> None:
    hold = threading.Event()
    server = serve(lambda connection: _wait(hold))

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url, seconds=0.4, body=b"x" * 20_000_000)

    hold.set()
    assert caught.value.error_code == "agent_timeout"


def test_a_name_service_that_does_not_answer_ends_at_the_deadline(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = threading.Event()
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("agent.internal:80",)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *rest, **more: _wait(hold))

    started = time.monotonic()

    with pytest.raises(RetryableAgentError, match=r"agent\.internal was not resolved in time"):
        post("http://agent.internal:80/", seconds=0.2)

    hold.set()
    assert time.monotonic() - started < 5


def test_a_connection_attempt_that_gets_no_reply_ends_at_the_deadline(serve: Serve, settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        settings.ORCHESTRATOR_EGRESS_ALLOW = (f"127.0.0.1:{port}",)
        waiting = [socket.socket() for _ in range(4)]  # nobody accepts, so the queue is full after the first
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))

        started = time.monotonic()

        with pytest.raises(RetryableAgentError) as caught:
            post(f"http://127.0.0.1:{port}/", seconds=0.4)

        assert caught.value.error_code == "agent_timeout"
        assert time.monotonic() - started < transport.CONNECT_SECONDS
        for one in waiting:
            one.close()


def test_a_cancelled_run_lets_go_of_a_silent_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.05)
    server = serve(SLOW["silent"])
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(AgentError) as caught:
        post(server.url, cancelled=cancelled)

    assert caught.value.error_code == "run_cancelled"
    assert not caught.value.retryable
    assert len(asked) == 3


def test_a_dripping_server_does_not_make_us_ask_at_every_drop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "POLL_SECONDS", 0.2)
    server = serve(SLOW["dripping body"])
    asked: list[int] = []

    with pytest.raises(RetryableAgentError):
        post(server.url, seconds=0.7, cancelled=lambda: bool(asked.append(1)))  # type: ignore[func-returns-value]

    assert 1 <= len(asked) <= 3


def test_nobody_is_asked_about_cancellation_during_a_quick_call(serve: Serve) -> None:
    server = serve(answering(ok(b"1")))

    assert post(server.url, cancelled=lambda: pytest.fail("asked")).body == b"1"


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
def test_a_flood_beside_the_body_is_cut_off_too(start: bytes, endless: bytes, serve: Serve) -> None:
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


def test_an_answer_that_says_identity_is_returned(serve: Serve) -> None:
    server = serve(answering(ok(b"1", "Content-Encoding: Identity")))

    assert post(server.url).body == b"1"


@pytest.mark.parametrize("status", [202, 302, 404, 500])
def test_the_status_counts_even_if_the_body_never_ends(
    status: int, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "EXCERPT_SECONDS", 0.2)

    server = serve(dripping(b"HTTP/1.1 %d Status\r\nContent-Length: 99999\r\n\r\nsorry" % status, b"."))

    started = time.monotonic()
    response = post(server.url, seconds=30)

    assert time.monotonic() - started < 10
    assert (response.status, response.truncated) == (status, True)
    assert response.body.startswith(b"sorry")


def test_only_the_beginning_of_an_errors_body_is_kept(serve: Serve) -> None:
    server = serve(answering(b"HTTP/1.1 500 Oops\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000))

    response = post(server.url, max_bytes=1000)

    assert (response.status, len(response.body), response.truncated) == (500, client.EXCERPT_BYTES, True)


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
def test_a_broken_conversation_is_retryable(behave: Behaviour, serve: Serve) -> None:
    server = serve(behave)

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url)

    assert caught.value.error_code == "agent_unreachable"


def test_a_server_that_is_not_there_is_retryable_and_named_without_its_path(settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
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


class Authority:
    """A certificate authority of our own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Test authority")])
        certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate)

    def context_for(self, name: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        try:
            alternative: x509.GeneralName = x509.IPAddress(ip_address(name))
        except ValueError:
            alternative = x509.DNSName(name)
        file = self._folder / f"{name}.pem"
        file.write_bytes(
            self._sign(subject, key, x509.SubjectAlternativeName([alternative]))
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> bytes:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(days=1),
            not_valid_after=now + timedelta(days=1),
        )
        signed = builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_the_original_name_is_used_for_tls_while_the_judged_address_is_connected_to(
    serve: Serve, names: dict[str, list[str]], settings: Any, authority: Authority
) -> None:
    context = authority.context_for("agent.example")
    asked: list[str | None] = []
    context.sni_callback = lambda connection, name, _: asked.append(name)
    server = serve(answering(ok(json.dumps("hello").encode())), context=context)
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agent.example:{server.port}",)
    settings.ORCHESTRATOR_EGRESS_CA_FILE = authority.file
    names["agent.example"] = ["127.0.0.1"]

    assert post(f"https://agent.example:{server.port}/").body == b'"hello"'
    assert asked == ["agent.example"]


@pytest.mark.parametrize("trusted", [True, False])
def test_a_wrong_or_unknown_certificate_ends_the_call(
    trusted: bool, serve: Serve, names: dict[str, list[str]], settings: Any, authority: Authority
) -> None:
    server = serve(
        answering(ok(b"1")), context=authority.context_for("other.example" if trusted else "agent.example")
    )
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"agent.example:{server.port}",)
    settings.ORCHESTRATOR_EGRESS_CA_FILE = authority.file if trusted else None
    names["agent.example"] = ["127.0.0.1"]

    with pytest.raises(RetryableAgentError, match="certificate") as caught:
        post(f"https://agent.example:{server.port}/")

    assert caught.value.error_code == "agent_unreachable"


def test_a_handshake_that_never_ends_is_bound_by_the_deadline(serve: Serve) -> None:
    server = serve(SLOW["silent"])

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url.replace("http:", "https:"), seconds=0.4)

    assert caught.value.error_code == "agent_timeout"


def test_a_slow_answer_over_tls_ends_at_the_deadline(
    serve: Serve, settings: Any, authority: Authority
) -> None:
    server = serve(SLOW["dripping body"], context=authority.context_for("127.0.0.1"))
    settings.ORCHESTRATOR_EGRESS_CA_FILE = authority.file

    with pytest.raises(RetryableAgentError) as caught:
        post(server.url.replace("http:", "https:"), seconds=0.5)

    assert caught.value.error_code == "agent_timeout"
