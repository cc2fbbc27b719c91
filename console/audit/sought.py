"""What somebody looks for in the audit trail. It is an address, so it can be kept and shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.utils.http import urlencode

OUTCOMES = ("done", "refused", "failed")
WORDS = ("actor", "operation", "kind", "object", "outcome", "since", "until")


@dataclass(frozen=True, slots=True)
class Sought:
    """Days are UTC's, both included. `before` is the number of the entry that the page begins behind."""

    actor: str = ""
    operation: str = ""
    kind: str = ""
    object: str = ""
    outcome: str = ""
    since: str = ""
    until: str = ""
    before: int | None = None
    remark: str = ""

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> Sought:
        """From an address. What is no day is told of, and not looked for."""
        words = {name: str(query.get(name, "")).replace("\x00", "").strip()[:200] for name in WORDS}
        if words["outcome"] not in OUTCOMES:
            words["outcome"] = ""
        number, remark = str(query.get("before", "")), ""
        for name in ("since", "until"):
            if words[name] and _day(words[name]) is None:
                words[name], remark = "", "A day is written such as 2026-05-01."
        return cls(**words, before=int(number[:15]) if number.isdecimal() else None, remark=remark)

    @property
    def from_moment(self) -> datetime | None:
        return _start(_day(self.since))

    @property
    def to_moment(self) -> datetime | None:
        """The end of the last day; none for the last day that there is."""
        day = _day(self.until)
        return None if day is None or day == date.max else _start(day + timedelta(days=1))

    @property
    def is_narrowed(self) -> bool:
        return any(getattr(self, name) for name in WORDS)

    @property
    def as_query(self) -> str:
        given = {name: getattr(self, name) for name in WORDS} | {"before": self.before}
        return urlencode({name: value for name, value in given.items() if value})

    @property
    def whole_query(self) -> str:
        """All that fits, from whichever page it is asked."""
        return replace(self, before=None).as_query

    def behind(self, number: int) -> Sought:
        return replace(self, before=number)


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _start(day: date | None) -> datetime | None:
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)
