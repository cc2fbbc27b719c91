"""The nested form as people and programs write it: understood in both spellings, every fault by its path, kept in one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

from agents.scheduler_settings.keys import KEYS, Key, Unfit, camel
from agents.scheduler_settings.values import SchedulerSettings

LONGEST_GUESS = 63  # characters
MOST_FAULTS = 50
#: What lives in tables of its own, whatever the form.
ELSEWHERE = {
    "schedules": "schedules never live in this configuration: they are made at /api/v1/schedules/ or in the admin",
    "pipelines": "pipelines never live in this configuration: they are made at /api/v1/pipelines/ or in the admin",
}

Tree = dict[str, Any]


class SettingsInvalid(Exception):
    """The settings cannot be accepted. `faults` are pairs of path and message, the paths as they were written."""

    code: ClassVar[str] = "invalid_settings"
    status: ClassVar[int] = 400

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        self.faults = faults[:MOST_FAULTS]
        super().__init__(
            "; ".join(f"{path}: {message}" if path else message for path, message in self.faults)
        )


def read(given: Any) -> Tree:
    """The same settings in the form that is kept. A member that is null counts as not given. Raises `SettingsInvalid`."""
    faults: list[tuple[str, str]] = []
    found: Tree = {}
    for key, value, path in _members(given, _TREE, "", faults):
        try:
            put(found, key.parts, key.fit(value))
        except Unfit as fault:
            faults.append((path, str(fault)))
    if faults:
        raise SettingsInvalid(faults)
    return found


def nested(settings: SchedulerSettings) -> Tree:
    """All settings in the nested form, defaults included."""
    found: Tree = {}
    for key in KEYS:
        value = getattr(settings, key.attribute)
        put(found, key.parts, list(value) if isinstance(value, tuple) else value)
    return found


def key_at(path: str) -> Key:
    """The key with this path, in either spelling. Raises `SettingsInvalid`."""
    parts = path.split(".")
    for key in KEYS:
        if len(parts) == len(key.parts) and all(
            part in (own, camel(own)) for part, own in zip(parts, key.parts, strict=True)
        ):
            return key
    raise SettingsInvalid([(path, _unknown(path, [key.path for key in KEYS]))])


def put(tree: Tree, parts: list[str], value: Any) -> None:
    """Set what stands at a path."""
    *above, last = parts
    for part in above:
        tree = tree.setdefault(part, {})
    tree[last] = value


def value_of(text: str) -> Any:
    """What somebody typed, as JSON if it is JSON, else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _tree() -> Tree:
    tree: Tree = {}
    for key in KEYS:
        put(tree, key.parts, key)
    return tree


_TREE = _tree()


def _members(
    given: Any, known: Tree, path: str, faults: list[tuple[str, str]]
) -> Iterator[tuple[Key, Any, str]]:
    if not isinstance(given, Mapping):
        faults.append((path, "must be an object"))
        return
    spelt = {spelling: name for name in known for spelling in (name, camel(name))}
    seen: dict[str, str] = {}
    for spelling, value in given.items():
        place = f"{path}.{spelling}" if path else str(spelling)[:100]
        name = spelt.get(spelling)
        if name is None:
            faults.append((place[:200], ELSEWHERE.get(spelling) or _unknown(str(spelling), list(known))))
        elif name in seen:
            faults.append((place, f"is given twice, as {seen[name]} too"))
        elif value is not None and isinstance(known[name], Key):
            yield known[name], value, place
        elif value is not None:
            yield from _members(value, known[name], place, faults)
        if name is not None:
            seen.setdefault(name, str(spelling))


def _unknown(name: str, known: list[str]) -> str:
    guess = get_close_matches(name, known, n=1, cutoff=0.6) if len(name) <= LONGEST_GUESS else []
    return f"is no setting of scheduling{f', did you mean {guess[0]}?' if guess else ''}"
