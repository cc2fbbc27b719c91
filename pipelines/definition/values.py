"""Which text, numbers and JSON values a definition may hold: those that JSON, jsonb and Python keep alike.

PostgreSQL's jsonb refuses NUL and lone surrogates, and writes 1e22 as a whole number. So text is checked, and
every number is brought to one form: a whole number that fits 64 bits is an int, all others are floats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pipelines.definition.faults import Faults, at, shown

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
WHOLE = 2**63  # beyond, a number is kept as a float
MAX_DEPTH = 20  # levels of params; deeper data is a mistake or an attack
MAX_VALUES = 50_000  # values in all params together, aliases counted as often as they are used


def text_fault(text: str) -> str | None:
    """What keeps this text from being stored, or None."""
    found = UNSTORABLE.search(text)
    if not found:
        return None
    return "holds a NUL character" if found[0] == "\x00" else "holds half of a surrogate pair"


def fault_of_key(key: Any) -> str | None:
    """What is wrong with a key of an object, or None."""
    if not isinstance(key, str):
        return f"a key must be text, not {shown(key)}"
    fault = text_fault(key)
    return f"a key {shown(key)} {fault}" if fault else None


def number(value: Any) -> float | None:
    """The one form of a finite number, or None for anything else, such as True or 2**64 + 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if -WHOLE <= value < WHOLE else _same_as_float(value)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and -WHOLE <= value < WHOLE else value


def _same_as_float(value: int) -> float | None:
    """The float that this number is, or that jsonb has written out like this, as 1 and 22 zeros for 1e22."""
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if value in (int(found), int(Decimal(repr(found)))) else None


@dataclass(slots=True)
class JsonCopier:
    """Copies JSON values and reports what is none. One serves a whole definition, as its budget is shared."""

    faults: Faults
    left: int = MAX_VALUES

    def copy(self, value: Any, path: str, depth: int = 0) -> Any:
        self.left -= 1
        if self.left < 0:
            if self.left == -1:
                self.faults.add(path, f"more than {MAX_VALUES:,} values in params")
            return None
        if isinstance(value, Mapping | list | tuple) and depth >= MAX_DEPTH:
            self.faults.add(path, f"nested deeper than {MAX_DEPTH} levels")
            return None
        if isinstance(value, Mapping):
            keys = [key for key in value if self._is_key(key, path)]
            return {key: self.copy(value[key], at(path, key), depth + 1) for key in keys}
        if isinstance(value, list | tuple):
            return [self.copy(item, at(path, index), depth + 1) for index, item in enumerate(value)]
        return self._scalar(value, path)

    def _is_key(self, key: Any, path: str) -> bool:
        fault = fault_of_key(key)
        if fault:
            self.faults.add(path, fault)
        return fault is None

    def _scalar(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            fault = text_fault(value)
            if fault:
                self.faults.add(path, fault)
            return value
        found = number(value)
        if found is None:
            kind = "a number that JSON cannot hold" if isinstance(value, int | float) else shown(value)
            self.faults.add(path, f"must be a JSON value, not {kind}")
        return found
