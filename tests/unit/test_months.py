"""Calendar months at their boundaries."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from pipelines.deliverables.monthly_job import day_of_monthly_job
from pipelines.models.deliverable import Month, end_of


@pytest.mark.parametrize(
    ("day", "starts_on", "ends_on"),
    [
        (date(2026, 1, 1), date(2026, 1, 1), date(2026, 1, 31)),
        (date(2026, 1, 31), date(2026, 1, 1), date(2026, 1, 31)),
        (date(2026, 2, 15), date(2026, 2, 1), date(2026, 2, 28)),
        (date(2028, 2, 29), date(2028, 2, 1), date(2028, 2, 29)),
        (date(2100, 2, 28), date(2100, 2, 1), date(2100, 2, 28)),
        (date(2026, 12, 31), date(2026, 12, 1), date(2026, 12, 31)),
    ],
)
def test_a_day_lies_in_its_calendar_month(day: date, starts_on: date, ends_on: date) -> None:
    assert Month.of(day) == Month(starts_on, ends_on)


@pytest.mark.parametrize(
    ("day", "following"),
    [
        (date(2026, 12, 31), date(2027, 1, 1)),
        (date(2028, 2, 1), date(2028, 3, 1)),
        (date(2026, 1, 31), date(2026, 2, 1)),
    ],
)
def test_the_next_month_begins_the_day_after_this_one_ends(day: date, following: date) -> None:
    assert Month.of(day).following == following


def test_a_month_ends_at_the_end_of_its_last_day() -> None:
    assert end_of(date(2028, 2, 29)) == datetime(2028, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "day"),
    [
        (datetime(2026, 3, 1, tzinfo=UTC), date(2026, 3, 1)),
        # The worker's clock is a little behind the clock of the beat that sent the job at midnight.
        (datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC), date(2026, 3, 1)),
        (datetime(2026, 2, 28, 23, 54, 59, tzinfo=UTC), date(2026, 2, 28)),
        # The first of March in Auckland is still February.
        (datetime(2026, 3, 1, 8, tzinfo=timezone(timedelta(hours=13))), date(2026, 2, 28)),
    ],
)
def test_the_monthly_job_counts_for_the_month_of_utc(now: datetime, day: date) -> None:
    assert day_of_monthly_job(now) == day
