"""Lists as iterators: the next page is asked for when the last one is used up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

import httpx

from orchestrator_client import answers
from orchestrator_client.doors import AsyncDoor, SyncDoor
from orchestrator_client.errors import UnreadableAnswer
from orchestrator_client.operations import Prepared

T = TypeVar("T")


class Pages(Generic[T]):
    """All that the list holds. Each iteration begins anew; `limit=` of the call is the size of a page, not of the list."""

    def __init__(self, door: SyncDoor, request: Prepared, shape: type[T]) -> None:
        self._door, self._request, self._shape = door, request, shape

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[list[T]]:
        """The same, a page at a time."""
        request: Prepared | None = self._request
        while request is not None:
            page, request = _page(self._door.send(request), request, self._shape)
            yield page

    def first(self) -> T | None:
        """The first entry, or None when there is none."""
        return next(iter(self), None)


class AsyncPages(Generic[T]):
    """All that the list holds, for `async for`."""

    def __init__(self, door: AsyncDoor, request: Prepared, shape: type[T]) -> None:
        self._door, self._request, self._shape = door, request, shape

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for entry in page:
                yield entry

    async def pages(self) -> AsyncIterator[list[T]]:
        """The same, a page at a time."""
        request: Prepared | None = self._request
        while request is not None:
            page, request = _page(await self._door.send(request), request, self._shape)
            yield page

    async def first(self) -> T | None:
        """The first entry, or None when there is none."""
        async for entry in self:
            return entry
        return None


def _page(response: httpx.Response, request: Prepared, shape: type[T]) -> tuple[list[T], Prepared | None]:
    """The entries, and the request for the next page.

    Only the query is taken from the link: behind a proxy its host may be one that the client cannot reach, and the token
    goes nowhere but to the address that the caller has named.
    """
    found: Any = answers.body_of(response)
    if not isinstance(found, dict) or not isinstance(found.get("results"), list):
        raise UnreadableAnswer(f"{response.request.url} answered no page of a list.")
    entries = [shape(entry) for entry in found["results"]]  # type: ignore[call-arg]
    if not found.get("next"):
        return entries, None
    asked = httpx.URL(found["next"]).params
    return entries, replace(
        request, query={**request.query, **{name: asked.get_list(name) for name in asked}}
    )
