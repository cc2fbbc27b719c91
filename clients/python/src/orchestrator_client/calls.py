"""Methods of resources. A decorated signature serves both the blocking and the asynchronous client.

    class Activities(Resource[D]):
        @POST("/activities/{activity_id}/approve/", Activity)
        def approve(self, /, activity_id: str, *, notes: str = "", **more: Any) -> None: ...

`client.activities.approve(...)` returns an Activity; with an AsyncClient it is awaited. Type checkers know both.

Lists are iterators: the next page is requested after the current one has been used up.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx

from orchestrator_client import transport
from orchestrator_client.errors import UnreadableAnswer
from orchestrator_client.operations import Operation, Prepared
from orchestrator_client.transport import AsyncSender, SyncSender

T = TypeVar("T")

#: The members of a body as one object, in addition to those that are keyword arguments.
Members = Mapping[str, Any] | None
#: A time or a day. Text is sent as it is.
Moment = str | date


class Pages(Generic[T]):
    """All rows of a list. Each iteration starts from the beginning; `limit=` is the size of a page, not of the list."""

    def __init__(self, sender: SyncSender, request: Prepared, shape: type[T]) -> None:
        self._sender, self._request, self._shape = sender, request, shape

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[list[T]]:
        """Yield the rows page by page."""
        request: Prepared | None = self._request
        while request is not None:
            page, request = _page(self._sender.send(request), request, self._shape)
            yield page

    def first(self) -> T | None:
        """Return the first row, or None."""
        return next(iter(self), None)


class AsyncPages(Generic[T]):
    """All rows of a list, for `async for`."""

    def __init__(self, sender: AsyncSender, request: Prepared, shape: type[T]) -> None:
        self._sender, self._request, self._shape = sender, request, shape

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for entry in page:
                yield entry

    async def pages(self) -> AsyncIterator[list[T]]:
        """Yield the rows page by page."""
        request: Prepared | None = self._request
        while request is not None:
            page, request = _page(await self._sender.send(request), request, self._shape)
            yield page

    async def first(self) -> T | None:
        """Return the first row, or None."""
        async for entry in self:
            return entry
        return None


def _page(response: httpx.Response, request: Prepared, shape: type[T]) -> tuple[list[T], Prepared | None]:
    """Return the rows, and the request for the next page.

    Only the query of the link is used: behind a proxy, the client may not be able to reach its host, and the token must only be sent to
    the address that the caller has chosen.
    """
    found: Any = transport.body_of(response)
    if not isinstance(found, dict) or not isinstance(found.get("results"), list):
        raise UnreadableAnswer(f"{response.request.url} did not return a page of a list.")
    entries = [shape(entry) for entry in found["results"]]  # type: ignore[call-arg]
    if not found.get("next"):
        return entries, None
    asked = httpx.URL(found["next"]).params
    return entries, replace(
        request, query={**request.query, **{name: asked.get_list(name) for name in asked}}
    )


D = TypeVar("D", SyncSender, AsyncSender)
P = ParamSpec("P")


class Resource(Generic[D]):
    """A group of operations with one sender."""

    def __init__(self, sender: D) -> None:
        self._sender: D = sender

    @classmethod
    def operations(cls) -> Iterator[Operation[Any]]:
        """Yield every operation of this group."""
        for owner in cls.__mro__:
            for value in vars(owner).values():
                operation = getattr(value, "operation", None)
                if isinstance(operation, Operation):
                    yield operation


class Method(ABC, Generic[P]):
    """A method of a resource. A decorated signature becomes one."""

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        functools.update_wrapper(self, operation.described)  # type: ignore[arg-type]

    @abstractmethod
    def answer(self, sender: Any, request: Prepared) -> Any:
        """Return the result of a call."""

    def bind(self, resource: Any) -> Any:
        """Return the method of this resource, or of the class itself without one."""
        if resource is None:
            return self

        @functools.wraps(self.operation.described)
        def bound(*arguments: P.args, **fields: P.kwargs) -> Any:
            return self.answer(resource._sender, self.operation.prepare(*arguments, **fields))

        return bound


class Call(Method[P], Generic[P, T]):
    """A method that sends one request."""

    @overload
    def __get__(self, resource: None, owner: Any) -> Call[P, T]: ...

    @overload
    def __get__(self, resource: Resource[SyncSender], owner: Any) -> Callable[P, T]: ...

    @overload
    def __get__(self, resource: Resource[AsyncSender], owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, resource: Any, owner: Any) -> Any:
        return self.bind(resource)

    def answer(self, sender: Any, request: Prepared) -> Any:
        return sender.perform(self.operation, request)


class Listing(Method[P], Generic[P, T]):
    """A method that returns an iterator over all rows of a list, which reads page by page."""

    @overload
    def __get__(self, resource: None, owner: Any) -> Listing[P, T]: ...

    @overload
    def __get__(self, resource: Resource[SyncSender], owner: Any) -> Callable[P, Pages[T]]: ...

    @overload
    def __get__(self, resource: Resource[AsyncSender], owner: Any) -> Callable[P, AsyncPages[T]]: ...

    def __get__(self, resource: Any, owner: Any) -> Any:
        return self.bind(resource)

    def answer(self, sender: Any, request: Prepared) -> Any:
        pages: Any = AsyncPages if isinstance(sender, AsyncSender) else Pages
        return pages(sender, request, self.operation.shape)


Described = Callable[Concatenate[Any, P], None]


def call(
    method: str, path: str, shape: type[T], queried: Iterable[str] = (), joined: Iterable[str] = ()
) -> Callable[[Described[P]], Call[P, T]]:
    """Turn a signature into a method that sends its parameters and returns an object of the class `shape`."""

    def made(described: Described[P]) -> Call[P, T]:
        return Call(Operation(method, path, shape, described, frozenset(queried), frozenset(joined)))

    return made


def GET(path: str, shape: type[T], *joined: str) -> Callable[[Described[P]], Call[P, T]]:
    return call("GET", path, shape, joined=joined)


def POST(path: str, shape: type[T], *queried: str) -> Callable[[Described[P]], Call[P, T]]:
    return call("POST", path, shape, queried)


def PUT(path: str, shape: type[T]) -> Callable[[Described[P]], Call[P, T]]:
    return call("PUT", path, shape)


def PATCH(path: str, shape: type[T]) -> Callable[[Described[P]], Call[P, T]]:
    return call("PATCH", path, shape)


def DELETE(path: str) -> Callable[[Described[P]], Call[P, None]]:
    return call("DELETE", path, type(None))


def LIST(path: str, shape: type[T], *joined: str) -> Callable[[Described[P]], Listing[P, T]]:
    """As `GET`, for a list with pages."""

    def made(described: Described[P]) -> Listing[P, T]:
        return Listing(Operation("GET", path, shape, described, joined=frozenset(joined)))

    return made
