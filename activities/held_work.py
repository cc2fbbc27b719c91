"""What work of agents is held, by its cause: what `wait_reasons` tells of one activity, counted over all that wait, in one statement.

For headlines and lists, where nobody looks at single activities. It follows the scope that is open, as `queue_stats` does. Limits (caps,
rates, seats) are no such causes: what waits for its turn needs nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from activities.rescheduling import HELD_BY_PROVIDERS
from agents.governor import providers
from tenants import money
from tenants.sql import Statement

_HELD = Statement.load(Path(__file__).parent / "sql" / "standing", "held")

BUDGET, PROVIDER, PAUSED = "budget", "provider", "paused"


@dataclass(frozen=True, slots=True)
class HeldPart:
    """Of one role, what one cause holds. `until`: when it ends by itself, as far as that is known."""

    cause: str
    holder: str
    role: str
    held: int
    tenants: int
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Everything that one cause holds."""

    cause: str
    holder: str
    parts: Sequence[HeldPart]

    @property
    def held(self) -> int:
        return sum(part.held for part in self.parts)

    @property
    def until(self) -> datetime | None:
        return min((part.until for part in self.parts if part.until is not None), default=None)


def held_work() -> list[HeldPart]:
    """By cause, holder and role. In the scope that is open."""
    adapters = sorted(providers.NAMES)
    parameters = {
        "adapters": adapters,
        "providers": [providers.name_of(adapter) for adapter in adapters],
        "refusals": sorted(HELD_BY_PROVIDERS),
    }
    return [
        HeldPart(row.cause, row.holder, row.agent_role, row.held, row.tenants, _until(row))
        for row in _HELD.run(parameters)
    ]


def by_holder(parts: Iterable[HeldPart]) -> list[Hold]:
    """Put together over all roles, what holds most first."""
    found: dict[tuple[str, str], list[HeldPart]] = {}
    for part in parts:
        found.setdefault((part.cause, part.holder), []).append(part)
    holds = [Hold(cause, holder, parts) for (cause, holder), parts in found.items()]
    return sorted(holds, key=lambda hold: (-hold.held, hold.cause, hold.holder))


def causes_by_role(parts: Iterable[HeldPart]) -> dict[str, str]:
    """For each role what holds most of its work."""
    found: dict[str, HeldPart] = {}
    for part in parts:
        if part.role not in found or part.held > found[part.role].held:
            found[part.role] = part
    return {role: part.cause for role, part in found.items()}


def _until(row: Any) -> datetime | None:
    if row.cause == BUDGET:
        end: datetime | None = money.end_of(row.period, row.period_start)
        return end
    due: datetime | None = row.due_at
    return due
