"""A timing fires when it says, on days when clocks change too, and whatever is wrong with it is named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.timing import (
    CatchUp,
    DstFold,
    Timing,
    TimingError,
    faults,
    in_words,
    jittered,
    missed,
    read,
    times,
)
from pipelines.timing.catching_up import CatchUpError
from pipelines.timing.cron import CronError, cron_of

steady = settings(deadline=None, derandomize=True, max_examples=200)
HOUR = timedelta(hours=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def repeating(cron: str, timezone: str = "America/New_York", **more: Any) -> Timing:
    return read({"repeat": "repeating", "cron": cron, "timezone": timezone, **more})


def every(milliseconds: int, **more: Any) -> Timing:
    return read({"repeat": "repeating", "interval_ms": milliseconds, **more})


def on(timing: Timing, day: str, days: int = 1) -> list[str]:
    """The firings from that day's midnight in New York (in winter) on, by the clock of UTC."""
    start = utc(day) + 4 * HOUR
    found = times(timing, after=start, until=start + timedelta(days=days))
    return [f"{moment:%d %H:%M}" for moment in found]


def first(timing: Timing, after: str, limit: int = 3) -> list[str]:
    return [f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in times(timing, after=utc(after), limit=limit)]


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
def test_times_that_clocks_leave_out_are_shifted_to_the_change_or_skipped(
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
def test_times_that_clocks_show_twice_fire_as_chosen(cron: str, fold: str, firings: list[str]) -> None:
    assert on(repeating(cron, dst_fold=fold), "2027-11-07") == firings


def test_a_change_of_half_an_hour_and_one_at_midnight_are_changes_like_any_other() -> None:
    half = repeating("15 2 * * *", "Australia/Lord_Howe")  # 02:00 becomes 02:30
    midnight = repeating("0 0 * * *", "America/Santiago")  # 00:00 becomes 01:00

    assert first(half, "2026-10-02T12:00:00", 2) == ["2026-10-02T15:45:00", "2026-10-03T15:30:00"]
    assert first(midnight, "2026-09-05T12:00:00", 2) == ["2026-09-06T04:00:00", "2026-09-07T03:00:00"]


def test_a_whole_day_that_a_zone_leaves_out_fires_once_when_it_is_over() -> None:
    samoa = repeating("0 */8 * * *", "Pacific/Apia")  # there was no 30 December 2011

    found = [f"{moment:%dT%H}" for moment in times(samoa, after=utc("2011-12-30T01:00:00"), limit=3)]

    assert found == ["30T02", "30T10", "30T18"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 0 13 * 5", ["2027-01-01", "2027-01-08", "2027-01-13"]),  # either day field is enough
        (
            "0 0 */2 * 5",
            ["2027-01-01", "2027-01-15", "2027-01-29"],
        ),  # one begins with a star: both must match
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
    found = times(repeating(cron, "UTC"), after=utc("2026-12-31T23:59:59"), limit=3)

    assert [f"{moment:%Y-%m-%d}" for moment in found] == expected


BAD_CRONS = {
    "": "must not be blank",
    "* * * *": "must have five fields (minute, hour, day of the month, month, day of the week)",
    "0 0 0 1 1 *": "seconds and years are not supported",
    "0 0 31 2 *": "never fires: no month that it names has such a day",
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
    "@reboot": "has no such nickname: use one of @yearly",
    "@": "has no such nickname",
    "0 0 * * 0; rm -rf /": "seconds and years are not supported",
    "$(id) * * * *": "has no valid minute",
    "٣ * * * *": "must have five fields",
    "0 0 * * \x00": "holds a NUL character",
    "9" * 300: "must have at most 200 characters",
    "{0.__class__} * * * *": "has no valid minute",
}


@pytest.mark.parametrize("cron", BAD_CRONS)
def test_what_is_no_cron_is_refused_by_name_and_at_once(cron: str) -> None:
    began = process_time()
    found = faults({"repeat": "repeating", "cron": cron}, path="schedule")
    took = process_time() - began

    assert [fault.path for fault in found] == ["schedule.cron"]
    assert BAD_CRONS[cron] in found[0].message
    assert took < 0.05


@steady
@given(
    st.text(max_size=30)
    | st.lists(st.text("0123456789*/-,LW#@JANSUN", max_size=6), min_size=5, max_size=5).map(" ".join)
)
def test_no_text_raises_anything_but_the_one_error(text: str) -> None:  # fmt: skip
    try:
        cron = cron_of(text)
    except CronError:
        return
    timing = Timing(repeat="repeating", cron=cron.text)  # type: ignore[arg-type]
    assert cron_of(timing.cron or "") == cron  # what it was brought to is read as the same


def test_an_interval_counts_elapsed_time_from_its_start_and_never_drifts() -> None:
    timing = every(5_400_000, start_at="2027-03-14T00:00:00-05:00")  # over the day of the change

    found = list(times(timing, after=utc("2020-01-01"), limit=10_000))

    assert found[0] == utc("2027-03-14T05:00:00")
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=90)}
    assert found[-1] == found[0] + 9_999 * timedelta(minutes=90)
    assert first(timing, "2027-03-14T05:00:00", 1) == ["2027-03-14T06:30:00"]


