"""How timings are parsed and described in words, and which missed times are caught up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from time import process_time
from typing import Any

import pytest

from pipelines.timing import (
    CatchUp,
    Timing,
    TimingError,
    errors,
    find_missed,
    in_words,
    read,
)
from pipelines.timing.cron import Cron
from pipelines.timing.nominal import CatchUpError
from tests.unit.timing.clocks import every, repeating, utc


def test_all_errors_of_a_schedule_name_their_path() -> None:
    data = {
        "name": "not about time",
        "repeat": "sometimes",
        "cron": "bad",
        "interval_ms": 999,
        "timezone": "America/New_Yrok",
        "start_at": "2027-01-01T00:00:00",
        "end_at": "tomorrow",
        "dst_gap": "jump",
        "dst_fold": 2,
        "jitter_seconds": -1,
    }

    messages = {error.path: error.message for error in errors(data, path="schedule")}

    assert set(messages) == {f"schedule.{key}" for key in data if key != "name"}
    assert messages["schedule.timezone"] == (
        'unknown time zone "America/New_Yrok", did you mean America/New_York?'
    )
    assert "offset" in messages["schedule.start_at"]


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({}, "repeat", "is missing"),
        ("0 0 * * *", "", "must be an object"),
        ({"repeat": "once"}, "start_at", "is missing"),
        ({"repeat": "repeating"}, "cron", "unless interval_ms is given"),
        ({"repeat": "once", "start_at": "2027-01-01T00:00:00Z", "cron": "@daily"}, "cron", "is for a repeating schedule"),
        ({"repeat": "once", "start_at": "2027-01-01T00:00:00Z", "end_at": "2028-01-01T00:00:00Z"}, "end_at", "is for a repeating"),
        ({"repeat": "repeating", "cron": "@daily", "interval_ms": 1_000}, "interval_ms", "together with cron"),
        ({"repeat": "repeating", "interval_ms": True}, "interval_ms", "must be a number"),
        ({"repeat": "repeating", "interval_ms": 1_000.5}, "interval_ms", "whole number"),
        ({"repeat": "repeating", "cron": "@daily", "timezone": "../../etc/passwd"}, "timezone", "unknown time zone"),
        ({"repeat": "repeating", "cron": "@daily", "timezone": "localtime"}, "timezone", "unknown time zone"),
        ({"repeat": "repeating", "cron": "@daily", "timezone": "America"}, "timezone", "unknown time zone"),
        ({"repeat": "repeating", "cron": "@daily", "start_at": "2027-01-02T00:00Z", "end_at": "2027-01-01T00:00Z"}, "end_at",
         "must not come before start_at"),
        ({"repeat": "repeating", "cron": "@yearly", "start_at": "2027-02-01T00:00Z", "end_at": "2027-05-01T00:00Z"}, "end_at",
         "before the first time"),
        ({"repeat": "once", "start_at": "1969-12-31T00:00:00Z"}, "start_at", "1970 to 2199"),
        ({"repeat": "once", "start_at": "9999-12-31T23:59:59-14:00"}, "start_at", "must be a time"),
    ],
)  # fmt: skip
def test_a_timing_that_makes_no_sense_is_refused(data: Any, path: str, message: str) -> None:
    with pytest.raises(TimingError) as caught:
        read(data)

    assert [error.path for error in caught.value.errors] == [path]
    assert message in caught.value.errors[0].message


def test_defaults_are_new_york_shift_first_and_no_jitter() -> None:
    timing = read({"repeat": "repeating", "cron": "0 8 * * *"})

    assert (timing.timezone, timing.dst_gap, timing.dst_fold, timing.jitter_seconds) == (
        "America/New_York", "shift", "first", 0,
    )  # fmt: skip
    assert read({"repeat": "repeating", "cron": "@daily"}, default_timezone="UTC").timezone == "UTC"


@pytest.mark.parametrize(
    ("policy", "fired"),
    [
        ("none", []),
        ("latest", [6]),
        ({"up_to": 1}, [6]),
        ({"up_to": 3}, [4, 5, 6]),
        ({"up_to": 9}, [1, 2, 3, 4, 5, 6]),
    ],
)
@pytest.mark.parametrize("timing", [repeating("0 * * * *"), every(3_600_000)], ids=["cron", "interval"])
def test_after_six_hours_the_policy_decides_and_every_skipped_time_is_recorded(
    timing: Timing, policy: Any, fired: list[int]
) -> None:
    missed = find_missed(
        timing, last=utc("2027-05-01"), now=utc("2027-05-01T06:10:00"), catch_up=CatchUp.of(policy)
    )

    assert [moment.hour for moment in missed.to_fire] == fired
    assert [moment.hour for moment in missed.list_skipped()] == [
        hour for hour in range(1, 7) if hour not in fired
    ]
    assert missed.skipped_count == 6 - len(fired)


@pytest.mark.parametrize(("policy", "fired"), [("none", [6]), ("latest", [6]), ({"up_to": 3}, [4, 5, 6])])
def test_a_time_that_is_due_now_is_not_missed(policy: Any, fired: list[int]) -> None:
    missed = find_missed(
        repeating("0 * * * *"),
        last=utc("2027-05-01"),
        now=utc("2027-05-01T06:00:20"),
        catch_up=CatchUp.of(policy),
        grace=timedelta(seconds=60),
    )

    assert [moment.hour for moment in missed.to_fire] == fired


def test_a_year_of_missed_seconds_is_counted_without_iterating_over_it() -> None:
    began = process_time()
    missed = find_missed(
        every(1_000), last=utc("2026-01-01"), now=utc("2027-01-01"), catch_up=CatchUp.of({"up_to": 2})
    )

    assert missed.to_fire == (utc("2026-12-31T23:59:59"), utc("2027-01-01"))
    assert missed.skipped_count == 365 * 86_400 - 2
    assert next(missed.list_skipped()) == utc("2026-01-01T00:00:01")
    assert process_time() - began < 0.5


def test_years_of_missed_minutes_of_a_cron_are_counted_without_iterating_over_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scheduler holds a transaction meanwhile, which PostgreSQL ends after some seconds."""
    walls, iterated = Cron.walls, 0

    def counted(cron: Cron, start: datetime, end: datetime) -> Iterator[datetime]:
        nonlocal iterated
        for wall in walls(cron, start, end):
            iterated += 1
            yield wall

    monkeypatch.setattr(Cron, "walls", counted)
    missed = find_missed(
        repeating("* * * * *", "UTC"),
        last=utc("2020-01-01"),
        now=utc("2027-01-01"),
        catch_up=CatchUp.of({"up_to": 2}),
    )

    assert missed.to_fire == (utc("2026-12-31T23:59:00"), utc("2027-01-01"))
    assert missed.skipped_count == 2557 * 1_440 - 2
    assert iterated < 100_000


