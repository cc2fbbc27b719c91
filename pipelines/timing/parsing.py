"""Reads the keys of a schedule into a `Timing`, with the path of every error, and describes a `Timing` in a sentence.

The keys are those of the API: repeat (once or repeating), cron, interval_ms, timezone, start_at, end_at, dst_gap,
dst_fold and jitter_seconds. Other keys of a schedule are ignored.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from cron_descriptor import DescriptionTypeEnum, ExpressionDescriptor, Options

from pipelines.definition.errors import DefinitionError, Errors, InputError, quote_value
from pipelines.definition.reading import JsonCopier, Reader
from pipelines.timing.cron import LONGEST, CronError, cron_of
from pipelines.timing.nominal import (
    DEFAULT_TIMEZONE,
    EARLIEST,
    LATEST,
    DstFold,
    DstGap,
    Repeat,
    Timing,
    times,
)
from tenants.time_zones import LONGEST_ZONE, error_of_zone

SHORTEST_INTERVAL = 1_000  # ms
LONGEST_INTERVAL = 10 * 366 * 86_400_000  # ms
LONGEST_JITTER = 86_400  # seconds
LONGEST_MOMENT = 64  # characters


class TimingError(DefinitionError):
    """The timing is invalid. `errors` lists everything that is wrong with it."""

    code = "invalid_schedule"


def errors(data: Any, *, path: str = "", default_timezone: str = DEFAULT_TIMEZONE) -> list[InputError]:
    """Return all errors of a schedule's timing, with their paths below `path`."""
    return _read(data, path, default_timezone)[1]


def read(data: Any, *, path: str = "", default_timezone: str = DEFAULT_TIMEZONE) -> Timing:
    """Read a schedule's timing. Times may be text or aware datetimes. Raises `TimingError`."""
    timing, problems = _read(data, path, default_timezone)
    if problems:
        raise TimingError(problems)
    return timing


def _read(data: Any, path: str, default_timezone: str) -> tuple[Timing, list[InputError]]:
    collected = Errors()
    reader = Reader(data, path, JsonCopier(collected))
    timing = Timing(
        repeat=_repeat(reader),
        cron=_cron(reader),
        interval_ms=reader.count("interval_ms", low=SHORTEST_INTERVAL, high=LONGEST_INTERVAL),
        timezone=_timezone(reader) or default_timezone,
        start_at=_moment(reader, "start_at"),
        end_at=_moment(reader, "end_at"),
        dst_gap=reader.choice("dst_gap", DstGap) or DstGap.SHIFT,
        dst_fold=reader.choice("dst_fold", DstFold) or DstFold.FIRST,
        jitter_seconds=reader.amount("jitter_seconds", low=0, high=LONGEST_JITTER) or 0,
    )
    if reader.is_object:
        _check_kind(reader, timing.repeat)
        if timing.start_at and timing.end_at and timing.end_at < timing.start_at:
            reader.error("end_at", "must not come before start_at")
    if not collected.found:
        _check_that_it_fires(reader, timing)
    return timing, collected.found


def _repeat(reader: Reader) -> Repeat:
    """Return once, or interval if there is one, or else cron."""
    text = reader.text("repeat")
    if text == "once":
        return Repeat.ONCE
    if text is not None and text != "repeating":
        reader.error("repeat", "must be one of once, repeating")
    return Repeat.CRON if reader.value("interval_ms") is None else Repeat.INTERVAL


def _cron(reader: Reader) -> str | None:
    text = reader.text("cron", limit=LONGEST)
    if text is None:
        return None
    try:
        cron_of(text)
    except CronError as error:
        reader.error("cron", str(error))
    return text


def _timezone(reader: Reader) -> str | None:
    name = reader.text("timezone", limit=LONGEST_ZONE)
    if name is not None and (error := error_of_zone(name)):
        reader.error("timezone", error)
        return None
    return name


def _moment(reader: Reader, key: str) -> datetime | None:
    value = reader.value(key)
    if value is None:
        return None
    error, moment = _moment_of(value)
    if error:
        reader.error(key, error)
    return moment


