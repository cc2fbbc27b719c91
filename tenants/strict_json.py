"""The strict parser for all JSON from outside: requests, callbacks, agents' answers.

What it accepts can be stored in PostgreSQL and MongoDB, written out again, and traversed by ordinary code: no NUL character, no lone
surrogate, no integer beyond 64 bits, nothing deeper or larger than the caller allows. Every error is a `StrictJSONError`; no input makes
it recurse without bound or raise anything else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import orjson

MAX_DEPTH = 32  # far above ordinary documents, far below the recursion limit of code that reads them later
MAX_NODES = 10_000  # counts every object, list and scalar
LARGEST_INTEGER = 2**63 - 1  # MongoDB and PostgreSQL's bigint hold signed 64 bits

TOO_LARGE = "too_large"  # answered with HTTP 413
INVALID = "invalid_json"  # answered with HTTP 400


class StrictJSONError(ValueError):
    """The document breaks a rule. `path` says where ("" is the root), `code` is one of those above."""

    def __init__(self, path: str, message: str, code: str = INVALID) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message
        self.code = code


class _ReadExactly(Exception):
    """Parse again with the exact parser: a float may have been an integer too large for orjson, which turns such integers into floats."""


class _RepeatedKey(dict[str, Any]):
    """An object with a repeated key, marked so that `_walk` can report its path."""

    key = ""


#: A container, the link of the container around it, and its key in that: cheap to make, and enough to build a path from.
_Link = tuple[Any, Any, Any]


def loads(
    raw: bytes, *, max_bytes: int, max_nodes: int = MAX_NODES, reject_duplicate_keys: bool = False
) -> Any:
    """Parse a document that follows all rules, or raise `StrictJSONError`. Of repeated keys the last one counts."""
    if len(raw) > max_bytes:
        raise StrictJSONError("", f"is larger than {max_bytes} bytes", TOO_LARGE)
    if reject_duplicate_keys:
        return _loads_exactly(raw, max_nodes, _object_with_unique_keys)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise StrictJSONError("", f"is not valid JSON: {error}") from error
    try:
        _walk(value, max_nodes, exact=False)
    except _ReadExactly:
        return _loads_exactly(raw, max_nodes, None)
    return value


def check(value: Any) -> None:
    """Check a value that was not parsed from text, such as an inline agent's result, by the same rules.

    Tuples count as lists. A structure that contains itself is refused as too deep or too large.
    """
    _walk(value, MAX_NODES, exact=True)


def _loads_exactly(raw: bytes, max_nodes: int, pairs: Callable[[list[tuple[str, Any]]], Any] | None) -> Any:
    """Parse with the slower parser of Python, which keeps integers exact and passes the members of objects to `pairs`."""
    try:
        value = json.loads(raw.decode(), object_pairs_hook=pairs)
    except RecursionError as error:
        raise StrictJSONError("", f"is nested deeper than {MAX_DEPTH} levels") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StrictJSONError("", f"is not valid JSON: {error}") from error
    except ValueError as error:  # Python's limit for the digits of an integer
        raise StrictJSONError("", "has an integer with too many digits") from error
    _walk(value, max_nodes, exact=True)
    return value


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    marked = _RepeatedKey(members)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            marked.key = key
        seen.add(key)
    return marked


def _walk(root: Any, max_nodes: int, *, exact: bool) -> None:
    """Check the value level by level, without recursion."""
    level: list[_Link] = [([root], None, None)]
    nodes = depth = 0
    while level:
        if depth > MAX_DEPTH:
            raise StrictJSONError(_path(level[0]), f"is nested deeper than {MAX_DEPTH} levels")
        deeper: list[_Link] = []
        for link in level:
            container = link[0]
            nodes += len(container)
            if nodes > max_nodes:
                raise StrictJSONError("", f"has more than {max_nodes} values")
            for key, item in _members(link):
                if isinstance(item, (dict, list, tuple)):
                    deeper.append((item, link, key))
                elif error := _error_of(item, exact):
                    raise StrictJSONError(_path((item, link, key)), error)
        level = deeper
        depth += 1


def _members(link: _Link) -> Iterable[tuple[Any, Any]]:
    container = link[0]
    if not isinstance(container, dict):
        return enumerate(container)
    if isinstance(container, _RepeatedKey):
        raise StrictJSONError(_path(link), f"has the key {_show_key(container.key)} twice")
    for key in container:
        if not isinstance(key, str):
            raise StrictJSONError(_path(link), f"has a key of type {type(key).__name__}, not text")
        if error := _error_of(key, exact=True):
            raise StrictJSONError(_path(link), f"has a key that {error}")
    return container.items()


def _error_of(item: Any, exact: bool) -> str | None:
    if isinstance(item, str):
        return _error_of_text(item)
    if item is None or isinstance(item, bool):
        return None
    if isinstance(item, int):
        return None if -LARGEST_INTEGER - 1 <= item <= LARGEST_INTEGER else "is an integer beyond 64 bits"
    if isinstance(item, float):
        if not math.isfinite(item):
            return "is not a finite number"
        if not exact and abs(item) > LARGEST_INTEGER:
            raise _ReadExactly
        return None
    return f"is a {type(item).__name__}, which JSON does not have"


def _error_of_text(text: str) -> str | None:
    if "\x00" in text:
        return "contains a NUL character"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate"
    return None


def _path(link: _Link) -> str:
    """Return the path to a value, such as `steps[2].params`."""
    keys: list[str | int] = []
    while link[2] is not None:
        keys.append(link[2])
        link = link[1]
    path = ""
    for key in reversed(keys[:-1]):  # without the index of the root in the first level
        if isinstance(key, int):
            path += f"[{key}]"
        elif key.isidentifier() and key.isascii() and len(key) <= 40:
            path += f".{key}" if path else key
        else:
            path += f"[{_show_key(key)}]"
    return path


def _show_key(key: str) -> str:
    return json.dumps(key[:40])  # escapes everything that is not printable ASCII
