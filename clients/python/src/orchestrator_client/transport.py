"""Sends requests, blocking or asynchronously, and retries them.

Both senders do the same; they contain only the code that must be awaited. A `RetryPolicy` decides when a request is retried, and after
what delay: after connection errors and the statuses 429 and 503, because then the request had no effect, or the Idempotency-Key prevents
a second effect. Every other refusal is final.
"""

from __future__ import annotations

import asyncio
import json
import platform
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

import httpx

from orchestrator_client.errors import ApiError, ConnectionFailed, UnreadableAnswer, error_class
from orchestrator_client.objects import Record
from orchestrator_client.operations import VISIBLE, Operation, Prepared


def accepted(
    outcome: httpx.Response | httpx.TransportError, request: Prepared, was_lost: bool = False
) -> httpx.Response:
    """Return the response if it is successful. Raises ConnectionFailed, or the ApiError of the refusal.

    `was_lost` means that an earlier attempt may have reached the server: then a DELETE that finds nothing is successful.
    """
    if isinstance(outcome, httpx.TransportError):
        message = f"{request.method} {request.path}: {str(outcome) or type(outcome).__name__}"
        raise ConnectionFailed(message, idempotency_key=request.key) from outcome
    if outcome.is_success:
        return outcome
    if was_lost and request.method == "DELETE" and outcome.status_code == httpx.codes.NOT_FOUND:
        return outcome
    raise refusal(outcome, request.key)


def refusal(response: httpx.Response, key: str | None = None) -> ApiError:
    """Return the exception for a response whose body was read. Without a problem document, it contains only the status."""
    try:
        members = json.loads(response.content)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        members = {"detail": response.reason_phrase}
    kind = error_class(response.status_code, members.get("code"))
    return kind(response.status_code, members, retry_after=retry_after_of(response), idempotency_key=key)


def shaped(response: httpx.Response, shape: type[T]) -> T:
    """Return the body as an object of this class, or None if the class is NoneType or there is no body."""
    if shape is type(None) or response.status_code == httpx.codes.NO_CONTENT:
        return None  # type: ignore[return-value]
    if shape is str:
        return response.text  # type: ignore[return-value]
    found = body_of(response)
    if not isinstance(found, dict):
        raise UnreadableAnswer(
            f"{response.request.url} returned a {type(found).__name__} instead of an object."
        )
    made = shape(found)  # type: ignore[call-arg]
    if isinstance(made, Record):
        made.etag = response.headers.get("etag")
    return made


def body_of(response: httpx.Response) -> Any:
    """Return the JSON of the body, with its objects as records."""
    try:
        return json.loads(response.content, object_hook=Record)
    except ValueError as error:
        raise UnreadableAnswer(
            f"{response.request.url} did not return JSON. Is this the address of an Orchestrator?"
        ) from error


T = TypeVar("T")

VERSION = "0.1.0"
USER_AGENT = f"orchestrator-client/{VERSION} python/{platform.python_version()}"
ROOT = "/api/v1"


def address_of(base_url: str) -> str:
    """Return the address of the API. `base_url` may already end with it."""
    address = base_url.rstrip("/")
    return address if address.endswith(ROOT) else address + ROOT


def headers_of(token: str) -> dict[str, str]:
    """Return the headers of every request. Raises ValueError for a token that no header can contain, without repeating it."""
    sent = token.strip()  # a token that was read from a file often ends with a line break
    if not VISIBLE.fullmatch(sent):
        raise ValueError("A token consists of visible ASCII characters.")
    return {"Authorization": f"Bearer {sent}", "User-Agent": USER_AGENT, "Accept": "application/json"}


def arguments_of(request: Prepared) -> dict[str, Any]:
    """Return the arguments for httpx to build this request."""
    arguments: dict[str, Any] = {
        "method": request.method,
        "url": request.path.lstrip("/"),
        "params": {name: _text(value) for name, value in request.query.items() if value is not None},
        "headers": dict(request.headers),
    }
    if request.body is not None:
        arguments["content"] = json.dumps(request.body, default=_plain, allow_nan=False).encode()
        arguments["headers"]["Content-Type"] = "application/json"
    if request.timeout is not None:
        arguments["timeout"] = request.timeout
    return arguments


