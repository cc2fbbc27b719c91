"""The blocking and the asynchronous client. Each has a pool of connections: close it, or use it in a `with` statement."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import httpx

from orchestrator_client.errors import WaitTimedOut
from orchestrator_client.objects import Activity
from orchestrator_client.resources import Resources
from orchestrator_client.transport import (
    AsyncClosable,
    AsyncSender,
    RetryPolicy,
    SyncClosable,
    SyncSender,
    address_of,
    headers_of,
)

#: Statuses in which nothing more happens unless somebody intervenes.
SETTLED = frozenset({"done", "approved", "rejected", "reassigned", "failed", "needs_review", "cancelled"})
#: Statuses in which a person must act first.
NEEDS_SOMEBODY = frozenset({"awaiting_approval", "awaiting_review", "blocked"})

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


def pauses(timeout: float, poll_seconds: float | None = None) -> Iterator[float]:
    """Yield the seconds between two polls until `timeout` has passed; the last poll is at its end."""
    left, pause = timeout, poll_seconds or FIRST_PAUSE
    while left > 0:
        yield min(pause, left)
        left -= pause
        pause = poll_seconds or min(LONGEST_PAUSE, pause * 1.5)


class Client(Resources[SyncSender], SyncClosable):
    """A blocking client. Several threads may share it.

    `base_url` is the address of the installation, with or without `/api/v1`. `timeout` is in seconds and applies to each attempt.
    `max_retries` is the number of attempts after the first one; `retries` sets a whole policy instead. `transport` and other keyword
    arguments are passed to `httpx.Client`.
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
        super().__init__(SyncSender(self._http, policy))

    def wait(
        self,
        activity_id: str,
        timeout: float = 60.0,
        *,
        until: Collection[str] = SETTLED,
        poll_seconds: float | None = None,
    ) -> Activity:
        """Return the activity as soon as its status is one of `until`. Raises WaitTimedOut, which contains its last known state.
        Add `NEEDS_SOMEBODY` to `until` to also return when a person must act.
        """
        for pause in pauses(timeout, poll_seconds):
            activity = self.activities.get(activity_id)
            if activity.status in until:
                return activity
            self._sender.sleep(pause)
        return _reached(self.activities.get(activity_id), until, timeout)


class AsyncClient(Resources[AsyncSender], AsyncClosable):
    """The asynchronous variant of `Client`. It belongs to one event loop."""

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
        super().__init__(AsyncSender(self._http, policy))

    async def wait(
        self,
        activity_id: str,
        timeout: float = 60.0,
        *,
        until: Collection[str] = SETTLED,
        poll_seconds: float | None = None,
    ) -> Activity:
        """See `Client.wait`."""
        for pause in pauses(timeout, poll_seconds):
            activity = await self.activities.get(activity_id)
            if activity.status in until:
                return activity
            await self._sender.sleep(pause)
        return _reached(await self.activities.get(activity_id), until, timeout)


def _reached(activity: Activity, until: Collection[str], timeout: float) -> Activity:
    if activity.status in until:
        return activity
    raise WaitTimedOut(f"{activity.id} is {activity.status} after {timeout:g} s.", activity)
