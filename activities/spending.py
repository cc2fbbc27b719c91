"""Spending: what a run consumes is counted when it says so, and it starts only with money kept for it.

The ledger and the budgets change in the transaction of what they tell of: a claim that gets no room is no claim, and an end of a run
gives back what was kept for it. Tenants without a budget pay nothing for this but the ledger's rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from psycopg.types.json import Jsonb

from activities.alerts.raising import raise_alert
from activities.exceptions import OutOfBudget, plain
from activities.models.alert import AlertKind
from activities.run_tokens import RunToken
from agents import prices
from agents.answers import MAX_COST_USD, MAX_MODEL, MAX_TOKENS
from agents.configuration import RoleSettings
from agents.contracts import Usage
from tenants.context import APP
from tenants.money import calendar, ledger, reservations
from tenants.money.reservations import Bearer, Standing
from tenants.remembered import Remembered
from tenants.sql import Statement

LOOKED_AT = timedelta(days=7)  # the past whose average is the estimate
MOST_ENTRIES = 2_000
_COUNT = Statement.load(Path(__file__).parent / "sql", "count_usage")
_EXACT = Decimal("1e-12")  # the ledger's last place
_averages: Remembered[tuple[Decimal, Decimal]] = Remembered(seconds=60.0, entries=10_000)


def reserve(row: Any, run_id: UUID, role: RoleSettings) -> None:
    """Keep in every budget what the run that was just claimed may need. Raises `OutOfBudget`: then the claim must be undone.

    In the transaction of the claim.
    """
    bearer = Bearer(row.tenant_id, run_id, row.id, row.agent_role, row.deliverable_id)
    dollars, tokens = estimate(row.tenant_id, row.agent_role, role)
    standings = reservations.reserve(bearer, dollars=dollars, tokens=tokens)
    for budget in standings:
        if not budget.has_room:
            raise OutOfBudget(budget, budget.need)
    _warn(row.tenant_id, standings)


def estimate(tenant_id: UUID, role: str, options: RoleSettings) -> tuple[Decimal, Decimal]:
    """Dollars and tokens that a run of this role may need: what the role says, else what its runs took lately, else the platform's."""
    said = options.adapter.options
    dollars, tokens = said.get("estimate_usd"), said.get("estimate_tokens")
    if dollars is None or tokens is None:
        usual = _usual(tenant_id, role)
        dollars, tokens = usual[0] if dollars is None else dollars, usual[1] if tokens is None else tokens
    return Decimal(str(dollars)).quantize(_EXACT), Decimal(str(tokens)).quantize(_EXACT)


def _usual(tenant_id: UUID, role: str) -> tuple[Decimal, Decimal]:
    key = f"{tenant_id}:{role}"
    if (known := _averages.recall(key)) is not None:
        return known
    since = calendar.today() - LOOKED_AT
    found = ledger.average_of(tenant_id, role, since=since, most=MOST_ENTRIES)
    given = (
        Decimal(str(settings.ORCHESTRATOR_RUN_ESTIMATE_USD)),
        Decimal(settings.ORCHESTRATOR_RUN_ESTIMATE_TOKENS),
    )
    return _averages.keep(key, found or given)


@dataclass(frozen=True, slots=True)
class Counted:
    """Whether the run goes on, and the budget for which it has to stop, if there is one."""

    live: bool
    refusal: OutOfBudget | None = None


def count(run: RunToken, usage: Usage, *, beat: bool = False, progress: Any = None) -> Counted:
    """Enter what a run has consumed in total, and with `beat` that its agent lives.

    Counted whatever has become of the run: what is spent is spent. In a `tenant_scope`, as the last that its transaction locks.
    """
    usage, day = _sound(usage), calendar.today()
    price = prices.price_of(usage.model, in_batch=usage.in_batch)
    found = _COUNT.run(
        {
            "tenant": run.tenant_id,
            "run": run.run_id,
            "fence": run.fence,
            "day": day,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost": usage.cost_usd,
            "model": usage.model,
            "input_price": price.input if price else None,
            "output_price": price.output if price else None,
            "beat": beat,
            "progress": None if progress is None else Jsonb(progress),
        },
        using=APP,
    )
    if not found:
        return Counted(live=False)
    (new,) = found
    return Counted(new.live, _settled(run, new, day) if new.budgeted else None)


def _sound(usage: Usage) -> Usage:
    """As answers are checked before they come here; what an adapter says on its way is not, and must not spoil sums for ever."""
    cost = usage.cost_usd
    if cost is not None:
        cost = min(cost, MAX_COST_USD).quantize(_EXACT) if cost.is_finite() and cost >= 0 else None
    return Usage(
        input_tokens=min(max(0, usage.input_tokens), MAX_TOKENS),
        output_tokens=min(max(0, usage.output_tokens), MAX_TOKENS),
        cost_usd=cost,
        model=(usage.model or "").replace("\x00", "")[:MAX_MODEL] or None,
        in_batch=usage.in_batch,
    )


def _settled(run: RunToken, new: Any, day: date) -> OutOfBudget | None:
    bearer = Bearer(run.tenant_id, run.run_id, new.activity, new.role or "", new.deliverable)
    standings = reservations.settle(
        bearer, dollars=new.dollars, tokens=new.tokens, ended=not new.live, day=day
    )
    _warn(run.tenant_id, standings)
    over = [budget for budget in standings if budget.over]
    return OutOfBudget(over[0], Decimal(0)) if over and new.live else None


def ended(run: RunToken, end: Any, usage: Usage | None = None) -> None:
    """The run has ended in this transaction; `end` is the row of its end. What it says it consumed is counted, what was kept goes back."""
    if usage is not None:
        count(run, usage)
    elif end.reserved:
        reservations.release(run.tenant_id, [run.run_id])


def _warn(tenant_id: UUID, standings: list[Standing]) -> None:
    for budget in standings:
        if budget.warned:
            raise_alert(
                tenant_id,
                AlertKind.BUDGET_WARNING,
                f"The budget {budget.name} is nearly used up",
                body=f"{plain(budget.spent)} of {plain(budget.cap)} {budget.unit} are spent. When it is used up, work waits for it.",
                facts={"budget": budget.id, "spent": budget.spent, "cap": budget.cap, "unit": budget.unit},
                dedup_key=f"budget:{budget.id}:{budget.period_start}:{plain(budget.cap)}",
            )
