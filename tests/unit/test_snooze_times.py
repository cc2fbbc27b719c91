"""The times until which an item of the inbox can be snoozed, at any hour of any zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from console.inbox.snooze import LONGEST, choices, in_words, until
from console.page import Refused

BERLIN = ZoneInfo("Europe/Berlin")
# 12:00 in Berlin, five days before its clocks go forward.
TUESDAY_NOON = datetime(2026, 3, 24, 11, tzinfo=UTC)


def offered(now: datetime, zone: ZoneInfo = BERLIN) -> dict[str, str]:
    return {choice.name: f"{choice.at:%a %d %H:%M %z}" for choice in choices(now, zone)}


def test_snooze_times_follow_the_zone_across_a_change_of_its_clocks() -> None:
    assert offered(TUESDAY_NOON) == {
        "hour": "Tue 24 13:00 +0100",
        "evening": "Tue 24 18:00 +0100",
        "morning": "Wed 25 09:00 +0100",
        "monday": "Mon 30 09:00 +0200",
    }
    assert until("monday", "", TUESDAY_NOON, BERLIN) == datetime(2026, 3, 30, 7, tzinfo=UTC)
    assert in_words(datetime(2026, 3, 30, 7, tzinfo=UTC), BERLIN) == "30 Mar, 09:00 Europe/Berlin"


def test_this_evening_is_offered_until_it_begins() -> None:
    at_six = TUESDAY_NOON + timedelta(hours=6)

    assert "evening" in offered(at_six - timedelta(seconds=1))
    assert "evening" not in offered(at_six)
    with pytest.raises(Refused, match="It is already evening"):
        until("evening", "", at_six, BERLIN)


def test_no_time_is_offered_twice() -> None:
    sunday = TUESDAY_NOON + timedelta(days=5)

    assert list(offered(sunday)) == ["hour", "evening", "morning"]
    assert until("monday", "", sunday, BERLIN) == until("morning", "", sunday, BERLIN)


def test_on_a_monday_next_monday_is_a_week_away() -> None:
    monday = datetime(2026, 3, 23, 5, tzinfo=UTC)

    assert offered(monday)["monday"].startswith("Mon 30")


def test_a_custom_time_is_in_the_zone_and_within_limits() -> None:
    assert until("own", "2026-03-25T14:30", TUESDAY_NOON, BERLIN) == datetime(2026, 3, 25, 13, 30, tzinfo=UTC)
    last = (TUESDAY_NOON + LONGEST).isoformat()
    assert until("own", last, TUESDAY_NOON, BERLIN) == TUESDAY_NOON + timedelta(days=90)


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ("", "Enter a date and a time"),
        ("soon", "Enter a date and a time"),
        ("0001-01-01T00:00", "Enter a date and a time"),
        ("2026-03-24T12:00", "That time has passed"),
        ("2026-06-22T13:01", "for at most 90 days"),
        ("9999-12-31T23:59", "for at most 90 days"),
    ],
    ids=["nothing", "words", "first-day", "now", "after-90-days", "last-day"],
)
def test_an_invalid_time_or_one_beyond_the_limits_is_refused_at_its_field(own: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refusal:
        until("own", own, TUESDAY_NOON, BERLIN)

    assert (refusal.value.status, refusal.value.field) == (400, "own")


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(Refused, match="This choice is not valid"):
        until("next-year", "", TUESDAY_NOON, BERLIN)
