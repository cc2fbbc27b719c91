"""The network side of outbound calls: connects only to permitted addresses, and waits as long as the budget allows.

A connection is checked once, when it is opened; a reused one goes to the address that passed. TLS still verifies
the name in the URL. There are no proxies, redirects, cookies, retries or environment variables at
this level.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import cache
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import httpcore2
import httpx2

from agents.contracts import HttpLimits
from agents.exceptions import OutboundRefused, RetryableAgentError
from agents.outbound import budget, urls
from agents.outbound.policy import Policy
from agents.outbound.urls import Address

# Per address, so that a dead address does not use up the whole call when the next would answer.
CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 4.0  # below the 5 s after which common servers close an idle connection


class GuardedTransport(httpx2.HTTPTransport):
    """The transport of all outbound calls. Safe to share between threads. Every use needs a `call_budget`."""

    def __init__(self, policy: Policy, limits: HttpLimits) -> None:
        # The parent's constructor would build the same pool with a backend that connects to anything.
        self._policy = policy
        self._pool = httpcore2.ConnectionPool(
            ssl_context=_trust(policy.ca_file),
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=GuardedBackend(policy),
        )
        self.set_limits(limits)

    def set_limits(self, limits: HttpLimits) -> None:
        """Apply these limits to further calls. A new pool would close the connections of current calls."""
        self._pool._max_connections = limits.max_sockets
        self._pool._max_keepalive_connections = limits.max_sockets if limits.keep_alive else 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request if its URL may be called; otherwise raise `OutboundRefused`."""
        self._policy.check(urls.read(str(request.url)))
        return super().handle_request(request)

    def abandon(self) -> None:
        """Close this process's ends of connections that its parent continues to use.

        Takes no lock, because a thread of the parent may have held it at the time of the fork.
        """
        for connection in self._pool.connections:
            connection.close()


@cache
def _trust(ca_file: str | None) -> ssl.SSLContext:
    """Load the trusted certificates. Cached, because reading those of the machine takes 20 ms."""
    context = httpx2.create_ssl_context(trust_env=False)
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


class DelegatingTransport(httpx2.BaseTransport):
    """The transport of a library's client. It passes each request to a function of ours."""

    def __init__(self, send: Callable[[httpx2.Request], httpx2.Response]) -> None:
        self._send = send

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._send(request)


class GuardedBackend(httpcore2.NetworkBackend):
    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first permitted address that answers. The budget replaces `timeout`."""
        seconds = budget.current().wait()
        problem: Exception | None = None
        for address in resolve_permitted(self._policy, host, port, seconds=seconds):
            try:
                return GuardedStream(_connect(address, port))
            except OSError as error:
                problem = error
        budget.current().wait()  # raises if it was the deadline that ended the attempts
        raise httpcore2.ConnectError(str(problem)) from problem

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Always refuse: no URL leads here."""
        raise OutboundRefused("Sockets of this machine may not be called.")


def _connect(address: Address, port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        opened.settimeout(min(CONNECT_SECONDS, budget.current().wait()))
        opened.connect((str(address), port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        opened.close()
        raise
    return opened


class GuardedStream(httpcore2.NetworkStream):
    """One connection. Each wait is limited to the remaining budget of the current call."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        call = budget.current()
        while True:
            self._connection.settimeout(call.wait())
            try:
                data = self._connection.recv(max_bytes)
            except TimeoutError:
                continue  # the next wait() decides whether the call is over
            except OSError as error:
                raise httpcore2.ReadError(str(error)) from error
            call.receive(len(data))
            return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all bytes. The deadline also limits a receiver that reads them one by one."""
        call = budget.current()
        call.sending = True
        left = memoryview(buffer)
        while left:
            self._connection.settimeout(call.wait())
            try:
                left = left[self._connection.send(left) :]
            except TimeoutError:
                continue
            except OSError as error:
                raise httpcore2.WriteError(str(error)) from error

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        """Turn the connection into a verified one for this name."""
        try:
            self._connection.settimeout(budget.current().wait())
            return GuardedStream(ssl_context.wrap_socket(self._connection, server_hostname=server_hostname))
        except (OSError, ValueError) as error:
            self.close()
            budget.current().wait()
            raise httpcore2.ConnectError(str(error)) from error

    def close(self) -> None:
        self._connection.close()

    def get_extra_info(self, info: str) -> Any:
        """Return what `httpcore2` requests about a connection."""
        if info == "is_readable":
            return _is_readable(self._connection)
        if info == "ssl_object":
            return self._connection if isinstance(self._connection, ssl.SSLSocket) else None
        if info == "server_addr":
            return self._connection.getpeername()
        return self._connection if info == "socket" else None


def _is_readable(connection: socket.socket) -> bool:
    # An idle connection with something to read has been closed by the other side, or is out of sync.
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


# Resolves a host name into permitted addresses, within a time limit. All of them pass, or none.


_Answer = list[Address] | Exception


def resolve_permitted(policy: Policy, host: str, port: int, *, seconds: float) -> list[Address]:
    """Resolve once and check every address. A name with one forbidden address is refused.

    Raises `OutboundRefused`, or `RetryableAgentError` when the name has no address or cannot be resolved in
    time.
    """
    addresses = _literal(host) or _resolve(host, seconds)
    exempt = policy.exempts(host, port)
    for address in addresses:
        policy.check_address(address, exempt=exempt)
    return addresses


def _literal(host: str) -> list[Address]:
    try:
        return [ip_address(host)]
    except ValueError:
        return []


def _resolve(host: str, seconds: float) -> list[Address]:
    # The system's resolver has no time limit and may take half a minute, so it runs in a separate thread, which
    # is abandoned if it is late. This happens only when a connection is opened, not for each call.
    answers: SimpleQueue[_Answer] = SimpleQueue()
    Thread(target=_resolve_into, args=(host, answers), name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except Empty as error:
        raise RetryableAgentError(
            f"The name {host} was not resolved in time.", code="agent_unreachable"
        ) from error
    if isinstance(answer, Exception) or not answer:
        raise RetryableAgentError(f"The name {host} cannot be resolved.", code="agent_unreachable")
    return answer


def _resolve_into(host: str, answers: SimpleQueue[_Answer]) -> None:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        answers.put(list(dict.fromkeys(ip_address(row[4][0]) for row in rows)))
    except Exception as error:  # noqa: BLE001 - the caller waits for an answer, whatever the error
        answers.put(error)
