"""The kinds of rows that have an age, as the apps register them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings

#: Deletes at most so many (tenant, older than, most) in the caller's `tenant_scope`; returns how many it took.
Portion = Callable[[UUID, datetime, int], int]
#: How many rows (tenant, older than) a portion without end would delete.
Count = Callable[[UUID, datetime], int]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. A portion that returns 0 has nothing left to do for that tenant."""

    name: str
    title: str
    portion: Portion
    count: Count

    @property
    def default_days(self) -> float | None:
        """None: never deleted, unless the tenant says otherwise."""
        days: float | None = settings.ORCHESTRATOR_RETENTION_DAYS[self.name]
        return days


_kinds: dict[str, Kind] = {}


def register(*kinds: Kind) -> None:
    """Have rows of these kinds deleted from now on. Registering a kind again replaces it."""
    _kinds.update({kind.name: kind for kind in kinds})


def all_kinds() -> Mapping[str, Kind]:
    """By name, in the order of their names."""
    return dict(sorted(_kinds.items()))
