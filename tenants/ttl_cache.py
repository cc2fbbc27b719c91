"""A small memory of one process whose entries are believed for a short time only."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

Value = TypeVar("Value")


class TtlCache(Generic[Value]):
    """Values by key, each for `seconds` after it was kept. Holds at most `entries`; threads may share it."""

    def __init__(self, *, seconds: float, entries: int) -> None:
        self._seconds = seconds
        self._entries = entries
        self._kept: dict[str, tuple[float, Value]] = {}

    def recall(self, key: str) -> Value | None:
        """The value, or None when it was never kept or is too old to be believed."""
        found = self._kept.get(key)
        if found is None:
            return None
        until, value = found
        return value if time.monotonic() < until else None

    def keep(self, key: str, value: Value) -> Value:
        if len(self._kept) >= self._entries:
            self._kept.clear()  # rare, and the price is one query per living entry
        self._kept[key] = (time.monotonic() + self._seconds, value)
        return value

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)

    def clear(self) -> None:
        self._kept.clear()
