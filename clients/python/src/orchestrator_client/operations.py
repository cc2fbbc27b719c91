"""Turns calls of methods into requests. The decorated signature describes an operation completely.

Parameters that occur in the address are put there. The others go into the query of reading operations, and into the body of other
operations; a parameter `body` is the whole body, or its first part. Omitted parameters are not sent, and an explicit None is sent as
null. Keyword arguments that the signature does not name are sent as well, so that a client can use a newer server.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

T = TypeVar("T")

#: Keyword arguments of every method that are about the request and not about its content.
OPTIONS = ("etag", "idempotency_key", "timeout")
#: What a header can contain without spaces.
VISIBLE = re.compile(r"[\x21-\x7e]+")
_IN_ADDRESS = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Prepared:
    """A request that can be sent. `key` is the same for all attempts."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None

    @property
    def key(self) -> str | None:
        return self.headers.get("Idempotency-Key")


@dataclass(frozen=True)
class Operation(Generic[T]):
    """One operation of the API. `shape` is the class of its answer. `queried` names the parameters that a writing operation has in its
    query. `joined` names parameters of the query whose values are joined by commas; other parameters are repeated for several values.
    """

    method: str
    path: str
    shape: type[T]
    described: Callable[..., Any]
    queried: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.described)

    @cached_property
    def addressed(self) -> tuple[str, ...]:
        """The names of the parameters in the address."""
        return tuple(_IN_ADDRESS.findall(self.path))

    @property
    def sent(self) -> frozenset[str]:
        """The names, as they are sent, of the parameters of its signature that are not in the address."""
        names = list(self.signature.parameters.values())[1:]
        named = {name.name for name in names if name.kind is not inspect.Parameter.VAR_KEYWORD}
        return frozenset(name.rstrip("_") for name in named - {*self.addressed, "body", *OPTIONS})

    def prepare(self, *arguments: Any, **fields: Any) -> Prepared:
        """Bind the arguments of a call. Arguments that do not match the signature raise TypeError, as for any function."""
        options = {name: fields.pop(name) for name in OPTIONS if name in fields}
        bound = dict(self.signature.bind(None, *arguments, **fields).arguments)
        bound.pop(next(iter(self.signature.parameters)))
        more = next((name for name, kind in self._kinds if kind is inspect.Parameter.VAR_KEYWORD), "")
        content = {**bound, **bound.pop(more, {})}
        content.pop(more, None)
        path = _IN_ADDRESS.sub(lambda found: _segment(found[1], content.pop(found[1])), self.path)
        return self._divided(path, content, options)

    @property
    def _kinds(self) -> list[tuple[str, Any]]:
        return [(name, parameter.kind) for name, parameter in self.signature.parameters.items()]

    def _divided(self, path: str, content: dict[str, Any], options: dict[str, Any]) -> Prepared:
        given = content.pop("body", None)
        named = {name.rstrip("_"): value for name, value in content.items()}
        reads = self.method in ("GET", "DELETE")
        query = {name: value for name, value in named.items() if reads or name in self.queried}
        fields = {name: value for name, value in named.items() if name not in query}
        return Prepared(
            self.method,
            path,
            query={name: self._joined(name, value) for name, value in query.items()},
            body=None if reads else _body(given, fields, self.method),
            headers=_headers(self.method, options),
            timeout=options.get("timeout"),
        )

    def _joined(self, name: str, value: Any) -> Any:
        several = name in self.joined and isinstance(value, list | tuple | set | frozenset)
        return ",".join(map(str, value)) if several else value


def _segment(name: str, value: Any) -> str:
    """Return a value as one segment of an address, quoted so that its slashes and dots cannot change the path."""
    text = quote(str(value), safe="")
    if text in ("", ".", ".."):
        raise ValueError(f"{name} must not be {value!r}.")
    return text


def _body(given: Any, fields: dict[str, Any], method: str) -> Any:
    if given is None:
        return fields
    if isinstance(given, Mapping):
        return {**given, **fields}
    if fields:
        raise TypeError(f"A body that is not an object cannot be combined with {sorted(fields)}.")
    return given


def _headers(method: str, options: dict[str, Any]) -> dict[str, str]:
    headers = {}
    if options.get("etag") is not None:
        headers["If-Match"] = str(options["etag"])
    if method == "POST":
        given = options.get("idempotency_key")
        key = str(uuid4()) if given is None else str(given)
        if not VISIBLE.fullmatch(key):
            raise ValueError("An idempotency_key has 1 to 255 visible ASCII characters.")
        headers["Idempotency-Key"] = key
    return headers
