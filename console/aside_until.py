"""Until when an item of the inbox may be put aside: hours that people name, in the tenant's zone, or a time of their own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from console.refusals import Refused

MORNING, EVENING = time(9), time(18)
LONGEST = timedelta(days=90)
OWN = "own"  # the choice of who names a time


@dataclass(frozen=True, slots=True)
class Choice:
    """A time that people can choose. `at` has the zone."""

    name: str
    words: str
    at: datetime


def choices(now: datetime, zone: ZoneInfo) -> list[Choice]:
    """Those that lie ahead, without two for the same time."""
    ahead: dict[datetime, Choice] = {}
    for choice in _known(now, zone):
        if choice.at > now:
            ahead.setdefault(choice.at, choice)
    return list(ahead.values())


def until(chosen: str, own: str, now: datetime, zone: ZoneInfo) -> datetime:
    """The time of a choice, in UTC. Raises `Refused` for what is no time, is over, or is too far ahead."""
    if chosen == OWN:
        return _within_limits(_read(own, zone), now)
    found = {choice.name: choice.at for choice in _known(now, zone)}
    if chosen not in found:
        raise Refused("This is no choice that the page offers.", status=400)
    if found[chosen] <= now:
        raise Refused("It is evening already. Choose another time.", status=400)
    return found[chosen].astimezone(UTC)


def in_words(moment: datetime, zone: ZoneInfo) -> str:
    """In the zone, with its name: `23 Nov, 09:00 Europe/Berlin`."""
    return f"{moment.astimezone(zone):%-d %b, %H:%M} {zone.key}"


def _known(now: datetime, zone: ZoneInfo) -> tuple[Choice, ...]:
    today = now.astimezone(zone).date()
    tomorrow, monday = (today + timedelta(days=days) for days in (1, 7 - today.weekday()))
    return (
        Choice("hour", "1 hour", (now + timedelta(hours=1)).astimezone(zone)),
        Choice("evening", "This evening, 18:00", datetime.combine(today, EVENING, zone)),
        Choice("morning", "Tomorrow, 9:00", datetime.combine(tomorrow, MORNING, zone)),
        Choice("monday", "Next Monday, 9:00", datetime.combine(monday, MORNING, zone)),
    )


def _read(own: str, zone: ZoneInfo) -> datetime:
    """A time as a browser's field for it sends it, in the zone."""
    try:
        given = datetime.fromisoformat(own.strip())
        return (given if given.tzinfo else given.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Refused("Name a date and a time, such as 2030-01-31 09:00.", status=400, field="own") from error


def _within_limits(moment: datetime, now: datetime) -> datetime:
    if moment <= now:
        raise Refused("That time is over. Choose one that lies ahead.", status=400, field="own")
    if moment - now > LONGEST:
        raise Refused(f"An item is put aside for {LONGEST.days} days at most.", status=400, field="own")
    return moment
