"""From text to plain data: YAML by the rules of YAML 1.2, or JSON.

Refused, each with its place: a key given twice, which most parsers silently resolve in favour of the last.
Refused as well: more than 256 kB, tags, and nesting or aliases that would grow out of bounds. Words mean
what they do in YAML 1.2: only true and false are flags, so `no`, `on` and `12:30` stay text, and so do dates.
A whole value may be repeated by an alias; merge keys (<<) are not part of YAML 1.2.
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
MAX_VALUES = 100_000  # with every alias counted as often as it is used


def load(text: str, *, filename: str) -> dict[str, Any]:
    """The object that a file holds: JSON if its name ends so, else YAML. Raises DefinitionError.

    Bounded in time and memory whatever the text is. Makes dict, list, str, int, float, bool and None only.
    """
    text = text.removeprefix("\ufeff")
    _check_text(text, filename)
    try:
        tree = _json_tree(text) if filename.lower().endswith(".json") else _yaml_tree(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DefinitionError([InputError("", f"{filename}: {_reason(error)}")]) from error
    growth = _Growth()
    data = growth.plain(tree, "")
    growth.errors.raise_if_any()
    if not isinstance(data, dict):
        raise DefinitionError(
            [InputError("", f"{filename}: {'is empty' if data is None else 'holds no object'}")]
        )
    return data


def _check_text(text: str, filename: str) -> None:
    error = text_error(text)
    if not error and len(text.encode()) > MAX_BYTES:
        error = f"is larger than {MAX_BYTES // 1024} kB"
    if error:
        raise DefinitionError([InputError("", f"{filename}: {error}")])


class _Pairs(list[tuple[Any, Any]]):
    """An object as it was written: keys may come twice."""


@dataclass(slots=True)
class _Growth:
    """Turns pairs into dicts and aliases into copies, within bounds."""

    errors: Errors = field(default_factory=Errors)
    left: int = MAX_VALUES

    def plain(self, value: Any, path: str, depth: int = 0) -> Any:
        self.left -= 1
        if self.left < 0:
            if self.left == -1:
                self.errors.add("", f"holds more than {MAX_VALUES:,} values, aliases counted in full")
            return None
        if depth > MAX_DEPTH:
            self.errors.add("", f"is nested deeper than {MAX_DEPTH} levels")
            self.left = -1  # one report is enough: below an alias of itself there is no end
            return None
        if isinstance(value, _Pairs):
            return self._object(value, path, depth)
        if isinstance(value, list):
            return [self.plain(item, at(path, index), depth + 1) for index, item in enumerate(value)]
        if isinstance(value, float) and not isfinite(value):
            self.errors.add(path, "must be a finite number")
        return value

    def _object(self, pairs: _Pairs, path: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if not isinstance(key, str):
                self.errors.add(path, f"a key must be text, not {quote_value(key)}")
            elif key == "<<":
                self.errors.add(
                    path, "merge keys (<<) are not supported; an alias can stand for a whole value"
                )
            elif key in found:
                self.errors.add(at(path, key), "is given twice")
            else:
                found[key] = self.plain(value, at(path, key), depth + 1)
        return found


def _json_tree(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_Pairs)


def _yaml_tree(text: str) -> Any:
    # Events come one by one, while nodes are built by recursion in C, which a deep text would bring down.
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
        found = _Pairs()
        yield found  # before its members, which may refer to it
        for key, value in node.value:
            found.append((self.construct_object(key, deep=True), self.construct_object(value)))


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
