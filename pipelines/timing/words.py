"""A timing in words, for people who do not read cron."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cron_descriptor import DescriptionTypeEnum, ExpressionDescriptor, Options

from pipelines.timing.cron import Cron, cron_of

from .nominal import Repeat, Timing

UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def in_words(timing: Timing) -> str:
    """One sentence without a full stop. Hours are those of the timing's zone, which is named, counted to 24.

    Raises `cron.CronError` for a timing whose cron nobody has checked.
    """
    if timing.repeat is Repeat.ONCE:
        return f"once at {_shown(timing, timing.start_at)} ({timing.timezone})"
    words = (
        _cron_in_words(timing.cron or "") if timing.repeat is Repeat.CRON else _every(timing.interval_ms or 0)
    )
    if timing.start_at:
        words += f", from {_shown(timing, timing.start_at)}"
    if timing.end_at:
        words += f", until {_shown(timing, timing.end_at)}"
    return f"{words} ({timing.timezone})"


def _every(milliseconds: int) -> str:
    """In the largest unit that needs no fraction: every 90 s, every 2 h."""
    size, unit = next((size, unit) for size, unit in UNITS if milliseconds % size == 0)
    return f"every {milliseconds // size:,} {unit}"


def _shown(timing: Timing, moment: datetime | None) -> str:
    if moment is None:
        return "a time that is not given"
    local = moment.astimezone(ZoneInfo(timing.timezone))
    return f"{local:%Y-%m-%d %H:%M:%S}" if local.second else f"{local:%Y-%m-%d %H:%M}"


@lru_cache(maxsize=1024)
def _cron_in_words(text: str) -> str:
    cron = cron_of(text)
    described = _described(cron.text)
    if cron.days_are_alternatives:
        described = _with_alternative_days(cron)
    if cron.text.endswith(" * * *") and not cron.holds_every_hour and described.startswith("At "):
        described = f"Every day {described[:1].lower()}{described[1:]}"
    return described[:1].lower() + described[1:]


def _with_alternative_days(cron: Cron) -> str:
    """The library says "on day 13 of the month, only on Friday" where either is enough."""
    minute, hour, day, _, _ = cron.text.split(" ")
    by_day = _described(f"{minute} {hour} {day} * *")
    by_weekday = _part(cron, DescriptionTypeEnum.DAYOFWEEK).removeprefix(", ").removeprefix("only ")
    return f"{by_day}, or {by_weekday}{_part(cron, DescriptionTypeEnum.MONTH)}"


def _described(text: str) -> str:
    return str(ExpressionDescriptor(text, _options()).get_description())


def _part(cron: Cron, part: DescriptionTypeEnum) -> str:
    return str(ExpressionDescriptor(cron.text, _options()).get_description(part))


def _options() -> Options:
    options = Options()
    options.locale_code = "en_US"  # else the machine's
    options.use_24hour_time_format = True
    return options