def _text(value: Any) -> Any:
    """Return a query value in the form that the API expects: lists item by item, booleans in lower case."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | set | frozenset):
        return [_text(part) for part in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _plain(value: Any) -> Any:
    """Return a value that JSON does not have in the form that the API expects: times, dates, UUIDs, and exact decimals as text."""
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"A {type(value).__name__} cannot be sent as JSON.")


@dataclass
class SyncSender:
    """Sends requests and blocks."""

    http: httpx.Client
    retries: RetryPolicy
    sleep: Callable[[float], None] = field(default=time.sleep)

    def send(self, request: Prepared) -> httpx.Response:
        """Return the successful response, after retries if necessary. Raises the errors of `accepted`."""
        attempt, was_lost = 0, False
        while True:
            outcome = self._attempt(request)
            delay = self.retries.delay_after(outcome, attempt)
            if delay is None:
                return accepted(outcome, request, was_lost)
            was_lost |= isinstance(outcome, httpx.TransportError) and not isinstance(outcome, UNSENT)
            self.sleep(delay)
            attempt += 1

    def perform(self, operation: Operation[T], request: Prepared) -> T:
        return shaped(self.send(request), operation.shape)

    def _attempt(self, request: Prepared) -> httpx.Response | httpx.TransportError:
        try:
            return self.http.request(**arguments_of(request))
        except httpx.TransportError as error:
            return error


@dataclass
class AsyncSender:
    """Sends requests asynchronously."""

    http: httpx.AsyncClient
    retries: RetryPolicy
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep)

    async def send(self, request: Prepared) -> httpx.Response:
        """Return the successful response, after retries if necessary. Raises the errors of `accepted`."""
        attempt, was_lost = 0, False
        while True:
            outcome = await self._attempt(request)
            delay = self.retries.delay_after(outcome, attempt)
            if delay is None:
                return accepted(outcome, request, was_lost)
            was_lost |= isinstance(outcome, httpx.TransportError) and not isinstance(outcome, UNSENT)
            await self.sleep(delay)
            attempt += 1

    async def perform(self, operation: Operation[T], request: Prepared) -> T:
        return shaped(await self.send(request), operation.shape)

    async def _attempt(self, request: Prepared) -> httpx.Response | httpx.TransportError:
        try:
            return await self.http.request(**arguments_of(request))
        except httpx.TransportError as error:
            return error


Pool = TypeVar("Pool", httpx.Client, httpx.AsyncClient)
Self = TypeVar("Self")


class Closable(Generic[Pool]):
    """The owner of a pool of connections."""

    _http: Pool

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called. A closed client cannot send requests."""
        return self._http.is_closed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._http.base_url)!r})"  # without the token, which is secret


class SyncClosable(Closable[httpx.Client]):
    """Closes its connections at the end of a `with` statement."""

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClosable(Closable[httpx.AsyncClient]):
    """Closes its connections at the end of an `async with` statement."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


RETRIED_STATUSES = frozenset({429, 503})
RETRIED_FAULTS = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # the request did not reach the server


@dataclass(frozen=True)
class RetryPolicy:
    """At most `max_retries` retries. The delay is `base_seconds` before the first, and doubles up to `max_seconds`; up to a half of it is
    subtracted at random, so that clients that failed together do not retry together.

    The client waits for the full `Retry-After` and slightly longer, but not if it is more than `longest_retry_after` seconds.
    """

    max_retries: int = 3
    base_seconds: float = 0.5
    max_seconds: float = 30.0
    longest_retry_after: float = 60.0
    chance: Callable[[], float] = random.random

    def delay_after(self, outcome: httpx.Response | httpx.TransportError, attempt: int) -> float | None:
        """Return the seconds until the next attempt, or None if there is none. `attempt` counts from 0."""
        if attempt >= self.max_retries:
            return None
        if isinstance(outcome, httpx.TransportError):
            return self._backoff(attempt) if isinstance(outcome, RETRIED_FAULTS) else None
        if outcome.status_code not in RETRIED_STATUSES:
            return None
        asked = retry_after_of(outcome)
        if asked is None:
            return self._backoff(attempt)
        return asked + self.chance() * self.base_seconds if asked <= self.longest_retry_after else None

    def _backoff(self, attempt: int) -> float:
        full = min(self.max_seconds, self.base_seconds * 2.0 ** min(attempt, 30))
        return full * (1 - self.chance() / 2)


def retry_after_of(response: httpx.Response) -> float | None:
    """Return the header in seconds, whether it is a number or a date. None if it is missing or cannot be parsed."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())
