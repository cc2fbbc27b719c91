"""The two ways to the server, blocking and awaited: they send, wait between attempts, and hand back what was answered.

Both do the same, and what they decide is decided elsewhere: here stands only what has to be awaited.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from orchestrator_client import answers
from orchestrator_client.operations import Operation, Prepared
from orchestrator_client.retrying import RetryPolicy

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
        """The answer of success, after as many attempts as it takes. Raises what `answers.accepted` raises."""
        attempt = 0
        while True:
            outcome = self._attempt(request)
            delay = self.retries.delay_after(outcome, attempt)
            if delay is None:
                return answers.accepted(outcome, request)
            self.sleep(delay)
            attempt += 1

    def perform(self, operation: Operation[T], request: Prepared) -> T:
        return answers.shaped(self.send(request), operation.shape)

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
        """The answer of success, after as many attempts as it takes. Raises what `answers.accepted` raises."""
        attempt = 0
        while True:
            outcome = await self._attempt(request)
            delay = self.retries.delay_after(outcome, attempt)
            if delay is None:
                return answers.accepted(outcome, request)
            await self.sleep(delay)
            attempt += 1

    async def perform(self, operation: Operation[T], request: Prepared) -> T:
        return answers.shaped(await self.send(request), operation.shape)

    async def _attempt(self, request: Prepared) -> httpx.Response | httpx.TransportError:
        try:
            return await self.http.request(**arguments_of(request))
        except httpx.TransportError as error:
            return error
