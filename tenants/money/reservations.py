"""Reservations: what budgets keep for runs. Made with the claim of a run, smaller with each report, gone with the run.

Every function is one statement in the caller's `tenant_scope`, as the last rows that its transaction locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from tenants.context import APP
from tenants.money import calendar
from tenants.sql import Statement

_RESERVE, _SETTLE, _RELEASE = (
    Statement.load(Path(__file__).parent / "sql", name) for name in ("reserve", "settle", "release")
)


@dataclass(frozen=True, slots=True)
class BudgetedRun:
    """The run that a budget is asked about, and what decides under which budgets it falls."""

    tenant_id: UUID
    run_id: UUID
    activity_id: UUID
    role: str
    deliverable_id: UUID | None

    def parameters(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant_id,
            "run": self.run_id,
            "activity": self.activity_id,
            "role": self.role,
            "deliverable": self.deliverable_id,
        }


#: A named tuple: see `sql/reserve.sql` and `sql/settle.sql`.
Standing = Any


def reserve(bearer: BudgetedRun, *, dollars: Decimal, tokens: Decimal) -> list[Standing]:
    """How each budget stands; unless all of them have room nothing was reserved. The amounts are for budgets without an estimate."""
    return _RESERVE.run(
        {**bearer.parameters(), "day": calendar.today(), "dollars": dollars, "tokens": tokens}, using=APP
    )


def settle(
    bearer: BudgetedRun, *, dollars: Decimal, tokens: int, ended: bool, day: date | None = None
) -> list[Standing]:
    """Count what the run has consumed since its last report, and how each budget stands then."""
    more = {"dollars": dollars, "tokens": tokens, "ended": ended, "day": day or calendar.today()}
    return _SETTLE.run({**bearer.parameters(), **more}, using=APP)


def release(tenant_id: UUID, run_ids: Sequence[UUID]) -> None:
    """Give back what is kept for runs that have ended. Idempotent."""
    _RELEASE.run({"tenant": tenant_id, "runs": list(run_ids)}, using=APP)