@pytest.mark.parametrize(
    "value", [None, "all", 3, True, {}, {"up_to": 0}, {"up_to": True}, {"up_to": 1_001}, {"upto": 1}, []]
)
def test_a_policy_that_does_not_exist_is_refused(value: Any) -> None:
    with pytest.raises(CatchUpError, match="must be"):
        CatchUp.of(value)


@pytest.mark.parametrize("value", ["none", "latest", {"up_to": 7}])
def test_a_policy_is_serialized_as_it_was_parsed(value: Any) -> None:
    assert CatchUp.of(value).value == value


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"cron": "0 2 * * 0"}, "at 02:00, only on Sunday (America/New_York)"),
        ({"cron": "0 8 * * *", "timezone": "UTC"}, "every day at 08:00 (UTC)"),
        ({"cron": "@hourly"}, "every hour (America/New_York)"),
        ({"cron": "0 17 13 * 5"}, "at 17:00, on day 13 of the month, or on Friday (America/New_York)"),
        ({"cron": "0 9 1 6 MON-FRI"}, "at 09:00, on day 1 of the month, or Monday through Friday, only in June (America/New_York)"),
        ({"cron": "0 9 */2 * 1"}, "at 09:00, every 2 days, only on Monday (America/New_York)"),
        ({"cron": "0 8-18/5,22 * * *"}, "every day at 08:00, 13:00, 18:00 and 22:00 (America/New_York)"),
        ({"cron": "7,*/20 9 * * *"}, "every day at 0, 7, 20, and 40 minutes past the hour, at 09:00 (America/New_York)"),
        ({"cron": "0 9 1-10/4,20 */6,2 *"},
         "at 09:00, on day 1, 5, 9, and 20 of the month, only in January, February, and July (America/New_York)"),
        ({"cron": "0 9 * * 1-5/2,7"}, "at 09:00, only on Sunday, Monday, Wednesday, and Friday (America/New_York)"),
        ({"cron": "0 9 13,*/30 * 1-3/2,5"},
         "at 09:00, on day 1, 13, and 31 of the month, or on Monday, Wednesday, and Friday (America/New_York)"),
        ({"cron": "*,5 * * * *"}, "every minute (America/New_York)"),
        ({"cron": "0 9 * * */7"}, "at 09:00, only on Sunday (America/New_York)"),
        ({"interval_ms": 90_000, "timezone": "UTC"}, "every 90 s (UTC)"),
        ({"interval_ms": 7_200_000, "start_at": "2027-01-01T13:00:00Z", "end_at": "2027-07-01T04:00:30Z"},
         "every 2 h, from 2027-01-01 08:00, until 2027-07-01 00:00:30 (America/New_York)"),
        ({"repeat": "once", "start_at": "2024-01-15T10:00:00Z"}, "once at 2024-01-15 05:00 (America/New_York)"),
    ],
)  # fmt: skip
def test_a_timing_is_described_in_words(data: dict[str, Any], words: str) -> None:
    assert in_words(read({"repeat": "repeating", **data})) == words
