"""When a digest is due, and which time it tells of: whole days and weeks of the tenant's own time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from activities.models import NotificationChannel
from activities.models.alert import Digest
from tenants import clock

HOUR = time(7)  # before people begin their day
DAYS = {Digest.DAILY: 1, Digest.WEEKLY: 7}


@dataclass(frozen=True, slots=True)
class Period:
    """From the beginning of `first` to the beginning of the day after `last`, in the zone."""

    first: date
    last: date
    zone: ZoneInfo

    @property
    def begins(self) -> datetime:
        return datetime.combine(self.first, time(), self.zone).astimezone(UTC)

    @property
    def ends(self) -> datetime:
        return datetime.combine(self.last + timedelta(days=1), time(), self.zone).astimezone(UTC)

    @property
    def in_words(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"


def zone_of(name: str) -> ZoneInfo:
    """A zone that nobody knows any more is UTC: a mail at the wrong hour is better than none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def next_due(digest: str, zone: ZoneInfo, *, after: datetime) -> datetime:
    """The next seven o'clock of the zone later than `after`; for weekly digests that of a Monday."""
    day = after.astimezone(zone).date()
    while True:
        found = datetime.combine(day, HOUR, zone).astimezone(UTC)
        if found > after and (digest == Digest.DAILY or day.weekday() == 0):
            return found
        day += timedelta(days=1)


def period_before(digest: str, zone: ZoneInfo, now: datetime) -> Period:
    """The last whole day, or the last whole week from Monday on."""
    today = now.astimezone(zone).date()
    end = today if digest == Digest.DAILY else today - timedelta(days=today.weekday())
    return Period(end - timedelta(days=DAYS[Digest(digest)]), end - timedelta(days=1), zone)


def plan(channel: NotificationChannel, timezone: str, *, now: datetime | None = None) -> None:
    """Note on the channel, without saving it, when its next digest is due; never, when it wants none."""
    wanted = channel.digest != Digest.OFF
    after = now or clock.now()
    channel.digest_due_at = next_due(channel.digest, zone_of(timezone), after=after) if wanted else None
