"""The two ways to the server, blocking and awaited: they send, wait between attempts, and hand back what was answered.

Both do the same; in them stands only what has to be awaited. A `RetryPolicy` says when a request is repeated, and after what
delay: after connection faults and the statuses 429 and 503, in which nothing was done or, thanks to the Idempotency-Key, nothing
will be done twice. Every other refusal is final.
"""

from __future__ import annotations

import asyncio
import json
import platform
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from orchestrator_client.errors import ApiError, ConnectionFailed, UnreadableAnswer, error_class
from orchestrator_client.objects import Record
from orchestrator_client.operations import Operation, Prepared


def accepted(outcome: httpx.Response | httpx.TransportError, request: Prepared) -> httpx.Response:
    """The answer, if it is one of success. Raises ConnectionFailed or the ApiError of the refusal."""
    if isinstance(outcome, httpx.TransportError):
        told = f"{request.method} {request.path}: {str(outcome) or type(outcome).__name__}"
        raise ConnectionFailed(told, idempotency_key=request.key) from outcome
    if outcome.is_success:
        return outcome
    raise refusal(outcome, request.key)


def refusal(response: httpx.Response, key: str | None = None) -> ApiError:
    """The exception for an answer whose body has been read. A body that is no problem document tells its status alone."""
    try:
        members = json.loads(response.content)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        members = {"detail": response.reason_phrase}
    kind = error_class(response.status_code, members.get("code"))
    return kind(response.status_code, members, retry_after=retry_after_of(response), idempotency_key=key)


def shaped(response: httpx.Response, shape: type[T]) -> T:
    """The body as an object of this class; None where None was asked for or nothing was answered."""
    if shape is type(None) or response.status_code == httpx.codes.NO_CONTENT:
        return None  # type: ignore[return-value]
    if shape is str:
        return response.text  # type: ignore[return-value]
    found = body_of(response)
    if not isinstance(found, dict):
        raise UnreadableAnswer(f"{response.request.url} answered a {type(found).__name__} and no object.")
    made = shape(found)  # type: ignore[call-arg]
    if isinstance(made, Record):
        made.etag = response.headers.get("etag")
    return made


def body_of(response: httpx.Response) -> Any:
    """The JSON of the body, its objects as records."""
    try:
        return json.loads(response.content, object_hook=Record)
    except ValueError as error:
        raise UnreadableAnswer(
            f"{response.request.url} answered no JSON: is this an Orchestrator?"
        ) from error


T = TypeVar("T")

VERSION = "0.1.0"
USER_AGENT = f"orchestrator-client/{VERSION} python/{platform.python_version()}"
ROOT = "/api/v1"


def address_of(base_url: str) -> str:
    """The address of the API, whether or not the caller has named it in full."""
    address = base_url.rstrip("/")
    return address if address.endswith(ROOT) else address + ROOT


def headers_of(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "User-Agent": USER_AGENT, "Accept": "application/json"}


def arguments_of(request: Prepared) -> dict[str, Any]:
    """The arguments with which httpx builds this request."""
    arguments: dict[str, Any] = {
        "method": request.method,
        "url": request.path.lstrip("/"),
        "params": {name: _text(value) for name, value in request.query.items() if value is not None},
        "headers": dict(request.headers),
    }
    if request.body is not None:
        arguments["json"] = request.body
    if request.timeout is not None:
        arguments["timeout"] = request.timeout
    return arguments


def _text(value: Any) -> Any:
    """A value of a query as the API reads it: several one by one, truth in small letters."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | set | frozenset):
        return [_text(part) for part in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


@dataclass
class SyncDoor:
    """Sends and blocks."""

    http: httpx.Client
    retries: RetryPolicy
    sleep: Callable[[float], None] = field(default=time.sleep)

    def send(self, request: Prepared) -> httpx.Response:
        """The answer of success, after as many attempts as it takes. Raises what `accepted` raises."""
        attempt = 0
        while True:
            outcome = self._attempt(request)
            delay = self.retries.delay_after(outcome, attempt)
            if delay is None:
                return accepted(outcome, request)
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
class AsyncDoor:
    """Sends and is awaited."""

    http: httpx.AsyncClient
    retries: RetryPolicy
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep)

    async def send(self, request: Prepared) -> httpx.Response:
        """The answer of success, after as many attempts as it takes. Raises what `accepted` raises."""
        attempt = 0
        while True:
            outcome = await self._attempt(request)
            delay = self.retries.delay_after(outcome, attempt)
            if delay is None:
                return accepted(outcome, request)
            await self.sleep(delay)
            attempt += 1

    async def perform(self, operation: Operation[T], request: Prepared) -> T:
        return shaped(await self.send(request), operation.shape)

    async def _attempt(self, request: Prepared) -> httpx.Response | httpx.TransportError:
        try:
            return await self.http.request(**arguments_of(request))
        except httpx.TransportError as error:
            return error


RETRIED_STATUSES = frozenset({429, 503})
RETRIED_FAULTS = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)


@dataclass(frozen=True)
class RetryPolicy:
    """`max_retries` repetitions, `base_seconds` before the first, doubling up to `max_seconds`, of which a random half is
    taken off, so that clients which failed together do not come back together.

    A `Retry-After` is obeyed to the full and a little more; one of more than `longest_retry_after` seconds is not waited for.
    """

    max_retries: int = 3
    base_seconds: float = 0.5
    max_seconds: float = 30.0
    longest_retry_after: float = 60.0
    chance: Callable[[], float] = random.random

    def delay_after(self, outcome: httpx.Response | httpx.TransportError, attempt: int) -> float | None:
        """Seconds until the next attempt, or None when there is to be none. `attempt` counts from 0."""
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
    """The header in seconds, whether it was a number or a date; None without one, or with one that nobody can read."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())
