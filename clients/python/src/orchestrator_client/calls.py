"""Methods of resources: a decorated signature serves the blocking client and the awaited one.

    class Activities(Resource[D]):
        @POST("/activities/{activity_id}/approve/", Activity)
        def approve(self, /, activity_id: str, *, notes: str = "", **more: Any) -> None: ...

`client.activities.approve(...)` returns an Activity, that of an AsyncClient is awaited for one. Type checkers know both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from orchestrator_client.doors import AsyncDoor, SyncDoor
from orchestrator_client.operations import Operation
from orchestrator_client.paging import AsyncPages, Pages

D = TypeVar("D", SyncDoor, AsyncDoor)
P = ParamSpec("P")
T = TypeVar("T")


class Resource(Generic[D]):
    """A group of operations, on one way to the server."""

    def __init__(self, door: D) -> None:
        self._door: D = door

    @classmethod
    def operations(cls) -> Iterator[Operation[Any]]:
        """Every operation of this group."""
        for owner in cls.__mro__:
            for value in vars(owner).values():
                operation = getattr(value, "operation", None)
                if isinstance(operation, Operation):
                    yield operation


class Call(Generic[P, T]):
    """A method that sends one request."""

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        functools.update_wrapper(self, operation.described)  # type: ignore[arg-type]

    @overload
    def __get__(self, resource: None, owner: Any) -> Call[P, T]: ...

    @overload
    def __get__(self, resource: Resource[SyncDoor], owner: Any) -> Callable[P, T]: ...

    @overload
    def __get__(self, resource: Resource[AsyncDoor], owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, resource: Any, owner: Any) -> Any:
        if resource is None:
            return self

        @functools.wraps(self.operation.described)
        def bound(*arguments: P.args, **fields: P.kwargs) -> Any:
            return resource._door.perform(self.operation, self.operation.prepare(*arguments, **fields))

        return bound


class Listing(Generic[P, T]):
    """A method that returns everything of a list, read a page at a time while it is iterated over."""

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        functools.update_wrapper(self, operation.described)  # type: ignore[arg-type]

    @overload
    def __get__(self, resource: None, owner: Any) -> Listing[P, T]: ...

    @overload
    def __get__(self, resource: Resource[SyncDoor], owner: Any) -> Callable[P, Pages[T]]: ...

    @overload
    def __get__(self, resource: Resource[AsyncDoor], owner: Any) -> Callable[P, AsyncPages[T]]: ...

    def __get__(self, resource: Any, owner: Any) -> Any:
        if resource is None:
            return self

        @functools.wraps(self.operation.described)
        def bound(*arguments: P.args, **fields: P.kwargs) -> Any:
            pages: Any = AsyncPages if isinstance(resource._door, AsyncDoor) else Pages
            return pages(resource._door, self.operation.prepare(*arguments, **fields), self.operation.shape)

        return bound


Described = Callable[Concatenate[Any, P], None]


def call(
    method: str, path: str, shape: type[T], queried: Iterable[str] = (), joined: Iterable[str] = ()
) -> Callable[[Described[P]], Call[P, T]]:
    """Make a method of a signature: what it sends is its parameters, what it returns is of the class `shape`."""

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