def test_an_interval_without_a_start_counts_from_the_beginning_of_1970() -> None:
    assert first(every(900_000), "2027-01-01T10:20:00", 2) == ["2027-01-01T10:30:00", "2027-01-01T10:45:00"]


def test_once_is_once() -> None:
    timing = read({"repeat": "once", "start_at": "2024-01-15T10:00:00Z"})

    assert first(timing, "2024-01-15T09:59:59") == ["2024-01-15T10:00:00"]
    assert first(timing, "2024-01-15T10:00:00") == []


def test_both_ends_of_a_schedule_belong_to_it_and_the_bounds_of_a_search_do_by_their_names() -> None:
    timing = repeating("0 12 * * *", "UTC", start_at="2027-01-01T12:00:00Z", end_at="2027-01-03T12:00:00Z")
    noon = [utc(f"2027-01-0{day}T12:00:00") for day in (1, 2, 3)]

    assert list(times(timing, after=utc("2020-01-01"))) == noon
    assert list(times(timing, after=noon[0], until=noon[1])) == [noon[1]]
    assert list(times(timing, after=noon[2])) == []
    assert list(times(timing, after=utc("2020-01-01"), limit=0)) == []


def test_a_bound_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="which moment is meant"):
        times(every(1_000), after=datetime(2027, 1, 1))  # noqa: DTZ001


def test_a_search_ends_with_the_century() -> None:
    rare = repeating("0 0 29 2 */7", "UTC")  # a Sunday

    found = list(times(rare, after=utc("2020-01-01")))

    assert [moment.year for moment in found] == [2032, 2060, 2088, 2128, 2156, 2184]
    assert list(times(rare, after=utc("9999-12-31"))) == []


def test_all_faults_of_a_schedule_are_named_by_path() -> None:
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

    found = {fault.path: fault.message for fault in faults(data, path="schedule")}

    assert set(found) == {f"schedule.{key}" for key in data if key != "name"}
    assert (
        found["schedule.timezone"] == 'unknown time zone "America/New_Yrok", did you mean America/New_York?'
    )
    assert "offset" in found["schedule.start_at"]


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({}, "", "repeat is missing"),
        ("0 0 * * *", "", "must be an object"),
        ({"repeat": "once"}, "", "start_at is missing"),
        ({"repeat": "repeating"}, "", "needs cron or interval_ms"),
        ({"repeat": "once", "start_at": "2027-01-01T00:00:00Z", "cron": "@daily"}, "cron", "is for a repeating schedule"),
        ({"repeat": "once", "start_at": "2027-01-01T00:00:00Z", "end_at": "2028-01-01T00:00:00Z"}, "end_at", "is for a repeating"),
        ({"repeat": "repeating", "cron": "@daily", "interval_ms": 1_000}, "interval_ms", "together with cron"),
        ({"repeat": "repeating", "interval_ms": True}, "interval_ms", "must be a number"),
        ({"repeat": "repeating", "interval_ms": 1_000.5}, "interval_ms", "whole number"),
        ({"repeat": "repeating", "cron": "@daily", "timezone": "../../etc/passwd"}, "timezone", "unknown time zone"),
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

    assert [fault.path for fault in caught.value.faults] == [path]
    assert message in caught.value.faults[0].message


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
def test_after_six_hours_the_policy_decides_and_every_skipped_time_is_named(
    timing: Timing, policy: Any, fired: list[int]
) -> None:
    found = missed(
        timing, last=utc("2027-05-01"), now=utc("2027-05-01T06:10:00"), catch_up=CatchUp.of(policy)
    )

    assert [moment.hour for moment in found.to_fire] == fired
    assert [moment.hour for moment in found.skipped()] == [hour for hour in range(1, 7) if hour not in fired]
    assert found.skipped_count == 6 - len(fired)


