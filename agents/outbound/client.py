"""Makes one outbound call: checked by the policy, bounded, never repeated, and without any state except the connection.

Vendors' libraries get a client of ours, so that their calls follow the same policy. Only the headers that the
protocols need are sent, with our credential: values that a library reads from this machine's environment (keys, organisations, custom
headers) are never sent. A compressed answer is refused, because none is ever requested.
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

# Imported with the first call or name resolution, because most processes only parse addresses.
if TYPE_CHECKING:
    import httpx2

    from agents.outbound import transport
else:
    httpx2, transport = lazy_import("httpx2"), lazy_import("agents.outbound.transport")

CHECK_SECONDS = 5.0  # short, because a person waits for the form to be saved
EXCERPT_BYTES = 16 * 1024  # of an answer that only people read
EXCERPT_SECONDS = 2.0  # to read its beginning, because the status is already known

_ERRNO = re.compile(r"^\[Errno -?\d+\] ")  # removed from messages for people
_COMPRESSED = "The answer is compressed, which was not requested."
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")

_lock = Lock()
_shared: dict[
    policy.Policy, transport.GuardedTransport
] = {}  # a connection is only reused under the policy that it was checked by


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    """An answer. Header names are in lower case. `truncated` says that the body is only its beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False


def check_url(url: str, *, purpose: str = policy.AGENTS) -> None:
    """Raise `OutboundRefused` for a URL that could not be called, when it is saved. Calls check again, because names change."""
    rules, target = policy.current(purpose), urls.read(url)
    rules.check(target)
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
    only_status: bool = False,
) -> OutboundResponse:
    """Make one call and return its answer, whatever its status. A redirect is an ordinary answer.

    `purpose` selects the operators' exemptions for this call.

    `limits`, if the caller knows them, apply to all further calls of the process.

    The deadline covers everything from name resolution to the last byte. A 2xx other than 202 is returned
    whole or not at all; of other answers, and with `only_status` of all, only the status matters, and the beginning of the body is kept.
    Raises `OutboundRefused`, `RetryableAgentError` (agent_timeout, agent_unreachable) or
    `PermanentAgentError`; `nothing_sent` of the error says whether the request never left.
    """
    if limits is not None:
        with _lock:
            if budget.shared.limits != limits:
                budget.shared.set_limits(limits)
                for each in _shared.values():
                    each.set_limits(limits)
    target = urls.read(url)
    # The gate admits no more calls than there are sockets. If the pool nevertheless has none, it must not wait for ever.
    patience = {"timeout": {"pool": deadline_seconds}}
    request = httpx2.Request(
        method, target.url, headers=_check_headers(headers), content=body, extensions=patience
    )
    with (
        budget.call_budget(
            deadline_seconds, max_bytes, cancelled, counts_over_all=purpose == policy.AGENTS
        ) as call,
        _record_if_sent(call),
        plain_errors(url, deadline_seconds),
    ):
        response = get_guarded_transport(purpose).handle_request(request)
        try:
            return _answer(response, call, max_bytes, only_status=only_status)
        finally:
            response.close()


def get_guarded_transport(purpose: str = policy.AGENTS) -> transport.GuardedTransport:
    """Return the process's shared transport for a purpose, for libraries with their own clients. Use it in a `call_budget`."""
    rules = policy.current(purpose)
    if (shared := _shared.get(rules)) is not None:
        return shared
    with _lock:
        in_force = {policy.current(each) for each in policy.PURPOSES}
        for outdated in [each for each in _shared if each not in in_force]:
            _shared.pop(outdated).close()  # its connections were checked by an older policy
        if rules not in _shared:
            _shared[rules] = transport.GuardedTransport(rules, budget.shared.limits)
        return _shared[rules]


def close_connections() -> None:
    """Close all connections of this process, for its orderly shutdown. A further call opens new ones."""
    with _lock:
        while _shared:
            _shared.popitem()[1].close()


def _forget_connections() -> None:
    # After a fork the sockets belong to the parent. Two processes on one connection would mix up answers.
    global _lock, _shared
    inherited, _lock, _shared = _shared, Lock(), {}
    budget.reset_after_fork()
    for each in inherited.values():
        each.abandon()


