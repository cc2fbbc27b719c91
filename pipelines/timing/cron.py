"""Parses cron expressions and yields the wall times that they match, without zones and clock changes.

The library cronsim parses the fields and decides which days match. This module reports errors in words, and
yields naive wall times. `clock.py` handles clock changes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any, Self

from cronsim import CronSim, CronSimError

LONGEST = 200  # characters
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: Name and range of each field, for error messages.
FIELDS = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of the month", "1 to 31, L or LW"),
    ("month", "1 to 12 or JAN to DEC"),
    ("day of the week", "0 to 7 or SUN to SAT, where 0 and 7 are Sunday; 5L is the last Friday, 1#2 the second Monday"),
)  # fmt: skip
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
NUMBERS = {name: number for number, name in (*enumerate(WEEKDAYS), *enumerate(MONTHS, 1))}
# The library also accepts these in lists, ranges and steps, where their meaning is unclear. JUL has an L too.
PECULIAR = re.compile(r"(?<!JU)L|W(?!ED)|#")
NOWHERE = re.compile(r"(?!)")
PECULIAR_WHOLE = (
    NOWHERE,
    NOWHERE,
    re.compile(r"LW?"),
    NOWHERE,
    re.compile(rf"([0-7]|{'|'.join(WEEKDAYS)})(L|#[1-5])"),
)
STEP = re.compile(r"/([0-9]{1,9})")
SPAN_WITH_STEP = re.compile(r"([0-9]{1,2}|[A-Z]{3})-([0-9]{1,2}|[A-Z]{3})/[0-9]+")
LARGEST_STEPS = (59, 23, 31, 12, 7)
SIZES = (60, 24, 31, 12, 7)

ANY_SUNDAY = datetime(2000, 1, 2)  # noqa: DTZ001 - cronsim needs a time; a wall time has no zone
YEARS_WITH_ALL_DAYS = 41  # 29 February falls on a given weekday every 28 years, or 40 across 2100
ONE_DAY = timedelta(days=1)
NEVER = "never fires: none of its months has such a day"


class CronError(ValueError):
    """The expression is not a valid cron, or never fires. The message completes "the cron ..."."""


@dataclass(frozen=True, slots=True)
class Cron:
    text: str  # five fields in capitals, with single spaces
    minutes_of_day: tuple[int, ...]  # in order
    holds_every_hour: bool
    days_are_alternatives: bool  # one matching day field is enough, because neither begins with a star
    _fields: CronSim = field(repr=False, compare=False)

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse an expression. Raises `CronError`."""
        plain = _plain(text)
        try:
            fields = CronSim(plain, ANY_SUNDAY)
        except CronSimError as error:
            raise CronError(NEVER) from error  # each field is valid, so the days contradict each other
        minutes = tuple(
            hour * 60 + minute for hour in sorted(fields.hours) for minute in sorted(fields.minutes)
        )
        cron = cls(plain, minutes, len(fields.hours) == 24, not fields.day_and, fields)
        if not any(cron.days(date(2001, 1, 1), date(2001 + YEARS_WITH_ALL_DAYS, 1, 1))):
            raise CronError(NEVER)
        return cron

    @property
    def simplified(self) -> str:
        """The same fields, with numbers instead of steps of one number and of steps and stars in lists, for people."""
        fields = self._fields
        numbers: tuple[Collection[Any], ...] = (
            fields.minutes, fields.hours, fields.days, fields.months, fields.weekdays
        )  # fmt: skip
        return " ".join(map(_simplify, self.text.split(" "), numbers, SIZES))

    def days(self, first: date, last: date) -> Iterator[date]:
        """Yield the matching days from `first` to `last`, inclusive."""
        day = first
        while day <= last:
            if day.month not in self._fields.months:
                day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
                continue
            if self._fields.match_day(day):
                yield day
            day += ONE_DAY

    def walls(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the matching wall times from `start` to before `end`."""
        for day in self.days(start.date(), end.date()):
            midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - a wall time
            minutes = self.minutes_of_day
            if midnight < start:
                minutes = minutes[bisect_left(minutes, (start - midnight) / timedelta(minutes=1)) :]
            for minute in minutes:
                wall = midnight + timedelta(minutes=minute)
                if wall >= end:
                    return
                yield wall


@lru_cache(maxsize=1024)
def cron_of(text: str) -> Cron:
    """Parse an expression, with a cache. Raises `CronError`."""
    return Cron.of(text)


def _plain(text: str) -> str:
    """Return five valid fields in capitals. Raises `CronError`."""
    if len(text) > LONGEST:
        raise CronError(f"must have at most {LONGEST} characters")
    words = text.upper().split() if text.isascii() else []
    if len(words) == 1 and words[0].startswith("@"):
        nickname = words[0].lower()
        if nickname not in NICKNAMES:
            raise CronError(f"has an unknown nickname: use one of {', '.join(NICKNAMES)}")
        return NICKNAMES[nickname]
    if len(words) != len(FIELDS):
        many = "; seconds and years are not supported" if len(words) > len(FIELDS) else ""
        raise CronError(f"must have five fields ({', '.join(name for name, _ in FIELDS)}){many}")
    bad = [FIELDS[index] for index, word in enumerate(words) if not _is_valid(index, word)]
    if bad:
        named = " and ".join(f"{name} ({known})" for name, known in bad)
        raise CronError(
            f"has no valid {named}; besides numbers there are ranges a-b, lists a,b and steps a-b/n"
        )
    return SPAN_WITH_STEP.sub(_simplify_span_of_one, " ".join(words))


def _is_valid(index: int, word: str) -> bool:
    """Whether this field is valid, if the others are stars."""
    if PECULIAR.search(word) and not PECULIAR_WHOLE[index].fullmatch(word):
        return False
    if any(int(step) > LARGEST_STEPS[index] for step in STEP.findall(word)):
        return False  # */90 in the field of minutes does not mean every 90 minutes
    alone = ["*"] * len(FIELDS)
    alone[index] = word
    try:
        CronSim(" ".join(alone), ANY_SUNDAY)
    except CronSimError:
        return False
    return True


def _simplify(word: str, numbers: Collection[Any], size: int) -> str:
    if not {"/", ","} & {*word}:
        return word
    known = {number % size if size == SIZES[-1] else number for number in numbers}  # 7 is Sunday
    if ("/" not in word or len(known) > 1) and ("," not in word or not {"/", "*"} & {*word}):
        return word
    return "*" if len(known) == size else ",".join(map(str, sorted(known)))


def _simplify_span_of_one(span: re.Match[str]) -> str:
    """Return 5-5/2 as 5, because the library would treat it as 5/2."""
    first, last = (int(NUMBERS.get(end, end)) for end in span.groups())
    return str(first) if first == last else span[0]