@pytest.mark.parametrize(("policy", "fired"), [("none", [6]), ("latest", [6]), ({"up_to": 3}, [4, 5, 6])])
def test_what_is_due_right_now_is_not_missed(policy: Any, fired: list[int]) -> None:
    found = missed(
        repeating("0 * * * *"),
        last=utc("2027-05-01"),
        now=utc("2027-05-01T06:00:20"),
        catch_up=CatchUp.of(policy),
        grace=timedelta(seconds=60),
    )

    assert [moment.hour for moment in found.to_fire] == fired


def test_a_year_of_missed_seconds_is_told_without_walking_through_it() -> None:
    began = process_time()
    found = missed(
        every(1_000), last=utc("2026-01-01"), now=utc("2027-01-01"), catch_up=CatchUp.of({"up_to": 2})
    )

    assert found.to_fire == (utc("2026-12-31T23:59:59"), utc("2027-01-01"))
    assert found.skipped_count == 365 * 86_400 - 2
    assert next(found.skipped()) == utc("2026-01-01T00:00:01")
    assert process_time() - began < 0.5


@pytest.mark.parametrize(
    "value", [None, "all", 3, True, {}, {"up_to": 0}, {"up_to": True}, {"up_to": 1_001}, {"upto": 1}, []]
)
def test_a_policy_that_does_not_exist_is_refused(value: Any) -> None:
    with pytest.raises(CatchUpError, match="must be"):
        CatchUp.of(value)


@pytest.mark.parametrize("value", ["none", "latest", {"up_to": 7}])
def test_a_policy_is_written_as_it_was_read(value: Any) -> None:
    assert CatchUp.of(value).value == value


def test_jitter_is_the_same_for_everybody_and_spread_over_its_span() -> None:
    nominal = utc("2027-05-01T08:00:00")

    moved = [(jittered(nominal, 60, f"schedule {number}") - nominal).total_seconds() for number in range(500)]

    assert jittered(nominal, 60, "schedule 7") - nominal == timedelta(seconds=moved[7])
    assert jittered(nominal, 0, "schedule 7") == nominal
    assert all(0 <= seconds < 60 for seconds in moved)
    assert 25 < sum(moved) / len(moved) < 35
    assert (
        jittered(nominal, 60, "schedule 7") - nominal
        != jittered(nominal + HOUR, 60, "schedule 7") - nominal - HOUR
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"cron": "0 2 * * 0"}, "at 02:00, only on Sunday (America/New_York)"),
        ({"cron": "0 8 * * *", "timezone": "UTC"}, "every day at 08:00 (UTC)"),
        ({"cron": "@hourly"}, "every hour (America/New_York)"),
        ({"cron": "0 17 13 * 5"}, "at 17:00, on day 13 of the month, or on Friday (America/New_York)"),
        ({"cron": "0 9 1 6 MON-FRI"}, "at 09:00, on day 1 of the month, or Monday through Friday, only in June (America/New_York)"),
        ({"cron": "0 9 */2 * 1"}, "at 09:00, every 2 days, only on Monday (America/New_York)"),
        ({"interval_ms": 90_000, "timezone": "UTC"}, "every 90 s (UTC)"),
        ({"interval_ms": 7_200_000, "start_at": "2027-01-01T13:00:00Z", "end_at": "2027-07-01T04:00:30Z"},
         "every 2 h, from 2027-01-01 08:00, until 2027-07-01 00:00:30 (America/New_York)"),
        ({"repeat": "once", "start_at": "2024-01-15T10:00:00Z"}, "once at 2024-01-15 05:00 (America/New_York)"),
    ],
)  # fmt: skip
def test_a_timing_is_told_in_words(data: dict[str, Any], words: str) -> None:
    assert in_words(read({"repeat": "repeating", **data})) == words


@pytest.mark.parametrize("cron", ["0 8 * * *", "*/5 * * * *", "30 2 * * 1-5", "0 12 1 * *"])
def test_a_thousand_times_take_milliseconds(cron: str) -> None:
    timing = repeating(cron)
    list(times(timing, after=utc("2027-01-01"), limit=1))
    began = process_time()

    found = list(times(timing, after=utc("2027-01-01"), limit=1_000))

    assert len(found) == 1_000
    assert process_time() - began < 0.25


def test_both_showings_come_in_order() -> None:
    timing = repeating("*/10 1 * * *", dst_fold=DstFold.BOTH)

    found = list(times(timing, after=utc("2027-11-07"), until=utc("2027-11-08")))

    assert found == sorted(found)
    assert len(found) == 12
