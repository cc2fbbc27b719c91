"""What a process remembers: values that are believed for a short time, and the configuration until it changes.

Triggers note in the transaction of each change whose configuration it is (`sql/configuration_changes.sql`). A process asks once a second
which notes were committed since it asked before, and drops what they concern: one statement, however many tenants it works for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID

from tenants.sql import Statement

Value = TypeVar("Value")

ASKED_EVERY_SECONDS = 1.0
MOST_VALUES = 20_000
_CHANGED = Statement.load(Path(__file__).parent / "sql", "changed_configurations")


@dataclass(frozen=True, slots=True)
class _Known(Generic[Value]):
    """What was known at one look. Its values were read after it, or had not changed when it was taken."""

    horizon: int = 0  # transactions from this number on may have been under way
    at: datetime | None = None  # of PostgreSQL's clock; None: nothing was asked yet
    checked_at: float = float("-inf")  # the same moment by the monotonic clock
    values: dict[tuple[UUID | None, str], Value] = field(default_factory=dict)


class KeptConfiguration(Generic[Value]):
    """Values by tenant and name, each read once and kept until the tenant's configuration changes; without a tenant, until any does.

    A change is seen a second after its commit at the latest, and again each second while an older transaction runs on the server. What
    a transaction reads that has itself changed configuration is not kept: it may be rolled back. Threads may share it without a lock:
    a reader stores the value in the dictionary of the last look, and a look that found a change starts a new dictionary.
    """

    def __init__(self, *, asked_every: float = ASKED_EVERY_SECONDS) -> None:
        self._asked_every = asked_every
        self._known: _Known[Value] = _Known()

    def get(self, tenant_id: UUID | None, name: str, read: Callable[[], Value]) -> Value:
        """The value, by `read` unless it is kept. Asks PostgreSQL in the caller's transaction, if there is one."""
        known, key = self._known, (tenant_id, name)
        found = known.values.get(key)
        if found is not None and time.monotonic() - known.checked_at < self._asked_every:
            return found
        known, may_keep = self._look(known)
        found = known.values.get(key)
        if found is not None:
            return found
        value = read()
        if may_keep:
            if len(known.values) >= MOST_VALUES:
                known.values.clear()
            known.values[key] = value
        return value

    def forget(self) -> None:
        """Drop everything, so that the next question sees the present rows."""
        self._known = _Known()

    def _look(self, before: _Known[Value]) -> tuple[_Known[Value], bool]:
        """What holds now, and whether what is read from here on may be kept."""
        started = time.monotonic()
        (row,) = _CHANGED.run({"horizon": before.horizon, "at": before.at})
        values = _still_true(before.values, row) if row.everything or row.tenants else before.values
        self._known = known = _Known(row.horizon, row.at, started, values)
        return known, not row.own


def _still_true(
    values: dict[tuple[UUID | None, str], Value], changed: Any
) -> dict[tuple[UUID | None, str], Value]:
    if changed.everything:
        return {}
    concerned = {None, *changed.tenants}
    # Other threads put values there meanwhile.
    return {key: value for key, value in values.copy().items() if key[0] not in concerned}


class TtlCache(Generic[Value]):
    """Values by key, each for `seconds` after it was kept. Holds at most `entries`; threads may share it."""

    def __init__(self, *, seconds: float, entries: int) -> None:
        self._seconds = seconds
        self._entries = entries
        self._kept: dict[str, tuple[float, Value]] = {}

    def recall(self, key: str) -> Value | None:
        """The value, or None when it was never stored or has expired."""
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
