"""Caches of a process: values that are valid for a short time, and configuration that is valid until it changes.

Triggers record each change of configuration in its transaction, with the tenant (`sql/configuration_changes.sql`). A process reads once a
second which changes were committed since the last time, and drops the affected values: one statement, for any number of tenants.
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

CHECK_SECONDS = 1.0
MOST_VALUES = 20_000
_CHANGED = Statement.load(Path(__file__).parent / "sql", "changed_configurations")


@dataclass(frozen=True, slots=True)
class _Snapshot(Generic[Value]):
    """The cache as of one check. Its values were read after the check, or had not changed at that time."""

    horizon: int = 0  # transactions from this number on may still have been running
    at: datetime | None = None  # by PostgreSQL's clock; None: not checked yet
    checked_at: float = float("-inf")  # the same time by the monotonic clock
    values: dict[tuple[UUID | None, str], Value] = field(default_factory=dict)


class ConfigurationCache(Generic[Value]):
    """Values by tenant and name, each read once and cached until the tenant's configuration changes; without a tenant, until any changes.

    A change is noticed at most a second after its commit, and again each second while an older transaction runs on the server. Values
    that a transaction reads after it has changed configuration are not cached, because it may be rolled back. Threads may share the cache
    without a lock: a reader stores the value in the dictionary of the last check, and a check that finds a change starts a new dictionary.
    """

    def __init__(self, *, check_seconds: float = CHECK_SECONDS) -> None:
        self._check_seconds = check_seconds
        self._snapshot: _Snapshot[Value] = _Snapshot()

    def get(self, tenant_id: UUID | None, name: str, read: Callable[[], Value]) -> Value:
        """Return the cached value, or read it. Queries PostgreSQL in the caller's transaction, if there is one."""
        snapshot, key = self._snapshot, (tenant_id, name)
        cached = snapshot.values.get(key)
        if cached is not None and time.monotonic() - snapshot.checked_at < self._check_seconds:
            return cached
        snapshot, may_cache = self._check(snapshot)
        cached = snapshot.values.get(key)
        if cached is not None:
            return cached
        value = read()
        if may_cache:
            if len(snapshot.values) >= MOST_VALUES:
                snapshot.values.clear()
            snapshot.values[key] = value
        return value

    def forget(self) -> None:
        """Clear the cache, so that the next call reads the current rows."""
        self._snapshot = _Snapshot()

    def _check(self, before: _Snapshot[Value]) -> tuple[_Snapshot[Value], bool]:
        """Drop changed values. Return the new snapshot, and whether values that are read from now on may be cached."""
        started = time.monotonic()
        (row,) = _CHANGED.run({"horizon": before.horizon, "at": before.at})
        values = _unchanged(before.values, row) if row.everything or row.tenants else before.values
        self._snapshot = snapshot = _Snapshot(row.horizon, row.at, started, values)
        return snapshot, not row.own


def _unchanged(
    values: dict[tuple[UUID | None, str], Value], changed: Any
) -> dict[tuple[UUID | None, str], Value]:
    if changed.everything:
        return {}
    affected = {None, *changed.tenants}
    # Copy first, because other threads may add values meanwhile.
    return {key: value for key, value in values.copy().items() if key[0] not in affected}


class TtlCache(Generic[Value]):
    """Values by key, each valid for `seconds`. Holds at most `entries`; threads may share it."""

    def __init__(self, *, seconds: float, entries: int) -> None:
        self._seconds = seconds
        self._entries = entries
        self._entries_by_key: dict[str, tuple[float, Value]] = {}

    def recall(self, key: str) -> Value | None:
        """Return the value, or None if it was never stored or has expired."""
        entry = self._entries_by_key.get(key)
        if entry is None:
            return None
        until, value = entry
        return value if time.monotonic() < until else None

    def keep(self, key: str, value: Value) -> Value:
        if len(self._entries_by_key) >= self._entries:
            self._entries_by_key.clear()  # rare, and costs one query per live entry
        self._entries_by_key[key] = (time.monotonic() + self._seconds, value)
        return value

    def forget(self, key: str) -> None:
        self._entries_by_key.pop(key, None)

    def clear(self) -> None:
        self._entries_by_key.clear()
