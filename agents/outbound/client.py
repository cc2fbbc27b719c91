"""Makes one outbound call: judged, bounded, never repeated, and forgetting everything but the connection.

Other people's libraries are given a client of ours, so that their calls go through the guard like all others. Only the headers that the
protocols need are sent, and the credential is ours: what a library finds in this machine's environment (keys, organisations, custom
headers) and tells about it never leaves. An answer that is compressed, which is never asked for, is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, cast

from agents.contracts import HttpLimits
from agents.exceptions import (
    AgentError,
    ConfigurationError,
    OutboundRefused,
    PermanentAgentError,
    RetryableAgentError,
)
from agents.outbound import budget, policy, urls
from tenants.lazy_import import lazy_import

# Loaded with the first call, or the first name that is looked up: most processes only read addresses.
if TYPE_CHECKING:
    import httpx2

    from agents.outbound import transport
else:
    httpx2, transport = lazy_import("httpx2"), lazy_import("agents.outbound.transport")

CHECK_SECONDS = 5.0  # somebody waits for the form to be saved
EXCERPT_BYTES = 16 * 1024  # of an answer that is only looked at by people
EXCERPT_SECONDS = 2.0  # its status is known; the rest is not worth a worker's time

_ERRNO = re.compile(r"^\[Errno -?\d+\] ")  # of a message: people read the words behind it
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")

_lock = Lock()
_shared: dict[
    policy.Policy, transport.GuardedTransport
] = {}  # a connection is used again under the rules alone that it was judged by


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    """An answer. Header names are in lower case. `truncated` says that the body is only its beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False


def check_url(url: str, *, purpose: str = policy.AGENTS) -> None:
    """Refuse a URL that could not be called, for use when it is saved. Calls check again: names change."""
    rules, target = policy.current(purpose), urls.read(url)
    rules.judge(target)
    if rules.exempts(target.host, target.port):
        return
    try:
        transport.resolve_permitted(rules, target.host, target.port, seconds=CHECK_SECONDS)
    except RetryableAgentError as error:
        raise OutboundRefused(str(error)) from error


def send(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    deadline_seconds: float,
    max_bytes: int,
    cancelled: Callable[[], bool] | None = None,
    limits: HttpLimits | None = None,
    purpose: str = policy.AGENTS,
) -> OutboundResponse:
    """Make one call and return its answer, whatever its status; a redirect is an answer like any other.

    `purpose` says which of the operators' exemptions hold for it.

    `limits`, where the caller knows them, hold for all calls of the process from now on.

    The deadline covers everything from the name service to the last byte. A 2xx other than 202 is returned
    whole or not at all; of all others, whose meaning is their status, only the beginning of the body is kept.
    Raises `OutboundRefused`, `RetryableAgentError` (agent_timeout, agent_unreachable) or
    `PermanentAgentError`; `nothing_sent` of the error says whether the request never left.
    """
    if limits is not None:
        _obey(limits)
    target = urls.read(url)
    # The gate has let no more calls in than there are sockets; should the pool think otherwise, it must not wait for ever.
    patience = {"timeout": {"pool": deadline_seconds}}
    request = httpx2.Request(
        method, target.url, headers=_check_headers(headers), content=body, extensions=patience
    )
    with (
        budget.call_budget(
            deadline_seconds, max_bytes, cancelled, counts_over_all=purpose == policy.AGENTS
        ) as call,
        _note_if_sent(call),
        plain_errors(url, deadline_seconds),
    ):
        response = get_guarded_transport(purpose).handle_request(request)
        try:
            return _answer(response, call, max_bytes)
        finally:
            response.close()


def get_guarded_transport(purpose: str = policy.AGENTS) -> transport.GuardedTransport:
    """The process's shared transport for a purpose, for libraries with clients of their own. Use it in a `call_budget`."""
    rules = policy.current(purpose)
    if (found := _shared.get(rules)) is not None:
        return found
    with _lock:
        in_force = {policy.current(each) for each in policy.PURPOSES}
        for outdated in [each for each in _shared if each not in in_force]:
            _shared.pop(outdated).close()  # its connections were judged by other rules
        if rules not in _shared:
            _shared[rules] = transport.GuardedTransport(rules, budget.shared.limits)
        return _shared[rules]


def close_connections() -> None:
    """Close all connections of this process, for its orderly end. The next call opens new ones."""
    with _lock:
        while _shared:
            _shared.popitem()[1].close()


def _forget_connections() -> None:
    # After a fork the sockets belong to the parent: two processes on one connection would mix up answers.
    global _lock, _shared
    inherited, _lock, _shared = _shared, Lock(), {}
    budget.forget()
    for each in inherited.values():
        each.abandon()