def _moment_of(value: Any) -> tuple[str | None, datetime | None]:
    """Return the error of a value that must be a time, and the time in UTC; one of them is None."""
    try:
        moment = (
            datetime.fromisoformat(value)
            if isinstance(value, str) and len(value) <= LONGEST_MOMENT
            else value
        )
        if not isinstance(moment, datetime):
            raise TypeError
        if moment.tzinfo is None:
            return "must say its offset from UTC, as in 2026-05-01T09:30:00Z", None
        moment = moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return f"must be a time such as 2026-05-01T09:30:00Z, not {quote_value(value)}", None
    if not EARLIEST <= moment <= LATEST:
        return f"must be within the years {EARLIEST.year} to {LATEST.year}", None
    return None, moment


def _check_kind(reader: Reader, repeat: Repeat) -> None:
    """Report keys that do not belong to the kind of repetition, and missing ones that it needs."""
    keys = {key for key in ("cron", "interval_ms", "start_at", "end_at") if reader.value(key) is not None}
    reader.require("repeat")
    if repeat is Repeat.ONCE:
        reader.require("start_at")
        for key in sorted(keys & {"cron", "interval_ms", "end_at"}):
            reader.error(key, "is for a repeating schedule; a schedule that fires once has start_at")
    elif {"cron", "interval_ms"} <= keys:
        reader.error("interval_ms", "cannot be given together with cron")
    elif not keys & {"cron", "interval_ms"} and reader.value("repeat") == "repeating":
        reader.error("cron", "is required for a repeating schedule, unless interval_ms is given")


def _check_that_it_fires(reader: Reader, timing: Timing) -> None:
    """Report a timing that ends before its first time. A timing that has ended already is valid."""
    if timing.end_at is not None and not any(times(timing, after=EARLIEST, limit=1)):
        reader.error("end_at", "comes before the first time at which the schedule would fire")


# A timing in words, for people who do not read cron.


UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def in_words(timing: Timing) -> str:
    """Describe a timing in one sentence without a full stop, with 24-hour times in its zone, and the zone's name.

    Raises `cron.CronError` for an unchecked timing with an invalid cron.
    """
    if timing.repeat is Repeat.ONCE:
        return f"once at {_format_moment(timing, timing.start_at)} ({timing.timezone})"
    words = (
        _cron_in_words(timing.cron or "") if timing.repeat is Repeat.CRON else _every(timing.interval_ms or 0)
    )
    if timing.start_at:
        words += f", from {_format_moment(timing, timing.start_at)}"
    if timing.end_at:
        words += f", until {_format_moment(timing, timing.end_at)}"
    return f"{words} ({timing.timezone})"


def _every(milliseconds: int) -> str:
    """Return the interval in the largest unit without a fraction: every 90 s, every 2 h."""
    size, unit = next((size, unit) for size, unit in UNITS if milliseconds % size == 0)
    return f"every {milliseconds // size:,} {unit}"


def _format_moment(timing: Timing, moment: datetime | None) -> str:
    if moment is None:
        return "a missing time"
    local = moment.astimezone(ZoneInfo(timing.timezone))
    return f"{local:%Y-%m-%d %H:%M:%S}" if local.second else f"{local:%Y-%m-%d %H:%M}"


@lru_cache(maxsize=1024)
def _cron_in_words(text: str) -> str:
    cron = cron_of(text)
    text = cron.simplified  # the library cannot describe the others
    described = _describe_cron(text)
    if cron.days_are_alternatives:
        # Either day is enough, but the library says "on day 13 of the month, only on Friday".
        minute, hour, day, _, _ = text.split(" ")
        by_day = _describe_cron(f"{minute} {hour} {day} * *")
        by_weekday = _part(text, DescriptionTypeEnum.DAYOFWEEK).removeprefix(", ").removeprefix("only ")
        described = f"{by_day}, or {by_weekday}{_part(text, DescriptionTypeEnum.MONTH)}"
    if text.endswith(" * * *") and not cron.holds_every_hour and described.startswith("At "):
        described = f"Every day {described[:1].lower()}{described[1:]}"
    return described[:1].lower() + described[1:]


def _describe_cron(text: str) -> str:
    return str(ExpressionDescriptor(text, _options()).get_description())


def _part(text: str, part: DescriptionTypeEnum) -> str:
    return str(ExpressionDescriptor(text, _options()).get_description(part))


def _options() -> Options:
    options = Options()
    options.locale_code = "en_US"  # instead of the machine's locale
    options.use_24hour_time_format = True
    return options
