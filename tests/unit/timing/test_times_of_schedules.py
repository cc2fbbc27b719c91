"""When a schedule fires: clocks that change, crons, intervals, jitter."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.timing import (
    DstFold,
    Timing,
    errors,
    jitter,
    read,
    times,
)
from pipelines.timing.cron import CronError, cron_of
from tests.unit.timing.clocks import HOUR, every, first, on, repeating, utc

steady = settings(deadline=None, derandomize=True, max_examples=100)


@pytest.mark.parametrize(
    ("cron", "gap", "firings"),
    [
        ("30 2 * * *", "shift", ["14 07:00"]),
        ("30 2 * * *", "skip", []),
        ("*/15 2 * * *", "shift", ["14 07:00"]),
        ("0 2,3 * * *", "shift", ["14 07:00"]),
        ("30 2,3 * * *", "shift", ["14 07:00", "14 07:30"]),
        ("30 2,3 * * *", "skip", ["14 07:30"]),
        ("0 3 * * *", "skip", ["14 07:00"]),
        ("30 * * * *", "shift", [f"14 {hour:02}:30" for hour in range(4, 24)] + [f"15 {hour:02}:30" for hour in range(4)]),
    ],
)  # fmt: skip
def test_times_that_clocks_skip_are_shifted_to_the_change_or_skipped(
    cron: str, gap: str, firings: list[str]
) -> None:
    assert on(repeating(cron, dst_gap=gap), "2027-03-14") == firings


@pytest.mark.parametrize(
    ("cron", "fold", "firings"),
    [
        ("30 1 * * *", "first", ["07 05:30"]),
        ("30 1 * * *", "second", ["07 06:30"]),
        ("30 1 * * *", "both", ["07 05:30", "07 06:30"]),
        ("0,30 1,2 * * *", "second", ["07 06:00", "07 06:30", "07 07:00", "07 07:30"]),
        ("0,30 1 * * *", "both", ["07 05:00", "07 05:30", "07 06:00", "07 06:30"]),
        ("0 */6 * * *", "both", ["07 11:00", "07 17:00", "07 23:00"]),
        ("0 * * * *", "first", [f"07 {hour:02}:00" for hour in range(5, 24)] + [f"08 {hour:02}:00" for hour in range(5)]),
    ],
)  # fmt: skip
def test_times_that_clocks_repeat_fire_as_chosen(cron: str, fold: str, firings: list[str]) -> None:
    assert on(repeating(cron, dst_fold=fold), "2027-11-07") == firings


def test_clock_changes_of_half_an_hour_and_at_midnight_work_like_any_other() -> None:
    half = repeating("15 2 * * *", "Australia/Lord_Howe")  # 02:00 becomes 02:30
    midnight = repeating("0 0 * * *", "America/Santiago")  # 00:00 becomes 01:00

    assert first(half, "2026-10-02T12:00:00", 2) == ["2026-10-02T15:45:00", "2026-10-03T15:30:00"]
    assert first(midnight, "2026-09-05T12:00:00", 2) == ["2026-09-06T04:00:00", "2026-09-07T03:00:00"]


def test_a_clock_change_at_midnight_in_utc_is_found_to_the_second() -> None:
    missing = repeating("30 2 * * *", "Asia/Jerusalem")  # 02:00 becomes 03:00 at 00:00 in UTC
    before_and_at_the_change = repeating("*/20 1-3 * * *", "Asia/Jerusalem")

    assert first(missing, "2026-03-26T12:00:00", 1) == ["2026-03-27T00:00:00"]
    assert first(before_and_at_the_change, "2026-03-26T23:30:00", 3) == [
        "2026-03-26T23:40:00",
        "2026-03-27T00:00:00",
        "2026-03-27T00:20:00",
    ]


def test_times_in_a_day_that_a_zone_skips_fire_once_after_it() -> None:
    samoa = repeating("0 */8 * * *", "Pacific/Apia")  # there was no 30 December 2011

    firings = [f"{moment:%dT%H}" for moment in times(samoa, after=utc("2011-12-30T01:00:00"), limit=3)]

    assert firings == ["30T02", "30T10", "30T18"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 0 13 * 5", ["2027-01-01", "2027-01-08", "2027-01-13"]),  # either day field is enough
        # One begins with a star: both must match.
        (
            "0 0 */2 * 5",
            ["2027-01-01", "2027-01-15", "2027-01-29"],
        ),
        ("0 0 * * 7", ["2027-01-03", "2027-01-10", "2027-01-17"]),
        ("0 0 * * 0", ["2027-01-03", "2027-01-10", "2027-01-17"]),
        ("0 0 * * sun", ["2027-01-03", "2027-01-10", "2027-01-17"]),
        ("0 0 * * 6-7", ["2027-01-02", "2027-01-03", "2027-01-09"]),
        ("0 0 1 jan-mar *", ["2027-01-01", "2027-02-01", "2027-03-01"]),
        ("0 0 L * *", ["2027-01-31", "2027-02-28", "2027-03-31"]),
        ("0 0 LW * *", ["2027-01-29", "2027-02-26", "2027-03-31"]),
        ("0 0 * * 5L", ["2027-01-29", "2027-02-26", "2027-03-26"]),
        ("0 0 * * mon#1", ["2027-01-04", "2027-02-01", "2027-03-01"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("0 0 31 */2 *", ["2027-01-31", "2027-03-31", "2027-05-31"]),
        ("0 0 5/10 * *", ["2027-01-05", "2027-01-15", "2027-01-25"]),
        ("0 0 5-5/10 * *", ["2027-01-05", "2027-02-05", "2027-03-05"]),
        ("0 0 * * mon-1/2", ["2027-01-04", "2027-01-11", "2027-01-18"]),
        ("@yearly", ["2027-01-01", "2028-01-01", "2029-01-01"]),
        ("@Weekly", ["2027-01-03", "2027-01-10", "2027-01-17"]),
        ("  @daily ", ["2027-01-01", "2027-01-02", "2027-01-03"]),
    ],
)
def test_crons_mean_what_crontab_says(cron: str, expected: list[str]) -> None:
    moments = times(repeating(cron, "UTC"), after=utc("2026-12-31T23:59:59"), limit=3)

    assert [f"{moment:%Y-%m-%d}" for moment in moments] == expected


BAD_CRONS = {
    "": "must not be blank",
    "* * * *": "must have five fields (minute, hour, day of the month, month, day of the week)",
    "0 0 0 1 1 *": "seconds and years are not supported",
    "0 0 31 2 *": "never fires: none of its months has such a day",
    "0 0 30 2 *": "never fires",
    "0 0 31 2,4,6,9,11 *": "never fires",
    "0 0 */10 4 1#5": "never fires",  # on the 1st, 11th or 21st, and on a fifth Monday
    "60 * * * *": "has no valid minute (0 to 59)",
    "* 24 * * *": "has no valid hour (0 to 23)",
    "* * 0 * *": "has no valid day of the month",
    "* * * 13 *": "has no valid month",
    "* * * * 8": "has no valid day of the week",
    "61 25 * 13 *": "has no valid minute (0 to 59) and hour (0 to 23) and month (1 to 12 or JAN to DEC)",
    "*/90 * * * *": "has no valid minute",
    "*/0 * * * *": "has no valid minute",
    "5-1 * * * *": "has no valid minute",
    "1, * * * *": "has no valid minute",
    "* * 1,L * *": "has no valid day of the month",
    "* * 15W * *": "has no valid day of the month",
    "* * * * 5#6": "has no valid day of the week",
    "* * * * fri-mon": "has no valid day of the week",
    "H * * * *": "has no valid minute",
    "? ? ? ? ?": "has no valid minute",
    "@reboot": "has an unknown nickname: use one of @yearly",
    "@": "has an unknown nickname",
    "0 0 * * 0; rm -rf /": "seconds and years are not supported",
    "$(id) * * * *": "has no valid minute",
    "٣ * * * *": "must have five fields",
    "0 0 * * \x00": "holds a NUL character",
    "9" * 300: "must have at most 200 characters",
    "{0.__class__} * * * *": "has no valid minute",
}


@pytest.mark.parametrize("cron", BAD_CRONS)
def test_an_invalid_cron_is_refused_at_once_with_the_reason(cron: str) -> None:
    began = process_time()
    (error,) = errors({"repeat": "repeating", "cron": cron}, path="schedule")
    took = process_time() - began

    assert error.path == "schedule.cron"
    assert BAD_CRONS[cron] in error.message
    assert took < 0.05


@steady
@given(
    st.text(max_size=30)
    | st.lists(st.text("0123456789*/-,LW#@JANSUN", max_size=6), min_size=5, max_size=5).map(" ".join)
)
def test_every_text_is_read_or_raises_the_one_error(text: str) -> None:  # fmt: skip
    try:
        cron = cron_of(text)
    except CronError:
        return
    timing = Timing(repeat="repeating", cron=cron.text)  # type: ignore[arg-type]
    assert cron_of(timing.cron or "") == cron  # the normal form is parsed as the same cron


def test_an_interval_counts_elapsed_time_from_its_start_and_never_drifts() -> None:
    timing = every(5_400_000, start_at="2027-03-14T00:00:00-05:00")  # over the day of the change

    moments = list(times(timing, after=utc("2020-01-01"), limit=10_000))

    assert moments[0] == utc("2027-03-14T05:00:00")
    assert {later - earlier for earlier, later in pairwise(moments)} == {timedelta(minutes=90)}
    assert moments[-1] == moments[0] + 9_999 * timedelta(minutes=90)
    assert first(timing, "2027-03-14T05:00:00", 1) == ["2027-03-14T06:30:00"]


def test_an_interval_without_a_start_counts_from_the_beginning_of_1970() -> None:
    assert first(every(900_000), "2027-01-01T10:20:00", 2) == ["2027-01-01T10:30:00", "2027-01-01T10:45:00"]


def test_a_one_time_schedule_fires_once() -> None:
    timing = read({"repeat": "once", "start_at": "2024-01-15T10:00:00Z"})

    assert first(timing, "2024-01-15T09:59:59") == ["2024-01-15T10:00:00"]
    assert first(timing, "2024-01-15T10:00:00") == []


def test_start_and_end_of_a_schedule_are_inclusive_and_search_bounds_are_as_named() -> None:
    timing = repeating("0 12 * * *", "UTC", start_at="2027-01-01T12:00:00Z", end_at="2027-01-03T12:00:00Z")
    noon = [utc(f"2027-01-0{day}T12:00:00") for day in (1, 2, 3)]

    assert list(times(timing, after=utc("2020-01-01"))) == noon
    assert list(times(timing, after=noon[0], until=noon[1])) == [noon[1]]
    assert list(times(timing, after=noon[2])) == []
    assert list(times(timing, after=utc("2020-01-01"), limit=0)) == []


def test_a_bound_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="which moment is meant"):
        times(every(1_000), after=datetime(2027, 1, 1))  # noqa: DTZ001


def test_a_search_ends_at_the_end_of_the_century() -> None:
    rare = repeating("0 0 29 2 */7", "UTC")  # a Sunday

    moments = list(times(rare, after=utc("2020-01-01")))

    assert [moment.year for moment in moments] == [2032, 2060, 2088, 2128, 2156, 2184]
    assert list(times(rare, after=utc("9999-12-31"))) == []


def test_jitter_is_deterministic_and_spread_over_its_span() -> None:
    nominal = utc("2027-05-01T08:00:00")

    moved = [(jitter(nominal, 60, f"schedule {number}") - nominal).total_seconds() for number in range(500)]

    assert jitter(nominal, 60, "schedule 7") - nominal == timedelta(seconds=moved[7])
    assert jitter(nominal, 0, "schedule 7") == nominal
    assert all(0 <= seconds < 60 for seconds in moved)
    assert 25 < sum(moved) / len(moved) < 35
    assert (
        jitter(nominal, 60, "schedule 7") - nominal
        != jitter(nominal + HOUR, 60, "schedule 7") - nominal - HOUR
    )


@pytest.mark.parametrize("cron", ["0 8 * * *", "*/5 * * * *", "30 2 * * 1-5", "0 12 1 * *"])
def test_a_thousand_times_take_milliseconds(cron: str) -> None:
    timing = repeating(cron)
    list(times(timing, after=utc("2027-01-01"), limit=1))
    began = process_time()

    moments = list(times(timing, after=utc("2027-01-01"), limit=1_000))

    assert len(moments) == 1_000
    assert process_time() - began < 0.25


def test_both_occurrences_of_a_repeated_time_come_in_order() -> None:
    timing = repeating("*/10 1 * * *", dst_fold=DstFold.BOTH)

    moments = list(times(timing, after=utc("2027-11-07"), until=utc("2027-11-08")))

    assert moments == sorted(moments)
    assert len(moments) == 12
