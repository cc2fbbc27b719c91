"""Reads one object of a definition key by key, and remembers which keys were read: all others are unknown.

A value of the wrong kind is reported and then treated as absent, so that the other errors are found too. Null also
means absent. Only text, numbers and JSON values that JSON, jsonb and Python represent alike are accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeVar

from pipelines.definition.errors import Errors, at, quote_value
from tenants.plain_names import LONGEST_NAME, error_of_name

# PostgreSQL's jsonb refuses NUL and lone surrogates, and writes 1e22 as a whole number. So text is checked, and
# numbers have one form: a whole number that fits 64 bits is an int, all others are floats.

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
WHOLE = 2**63  # a larger number is kept as a float
MAX_DEPTH = 20  # levels of params; deeper data is a mistake or an attack
MAX_VALUES = 50_000  # in all params together; an alias counts each time that it is used


def text_error(text: str) -> str | None:
    """Return why this text cannot be stored, or None."""
    match = UNSTORABLE.search(text)
    if not match:
        return None
    return "holds a NUL character" if match[0] == "\x00" else "holds half of a surrogate pair"


def error_of_key(key: Any) -> str | None:
    """Return why this is not a valid key of an object, or None."""
    if not isinstance(key, str):
        return f"a key must be text, not {quote_value(key)}"
    error = text_error(key)
    return f"a key {quote_value(key)} {error}" if error else None


def number(value: Any) -> float | None:
    """Return a finite number in its one form, or None for anything else, such as True or 2**64 + 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if -WHOLE <= value < WHOLE else _same_as_float(value)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and -WHOLE <= value < WHOLE else value


def _same_as_float(value: int) -> float | None:
    """Return the float that equals this number, or that jsonb writes like this, as 1 and 22 zeros for 1e22; else None."""
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if value in (int(result), int(Decimal(repr(result)))) else None