os.register_at_fork(after_in_child=_forget_connections)


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ConfigurationError(f"The header {name!r} has a name or value that cannot be sent.")
    # Nothing is decompressed here, because a small answer must not become a large one.
    return {"Accept-Encoding": "identity", "User-Agent": "orchestrator", **headers}


@contextmanager
def _record_if_sent(call: budget.Budget) -> Iterator[None]:
    try:
        yield
    except AgentError as error:
        error.nothing_sent = not call.sending
        raise


@contextmanager
def plain_errors(url: str, seconds: float) -> Iterator[None]:
    """Translate network failures in this block into `RetryableAgentError` (agent_timeout, agent_unreachable)."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise budget.timed_out(seconds) from error
    except httpx2.TransportError as error:
        message = f"{urls.read(url).place} could not be reached: {_ERRNO.sub('', str(error))}"
        raise RetryableAgentError(message, code="agent_unreachable") from error


def _answer(
    response: httpx2.Response, call: budget.Budget, max_bytes: int, *, only_status: bool
) -> OutboundResponse:
    headers = dict(response.headers)
    encoded = headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")
    if 200 <= response.status_code < 300 and response.status_code != 202 and not only_status:
        if encoded:
            raise PermanentAgentError(_COMPRESSED, code="answer_encoded")
        declared = response.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > max_bytes):
            raise budget.too_large(max_bytes)
        chunks, size = [], 0
        for chunk in _chunks(response):
            size += len(chunk)
            if size > max_bytes:
                raise budget.too_large(max_bytes)
            chunks.append(chunk)
        return OutboundResponse(response.status_code, headers, b"".join(chunks))
    call.shorten(EXCERPT_SECONDS)
    body, truncated = _beginning(response)
    return OutboundResponse(response.status_code, headers, b"" if encoded else body, truncated or encoded)


def _beginning(response: httpx2.Response) -> tuple[bytes, bool]:
    body = b""
    try:
        for chunk in _chunks(response):
            body += chunk
            if len(body) > EXCERPT_BYTES:
                return body[:EXCERPT_BYTES], True
    except (AgentError, httpx2.HTTPError):
        return body, True  # the status counts, even if the body never ends
    return body, False


def _chunks(response: httpx2.Response) -> Iterator[bytes]:
    # Read directly from the connection, because the response's own iterators buffer bytes.
    return iter(cast(httpx2.SyncByteStream, response.stream))


_NEEDED = frozenset(
    {
        *("accept", "connection", "content-length", "content-type", "host"),
        *("a2a-extensions", "a2a-version", "anthropic-beta", "anthropic-version"),
    }
)


def client_for_vendor(credential: Mapping[str, str]) -> httpx2.Client:
    """Return a client for one run. `credential` are headers to send unchanged. Use it in a `call_budget`; it needs no closing."""
    delegating = transport.DelegatingTransport(partial(send_for_library, credential=dict(credential)))
    return httpx2.Client(transport=delegating, trust_env=False, follow_redirects=False, timeout=None)


def send_for_library(request: httpx2.Request, credential: Mapping[str, str]) -> httpx2.Response:
    """Send a library's request, and return the answer, which the caller must close. Raises `PermanentAgentError` if it is compressed."""
    headers = {name: value for name, value in request.headers.items() if name.lower() in _NEEDED}
    own = {"User-Agent": "orchestrator", "Accept-Encoding": "identity"}
    # A new request, because the library reads its own again after the answer.
    filtered = httpx2.Request(
        request.method,
        request.url,
        headers={**headers, **own, **credential},
        stream=request.stream,
        extensions=request.extensions,
    )
    response = get_guarded_transport().handle_request(filtered)
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        response.close()
        raise PermanentAgentError(_COMPRESSED, code="answer_encoded")
    return response


LONGEST_SECONDS = 3600.0  # the maximum wait, because a provider's clock may be wrong

_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]*)?")


def retry_after_seconds(header: str | None, *, now: datetime | None = None) -> float | None:
    """Return how long to wait, from 0 to an hour, or None if the header is missing or invalid."""
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), LONGEST_SECONDS)
    moment = parse_http_date(text)
    if moment is None:
        return None
    wait = (moment - (now or datetime.now(UTC))).total_seconds()
    return min(max(wait, 0.0), LONGEST_SECONDS)


def parse_http_date(text: str) -> datetime | None:
    """Return the time in a header such as `Date`, or None if it is invalid."""
    try:
        moment = parsedate_to_datetime(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
