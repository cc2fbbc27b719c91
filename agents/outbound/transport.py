"""The network side of outbound calls: connects to judged addresses only and waits as the budget allows.

A connection is judged once, when it is opened; a reused one goes to the address that passed. The name in the
URL stays what TLS verifies. There are no proxies, redirects, cookies, retries or environment variables at
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

CONNECT_SECONDS = 5.0  # per address: a dead one must not use up the whole call when the next would answer
KEEPALIVE_SECONDS = 4.0  # below the 5 s after which common servers close an idle connection under our hands


class GuardedTransport(httpx2.HTTPTransport):
    """The one way out. Safe to share between threads. Every use needs a `call_budget`."""

    def __init__(self, policy: Policy, limits: HttpLimits) -> None:
        # The parent's constructor would build the same pool with a backend that connects to anything.
        self._policy = policy
        self._pool = httpcore2.ConnectionPool(
            ssl_context=_trust(policy.ca_file),
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=GuardedBackend(policy),
        )
        self.obey(limits)

    def obey(self, limits: HttpLimits) -> None:
        """Let these limits hold from the next call on. A new pool would end the calls under way with their connections."""
        self._pool._max_connections = limits.max_sockets
        self._pool._max_keepalive_connections = limits.max_sockets if limits.keep_alive else 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request if its URL may be called; otherwise raise `OutboundRefused`."""
        self._policy.judge(urls.read(str(request.url)))
        return super().handle_request(request)

    def abandon(self) -> None:
        """Close this process's ends of connections that its parent goes on using.

        Takes no lock: at the moment of the fork, a thread that does not exist here may have held it.
        """
        for connection in self._pool.connections:
            connection.close()


@cache
def _trust(ca_file: str | None) -> ssl.SSLContext:
    """Whose certificates are believed: reading those of the machine takes 20 ms, so it is done once."""
    context = httpx2.create_ssl_context(trust_env=False)
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


class PassedOn(httpx2.BaseTransport):
    """For a library's own client: each of its requests is made by a function of ours."""

    def __init__(self, send: Callable[[httpx2.Request], httpx2.Response]) -> None:
        self._send = send

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._send(request)


class GuardedBackend(httpcore2.NetworkBackend):
    """Opens connections, for `httpcore2`."""

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
        """Connect to the first judged address that answers. The budget replaces `timeout`."""
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
        """Never: no URL leads here, and nothing else may."""
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
    """One connection. Each wait is cut to what the budget of the current call has left."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Wait for some bytes."""
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
        """Send all bytes; a receiver that takes them one by one is bound by the deadline too."""
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
        """Let go of the connection."""
        self._connection.close()

    def get_extra_info(self, info: str) -> Any:
        """What `httpcore2` asks of a connection."""
        if info == "is_readable":
            return _is_readable(self._connection)
        if info == "ssl_object":
            return self._connection if isinstance(self._connection, ssl.SSLSocket) else None
        if info == "server_addr":
            return self._connection.getpeername()
        return self._connection if info == "socket" else None


def _is_readable(connection: socket.socket) -> bool:
    # An idle connection with something to read has been closed by the other side, or is out of step.
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


# Turns a host name into addresses that may be called, within a time limit. All of them pass, or none.


_Answer = list[Address] | Exception


def resolve_permitted(policy: Policy, host: str, port: int, *, seconds: float) -> list[Address]:
    """Resolve once and judge every address found. A name with one bad address is refused whole.

    Raises `OutboundRefused`, or `RetryableAgentError` when the name service knows no address or does not
    answer.
    """
    found = _literal(host) or _look_up(host, seconds)
    exempt = policy.exempts(host, port)
    for address in found:
        policy.judge_address(address, exempt=exempt)
    return found


def _literal(host: str) -> list[Address]:
    try:
        return [ip_address(host)]
    except ValueError:
        return []


def _look_up(host: str, seconds: float) -> list[Address]:
    # The system's resolver takes no time limit and may think for half a minute. It is left behind in its own
    # thread if it does; this happens only when a connection is opened, not for each call.
    answers: SimpleQueue[_Answer] = SimpleQueue()
    Thread(target=_ask, args=(host, answers), name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except Empty as error:
        raise RetryableAgentError(
            f"The name {host} was not resolved in time.", code="agent_unreachable"
        ) from error
    if isinstance(answer, Exception) or not answer:
        raise RetryableAgentError(f"The name {host} cannot be resolved.", code="agent_unreachable")
    return answer


def _ask(host: str, answers: SimpleQueue[_Answer]) -> None:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        answers.put(list(dict.fromkeys(ip_address(row[4][0]) for row in rows)))
    except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for the answer
        answers.put(error)
