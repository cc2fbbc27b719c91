"""Parses text into plain data: YAML by the rules of YAML 1.2, or JSON.

Duplicate keys are errors, because most parsers silently keep the last. Tags, more than 256 kB, and nesting or
aliases beyond the limits are errors as well. Only true and false are booleans, as in YAML 1.2: `no`, `on`,
`12:30` and dates stay text. An alias may repeat a whole value; merge keys (<<) are not part of YAML 1.2.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import yaml
from yaml import CSafeLoader

from pipelines.definition.errors import DefinitionError, Errors, InputError, at, quote_value
from pipelines.definition.reading import text_error

MAX_BYTES = 256 * 1024
MAX_DEPTH = 40  # levels; a definition has about five, free params up to twenty more
MAX_VALUES = 100_000  # an alias counts each time that it is used


def load(text: str, *, filename: str) -> dict[str, Any]:
    """Return the object in a file: JSON if its name ends in .json, else YAML. Raises DefinitionError.

    Time and memory are bounded for any text. The result holds only dict, list, str, int, float, bool and None.
    """
    text = text.removeprefix("\ufeff")
    _check_text(text, filename)
    try:
        is_json = filename.lower().endswith(".json")
        tree = json.loads(text, object_pairs_hook=_Pairs) if is_json else _yaml_tree(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DefinitionError([InputError("", f"{filename}: {_reason(error)}")]) from error
    growth = _Growth()
    data = growth.plain(tree, "")
    growth.errors.raise_if_any()
    if not isinstance(data, dict):
        raise DefinitionError(
            [InputError("", f"{filename}: {'is empty' if data is None else 'does not hold an object'}")]
        )
    return data


def _check_text(text: str, filename: str) -> None:
    error = text_error(text)
    if not error and len(text.encode()) > MAX_BYTES:
        error = f"is larger than {MAX_BYTES // 1024} kB"
    if error:
        raise DefinitionError([InputError("", f"{filename}: {error}")])


class _Pairs(list[tuple[Any, Any]]):
    """An object as it was written, which may have duplicate keys."""


@dataclass(slots=True)
class _Growth:
    """Turns pairs into dicts and aliases into copies, within the limits."""

    errors: Errors = field(default_factory=Errors)
    remaining: int = MAX_VALUES

    def plain(self, value: Any, path: str, depth: int = 0) -> Any:
        self.remaining -= 1
        if self.remaining < 0:
            if self.remaining == -1:
                self.errors.add("", f"holds more than {MAX_VALUES:,} values, aliases counted in full")
            return None
        if depth > MAX_DEPTH:
            self.errors.add("", f"is nested deeper than {MAX_DEPTH} levels")
            self.remaining = -1  # report once only: an alias of itself would never end
            return None
        if isinstance(value, _Pairs):
            return self._object(value, path, depth)
        if isinstance(value, list):
            return [self.plain(item, at(path, index), depth + 1) for index, item in enumerate(value)]
        if isinstance(value, float) and not isfinite(value):
            self.errors.add(path, "must be a finite number")
        return value

    def _object(self, pairs: _Pairs, path: str, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in pairs:
            if not isinstance(key, str):
                self.errors.add(path, f"a key must be text, not {quote_value(key)}")
            elif key == "<<":
                self.errors.add(
                    path, "merge keys (<<) are not supported; an alias can stand for a whole value"
                )
            elif key in members:
                self.errors.add(at(path, key), "is given twice")
            else:
                members[key] = self.plain(value, at(path, key), depth + 1)
        return members


def _yaml_tree(text: str) -> Any:
    # Check the depth by events first: nodes are built by recursion in C, which a deeply nested text would crash.
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RecursionError
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise ValueError(f"the tag {quote_value(tag)} is not supported")
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader


class _Loader(CSafeLoader):
    """The safe loader with the plain values of YAML 1.2, and with objects as pairs."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def pairs(self, node: yaml.MappingNode) -> Any:
        pairs = _Pairs()
        yield pairs  # before its members, because they may refer to it
        for key, value in node.value:
            pairs.append((self.construct_object(key, deep=True), self.construct_object(value)))


_NUMBER_STARTS = list("-+.0123456789")
for _tag, _pattern, _starts in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", _NUMBER_STARTS),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", _NUMBER_STARTS),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _starts)
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.pairs)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"is nested deeper than {MAX_DEPTH} levels"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error).partition("\n")[0].partition(";")[0][:200]
