"""Reads one object of a definition key by key, and remembers which keys it was asked for: others are unknown.

Every question has an answer. A value of the wrong kind is reported and stands for "not given", so that
reading goes on and finds the other faults too. A null means "not given" as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from pipelines.definition.faults import Faults, at, shown
from pipelines.definition.values import JsonCopier, fault_of_key, number, text_fault
from tenants.plain_names import LONGEST_NAME, fault_of_name

IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
ABOUT_IDENTIFIERS = "must be 1 to 63 lower-case letters, digits, - and _, beginning with a letter or digit"

Option = TypeVar("Option", bound=StrEnum)


class Reader:
    """One object at one path. `copier` is shared by all readers of a definition."""

    def __init__(self, data: Any, path: str, copier: JsonCopier) -> None:
        self.path = path
        self.copier = copier
        self.faults: Faults = copier.faults
        self._asked: set[str] = set()
        self.is_object = isinstance(data, Mapping)
        self._data: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
        if not self.is_object:
            self.faults.add(path, f"must be an object, not {shown(data)}")

    def value(self, key: str) -> Any:
        self._asked.add(key)
        return self._data.get(key)

    def is_null(self, key: str) -> bool:
        return key in self._data and self._data[key] is None

    def inner(self, key: str) -> Reader | None:
        """The object at `key`, or None if there is none."""
        value = self.value(key)
        return None if value is None else Reader(value, at(self.path, key), self.copier)

    def fault(self, key: str, message: str) -> None:
        """Reports at the key, or at the object itself when the key is not there."""
        if key in self._data:
            self.faults.add(at(self.path, key), message)
        else:
            self.faults.add(self.path, f"{key} {message}")

    def require(self, key: str) -> None:
        if self.is_object and self._data.get(key) is None:
            self.fault(key, "is missing")

    def text(self, key: str, *, limit: int = 100_000, blank: bool = False) -> str | None:
        """Text that can be stored."""
        value = self.value(key)
        if value is None:
            return None
        fault = fault_of_text(value, limit=limit, blank=blank)
        if fault:
            self.fault(key, fault)
            return None
        return str(value)

    def name(self, key: str, *, limit: int = LONGEST_NAME) -> str | None:
        """Text on one line, by the rules of `tenants.plain_names`."""
        value = self.text(key, limit=limit)
        fault = None if value is None else fault_of_name(value)
        if fault:
            self.fault(key, fault)
            return None
        return value

    def identifier(self, key: str) -> str | None:
        value = self.text(key)
        if value is not None and not IDENTIFIER.fullmatch(value):
            self.fault(key, ABOUT_IDENTIFIERS)
        return value

    def known(self, key: str, what: str, known: Collection[str]) -> str | None:
        """The name of something that exists."""
        value = self.text(key)
        if value is not None and value not in known:
            self.faults.unknown(at(self.path, key), what, value, known)
        return value

    def flag(self, key: str) -> bool:
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            self.fault(key, f"must be true or false, not {shown(value)}")
        return value is True

    def amount(self, key: str, *, low: float, high: float, above: bool = False) -> float | None:
        """A number from `low`, or from just above it, to `high`."""
        value = self.value(key)
        if value is None:
            return None
        fault = fault_of_amount(value, low=low, high=high, above=above)
        if fault:
            self.fault(key, fault)
            return None
        return number(value)

    def count(self, key: str, *, low: int, high: int) -> int | None:
        """A whole number from `low` to `high`."""
        found = self.amount(key, low=low, high=high)
        if found is not None and not isinstance(found, int):
            self.fault(key, "must be a whole number")
            return None
        return found

    def choice(self, key: str, options: type[Option]) -> Option | None:
        value = self.value(key)
        if value is None:
            return None
        if value not in list(options):
            self.fault(key, f"must be one of {', '.join(options)}")
            return None
        return options(value)

    def items(self, key: str, *, limit: int) -> list[tuple[str, Any]] | None:
        """The members of a list with their paths, or None if there is no list."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self.fault(key, f"must be a list, not {shown(value)}")
        elif len(value) > limit:
            self.fault(key, f"must have at most {limit:,} members")
        else:
            return [(at(at(self.path, key), index), item) for index, item in enumerate(value)]
        return None

    def mapping(self, key: str) -> dict[str, Any]:
        """Free JSON data, copied."""
        value = self.value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.fault(key, f"must be an object, not {shown(value)}")
            return {}
        copied: dict[str, Any] = self.copier.copy(value, at(self.path, key)) or {}
        return copied

    def refuse_other_keys(self) -> None:
        """To be called last: whatever was not asked for does not belong here."""
        for key in self._data:
            fault = fault_of_key(key)
            if fault:
                self.faults.add(self.path, fault)
            elif key not in self._asked:
                self.faults.unknown(at(self.path, key), "key", key, self._asked)


def fault_of_text(value: Any, *, limit: int, blank: bool = False) -> str | None:
    """What is wrong with a value that should be text, or None."""
    if not isinstance(value, str):
        return f"must be text, not {shown(value)}"
    if len(value) > limit:
        return f"must have at most {limit:,} characters"
    if not blank and not value.strip():
        return "must not be blank"
    return text_fault(value)


def fault_of_amount(value: Any, *, low: float, high: float, above: bool = False) -> str | None:
    """What is wrong with a value that should be a number from `low` (or just above it) to `high`, or None."""
    found = number(value)
    if found is None:
        return f"must be a number, not {shown(value)}"
    if not low <= found <= high or (above and found == low):
        return f"must be {'above' if above else 'at least'} {low:,} and at most {high:,}"
    return None
