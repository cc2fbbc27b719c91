"""Of which days and which work somebody wants to see what was consumed. It is an address, so it can be kept and shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from django.utils.http import urlencode

from tenants import clock

USUAL_DAYS = 30
MOST_DAYS = 366


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Both days are included. `remark` says what of the address could not be taken as it was."""

    first: date
    last: date
    role: str = ""
    pipeline: str = ""
    remark: str = ""

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range((self.last - self.first).days + 1)]

    @property
    def as_query(self) -> str:
        """What an address needs to mean the same."""
        given = {"from": str(self.first), "to": str(self.last), "role": self.role, "pipeline": self.pipeline}
        return urlencode({name: value for name, value in given.items() if value})

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> UsageFilter:
        """From an address. What is no day is told of, and the last 30 days are shown instead."""
        today = clock.now().date()
        words = {
            name: str(query.get(name, "")).replace("\x00", "").strip()[:200] for name in ("role", "pipeline")
        }
        try:
            last = date.fromisoformat(str(query.get("to") or today))
            first = date.fromisoformat(str(query.get("from") or last - timedelta(days=USUAL_DAYS - 1)))
        except (ValueError, OverflowError):
            return cls._usual(today, "A day is written such as 2026-05-01.", **words)
        if first > last:
            return cls._usual(today, "The first day must not be after the last.", **words)
        if (last - first).days >= MOST_DAYS:
            return cls._usual(today, f"At most {MOST_DAYS} days at once.", **words)
        return cls(first, last, **words)

    @classmethod
    def _usual(cls, today: date, remark: str, **words: str) -> UsageFilter:
        return cls(today - timedelta(days=USUAL_DAYS - 1), today, remark=remark, **words)