os.register_at_fork(after_in_child=_forget_connections)


def _obey(limits: HttpLimits) -> None:
    with _lock:
        if budget.shared.limits != limits:
            budget.shared.obey(limits)
            for each in _shared.values():
                each.obey(limits)


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ConfigurationError(f"The header {name!r} has a name or value that cannot be sent.")
    # Nothing is decompressed here: a small answer must not become a large one.
    return {"Accept-Encoding": "identity", "User-Agent": "orchestrator", **headers}


@contextmanager
def _note_if_sent(call: budget.Budget) -> Iterator[None]:
    try:
        yield
    except AgentError as error:
        error.nothing_sent = not call.sending
        raise


@contextmanager
def plain_errors(url: str, seconds: float) -> Iterator[None]:
    """Turn the network's failures in this block into `RetryableAgentError` (agent_timeout, agent_unreachable)."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise budget.timed_out(seconds) from error
    except httpx2.TransportError as error:
        message = f"{urls.read(url).place} could not be reached: {_ERRNO.sub('', str(error))}"
        raise RetryableAgentError(message, code="agent_unreachable") from error


def _answer(response: httpx2.Response, call: budget.Budget, max_bytes: int) -> OutboundResponse:
    headers = dict(response.headers)
    encoded = headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")
    if 200 <= response.status_code < 300 and response.status_code != 202:
        if encoded:
            raise PermanentAgentError(
                "The answer is compressed, which was not asked for.", code="answer_encoded"
            )
        return OutboundResponse(response.status_code, headers, _read_body(response, max_bytes))
    call.shorten(EXCERPT_SECONDS)
    body, truncated = _beginning(response)
    return OutboundResponse(response.status_code, headers, b"" if encoded else body, truncated or encoded)


def _read_body(response: httpx2.Response, max_bytes: int) -> bytes:
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 15 or int(declared) > max_bytes):
        raise budget.too_large()
    chunks, size = [], 0
    for chunk in _chunks(response):
        size += len(chunk)
        if size > max_bytes:
            raise budget.too_large()
        chunks.append(chunk)
    return b"".join(chunks)


def _beginning(response: httpx2.Response) -> tuple[bytes, bool]:
    body = b""
    try:
        for chunk in _chunks(response):
            body += chunk
            if len(body) > EXCERPT_BYTES:
                return body[:EXCERPT_BYTES], True
    except (AgentError, httpx2.HTTPError):
        return body, True  # the status stands, even if the body never ends
    return body, False


def _chunks(response: httpx2.Response) -> Iterator[bytes]:
    # Straight from the connection: the response's own iterators gather bytes before they hand any over.
    return iter(cast(httpx2.SyncByteStream, response.stream))


_NEEDED = frozenset(
    {
        *("accept", "connection", "content-length", "content-type", "host"),
        *("a2a-extensions", "a2a-version", "anthropic-beta", "anthropic-version"),
    }
)


def client_for_vendor(credential: Mapping[str, str]) -> httpx2.Client:
    """A client for one run. `credential` holds the headers to be sent as they are. Use it in a `call_budget`, and let it go unclosed."""
    passed_on = transport.PassedOn(partial(send_for_library, credential=dict(credential)))
    return httpx2.Client(transport=passed_on, trust_env=False, follow_redirects=False, timeout=None)


def send_for_library(request: httpx2.Request, credential: Mapping[str, str]) -> httpx2.Response:
    """Send what a library asks for; its answer, to be closed. Raises `PermanentAgentError` for one that is compressed."""
    headers = {name: value for name, value in request.headers.items() if name.lower() in _NEEDED}
    own = {"User-Agent": "orchestrator", "Accept-Encoding": "identity"}
    # Another request: the library looks at its own again when the answer is there.
    passed = httpx2.Request(
        request.method,
        request.url,
        headers={**headers, **own, **credential},
        stream=request.stream,
        extensions=request.extensions,
    )
    response = get_guarded_transport().handle_request(passed)
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        response.close()
        raise PermanentAgentError("The answer is compressed, which was not asked for.", code="answer_encoded")
    return response


LONGEST_SECONDS = 3600.0  # a provider that asks for more is asked again after an hour; its clock may be wrong

_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]*)?")


def retry_after_seconds(header: str | None, *, now: datetime | None = None) -> float | None:
    """How long to wait, from 0 to an hour, or None if the header is missing or makes no sense."""
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), LONGEST_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        wait = (moment - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(wait, 0.0), LONGEST_SECONDS)
