"""The two clients. Each holds a pool of connections; close it, or use it in a `with`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import httpx

from orchestrator_client.errors import WaitTimedOut
from orchestrator_client.objects import Activity
from orchestrator_client.resources import Resources
from orchestrator_client.transport import AsyncDoor, RetryPolicy, SyncDoor, address_of, headers_of

#: Statuses in which nothing happens any more unless somebody intervenes.
SETTLED = frozenset({"done", "approved", "rejected", "reassigned", "failed", "needs_review", "cancelled"})
#: Statuses in which a person or another activity must act first.
NEEDS_SOMEBODY = frozenset({"awaiting_approval", "awaiting_review", "blocked"})

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


def pauses(timeout: float, poll_seconds: float | None = None) -> Iterator[float]:
    """The seconds between two looks, until `timeout` is used up: the last look is at its end."""
    left, pause = timeout, poll_seconds or FIRST_PAUSE
    while left > 0:
        yield min(pause, left)
        left -= pause
        pause = poll_seconds or min(LONGEST_PAUSE, pause * 1.5)


class Client(Resources[SyncDoor]):
    """Blocks. May be used by several threads.

    `base_url` is the address of the installation, with or without `/api/v1`. `timeout` is in seconds and for one attempt;
    `max_retries` counts what comes after the first. `retries` gives a whole policy instead. `transport` and other keyword
    arguments go to `httpx.Client`.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        timeout: float = 30.0,
        max_retries: int = 3,
        *,
        retries: RetryPolicy | None = None,
        **http: Any,
    ) -> None:
        policy = retries or replace(RetryPolicy(), max_retries=max_retries)
        self._http = httpx.Client(
            base_url=address_of(base_url), headers=headers_of(token), timeout=timeout, **http
        )
        super().__init__(SyncDoor(self._http, policy))

    def wait(
        self,
        activity_id: str,
        timeout: float = 60.0,
        *,
        until: Collection[str] = SETTLED,
        poll_seconds: float | None = None,
    ) -> Activity:
        """The activity, once its status is one of `until`. Raises WaitTimedOut, which has it as it was last seen.

        Add `NEEDS_SOMEBODY` to `until` to come back as well when a person is asked.
        """
        for pause in pauses(timeout, poll_seconds):
            activity = self.activities.get(activity_id)
            if activity.status in until:
                return activity
            self._door.sleep(pause)
        return _reached(self.activities.get(activity_id), until, timeout)

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: nothing can be asked any more."""
        return self._http.is_closed

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({str(self._http.base_url)!r})"  # and never the token


class AsyncClient(Resources[AsyncDoor]):
    """The same, awaited. Belongs to one event loop."""

    def __init__(
        self,
        base_url: str,
        token: str,
        timeout: float = 30.0,
        max_retries: int = 3,
        *,
        retries: RetryPolicy | None = None,
        **http: Any,
    ) -> None:
        policy = retries or replace(RetryPolicy(), max_retries=max_retries)
        self._http = httpx.AsyncClient(
            base_url=address_of(base_url), headers=headers_of(token), timeout=timeout, **http
        )
        super().__init__(AsyncDoor(self._http, policy))

    async def wait(
        self,
        activity_id: str,
        timeout: float = 60.0,
        *,
        until: Collection[str] = SETTLED,
        poll_seconds: float | None = None,
    ) -> Activity:
        """As `Client.wait`."""
        for pause in pauses(timeout, poll_seconds):
            activity = await self.activities.get(activity_id)
            if activity.status in until:
                return activity
            await self._door.sleep(pause)
        return _reached(await self.activities.get(activity_id), until, timeout)

    async def close(self) -> None:
        """Let the connections go."""
        await self._http.aclose()

    @property
    def is_closed(self) -> bool:
        """As `Client.is_closed`."""
        return self._http.is_closed

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({str(self._http.base_url)!r})"


def _reached(activity: Activity, until: Collection[str], timeout: float) -> Activity:
    if activity.status in until:
        return activity
    raise WaitTimedOut(f"{activity.id} is {activity.status} after {timeout:g} s.", activity)
