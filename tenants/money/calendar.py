"""The calendar of money: days and months of UTC, by one clock."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from tenants import clock
from tenants.models import BudgetPeriod

#: When a total begins: before everything.
BEGINNING = date(1970, 1, 1)


def today() -> date:
    return clock.now().date()


def start_of(period: str, day: date) -> date:
    """The first day of the period that `day` is in."""
    if period == BudgetPeriod.DAY:
        return day
    return day.replace(day=1) if period == BudgetPeriod.MONTH else BEGINNING


def end_of(period: str, start: date) -> datetime | None:
    """The moment at which the period that begins on `start` is over; None when it never is."""
    if period == BudgetPeriod.TOTAL:
        return None
    after = start + timedelta(days=1 if period == BudgetPeriod.DAY else 32)
    if period == BudgetPeriod.MONTH:
        after = after.replace(day=1)
    return datetime(after.year, after.month, after.day, tzinfo=UTC)