@dataclass(slots=True)
class JsonCopier:
    """Copies JSON values, and reports other values. One instance serves a whole definition and limits its values."""

    errors: Errors
    remaining: int = MAX_VALUES

    def copy(self, value: Any, path: str, depth: int = 0) -> Any:
        self.remaining -= 1
        if self.remaining < 0:
            if self.remaining == -1:
                self.errors.add(path, f"more than {MAX_VALUES:,} values in params")
            return None
        if isinstance(value, Mapping | list | tuple) and depth >= MAX_DEPTH:
            self.errors.add(path, f"nested deeper than {MAX_DEPTH} levels")
            return None
        if isinstance(value, Mapping):
            keys = [key for key in value if self._is_key(key, path)]
            return {key: self.copy(value[key], at(path, key), depth + 1) for key in keys}
        if isinstance(value, list | tuple):
            return [self.copy(item, at(path, index), depth + 1) for index, item in enumerate(value)]
        return self._scalar(value, path)

    def _is_key(self, key: Any, path: str) -> bool:
        error = error_of_key(key)
        if error:
            self.errors.add(path, error)
        return error is None

    def _scalar(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            error = text_error(value)
            if error:
                self.errors.add(path, error)
            return value
        result = number(value)
        if result is None:
            kind = "a number that JSON cannot hold" if isinstance(value, int | float) else quote_value(value)
            self.errors.add(path, f"must be a JSON value, not {kind}")
        return result


IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
ABOUT_IDENTIFIERS = "must be 1 to 63 lower-case letters, digits, - and _, beginning with a letter or digit"

Option = TypeVar("Option", bound=StrEnum)


class Reader:
    """One object at one path. `copier` is shared by all readers of a definition."""

    def __init__(self, data: Any, path: str, copier: JsonCopier) -> None:
        self.path = path
        self.copier = copier
        self.errors: Errors = copier.errors
        self._read_keys: set[str] = set()
        self.is_object = isinstance(data, Mapping)
        self._data: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
        if not self.is_object:
            self.errors.add(path, f"must be an object, not {quote_value(data)}")

    def value(self, key: str) -> Any:
        self._read_keys.add(key)
        return self._data.get(key)

    def is_null(self, key: str) -> bool:
        return key in self._data and self._data[key] is None

    def inner(self, key: str) -> Reader | None:
        """Return a reader of the object at `key`, or None if the key is absent."""
        value = self.value(key)
        return None if value is None else Reader(value, at(self.path, key), self.copier)

    def error(self, key: str, message: str) -> None:
        """Report at the key, also when it is absent."""
        self.errors.add(at(self.path, key), message)

    def require(self, key: str) -> None:
        if self.is_object and self._data.get(key) is None:
            self.error(key, "is missing")

    def text(self, key: str, *, limit: int = 100_000, blank: bool = False) -> str | None:
        """Return text that can be stored."""
        value = self.value(key)
        if value is None:
            return None
        error = error_of_text(value, limit=limit, blank=blank)
        if error:
            self.error(key, error)
            return None
        return str(value)

    def name(self, key: str, *, limit: int = LONGEST_NAME) -> str | None:
        """Return text on one line, by the rules of `tenants.plain_names`."""
        value = self.text(key, limit=limit)
        error = None if value is None else error_of_name(value)
        if error:
            self.error(key, error)
            return None
        return value

    def identifier(self, key: str) -> str | None:
        value = self.text(key)
        if value is not None and not IDENTIFIER.fullmatch(value):
            self.error(key, ABOUT_IDENTIFIERS)
        return value

    def read_known(
        self, key: str, what: str, known: Collection[str], spell: Callable[[str], str] = str
    ) -> str | None:
        """Return a name that must be among `known` when it is spelt by `spell`."""
        value = self.text(key)
        value = None if value is None else spell(value)
        if value is not None and value not in known:
            self.errors.add_unknown(at(self.path, key), what, value, known)
        return value

    def flag(self, key: str) -> bool:
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            self.error(key, f"must be true or false, not {quote_value(value)}")
        return value is True

    def amount(self, key: str, *, low: float, high: float, above: bool = False) -> float | None:
        """Return a number from `low` (or above it, with `above`) to `high`."""
        value = self.value(key)
        if value is None:
            return None
        error = error_of_amount(value, low=low, high=high, above=above)
        if error:
            self.error(key, error)
            return None
        return number(value)

    def count(self, key: str, *, low: int, high: int) -> int | None:
        """Return a whole number from `low` to `high`."""
        value = self.amount(key, low=low, high=high)
        if value is not None and not isinstance(value, int):
            self.error(key, "must be a whole number")
            return None
        return value

    def choice(self, key: str, options: type[Option]) -> Option | None:
        value = self.value(key)
        if value is None:
            return None
        if value not in list(options):
            self.error(key, f"must be one of {', '.join(options)}")
            return None
        return options(value)

    def items(self, key: str, *, limit: int) -> list[tuple[str, Any]] | None:
        """Return the members of a list with their paths, or None if there is no list."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self.error(key, f"must be a list, not {quote_value(value)}")
        elif len(value) > limit:
            self.error(key, f"must have at most {limit:,} members")
        else:
            return [(at(at(self.path, key), index), item) for index, item in enumerate(value)]
        return None

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a copy of an object of any JSON data."""
        value = self.value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.error(key, f"must be an object, not {quote_value(value)}")
            return {}
        return self.copier.copy(value, at(self.path, key)) or {}

    def refuse_other_keys(self) -> None:
        """Report the keys that were not read. Call this last."""
        for key in self._data:
            error = error_of_key(key)
            if error:
                self.errors.add(self.path, error)
            elif key not in self._read_keys:
                self.errors.add_unknown(at(self.path, key), "key", key, self._read_keys)


def error_of_text(value: Any, *, limit: int, blank: bool = False) -> str | None:
    """Return why this is not valid text, or None."""
    if not isinstance(value, str):
        return f"must be text, not {quote_value(value)}"
    if len(value) > limit:
        return f"must have at most {limit:,} characters"
    if not blank and not value.strip():
        return "must not be blank"
    return text_error(value)


def error_of_amount(value: Any, *, low: float, high: float, above: bool = False) -> str | None:
    """Return why this is not a number from `low` (or above it, with `above`) to `high`, or None."""
    amount = number(value)
    if amount is None:
        return f"must be a number, not {quote_value(value)}"
    if not low <= amount <= high or (above and amount == low):
        return f"must be {'above' if above else 'at least'} {low:,} and at most {high:,}"
    return None
