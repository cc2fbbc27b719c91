"""Items put aside: out of one person's list until a time, while all others see them.

An item is aside while its row's time lies ahead and its version is the one that was noted, so it comes back by itself: nothing has to
happen at the time, and whatever changes the item ends it. What has a due time is aside until then at the latest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import IntegrityError, transaction
from django.db.models import BooleanField, DateTimeField, Exists, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Now
from django.http import Http404

from activities.models import Activity, SnoozedItem
from console.inbox.actions import OPEN, item_as_shown
from console.page import Refused
from tenants import clock
from tenants.context import APP, tenant_scope
from tenants.models import Membership
from tenants.principals import Principal

NO_MEMBER = "Only members of the tenant put items aside."


def is_snoozed(who: Principal) -> Exists | Value:
    """For a query of activities: whether this person has put each of them aside."""
    return Value(False, output_field=BooleanField()) if who.user_id is None else Exists(_of(who))


def snooze_times(who: Principal) -> Subquery | Value:
    """For a query of activities: until when this person has put each of them aside; null for those that are not."""
    nothing = Value(None, output_field=DateTimeField())
    return nothing if who.user_id is None else Subquery(_of(who).values("until")[:1])


def snooze(who: Principal, item_id: UUID, *, shown: int, until: datetime) -> tuple[Activity, datetime]:
    """Put an item aside as it was shown, or until another time; the item, and until when it is aside.

    Raises `Refused` when it has changed meanwhile or this is no member, `Http404` for what is no item of this tenant.
    """
    with tenant_scope(who.tenant_id):
        item = item_as_shown(who.tenant_id, item_id, shown)
        if item.status not in OPEN:
            raise Refused("Nobody is asked for this any more.")
        member = _member(who)
        if item.due_at is not None and clock.now() < item.due_at < until:
            until = item.due_at
        _rows(who, member).filter(until__lte=Now()).delete()
        _keep(SnoozedItem(activity=item, membership=member, until=until, version=item.version))
    return item, until


def version_shown(sent: Mapping[str, Any]) -> int:
    """What version of the item the page showed that sent this. Raises `Refused`."""
    shown = str(sent.get("shown", ""))
    if not (shown.isascii() and shown.isdecimal()):
        raise Refused("This page is too old. Look at the item again.", status=400)
    return int(shown[:10])


def end_snooze(who: Principal, item_id: UUID) -> str:
    """The name of the item, which is in the person's list again. What is there already stays there. Raises `Refused`, `Http404`."""
    with tenant_scope(who.tenant_id):
        items = Activity.objects.for_tenant(who.tenant_id).filter(pk=item_id, assignee_type="human")
        name: str | None = items.values_list("name", flat=True).first()
        if name is None:
            raise Http404
        _rows(who, _member(who)).filter(activity_id=item_id).delete()
    return name


def _of(who: Principal) -> QuerySet[Any]:
    """The person's rows that hold, for the activity of an outer query."""
    rows: QuerySet[Any] = SnoozedItem.objects.for_tenant(who.tenant_id).filter(
        activity_id=OuterRef("pk"), version=OuterRef("version"), until__gt=Now()
    )
    return rows.filter(membership__tenant_id=who.tenant_id, membership__user_id=who.user_id)


def _member(who: Principal) -> Membership:
    rows = Membership.objects.for_tenant(who.tenant_id)
    own: Membership | None = rows.filter(user_id=who.user_id).first() if who.user_id else None
    if own is None:
        raise Refused(NO_MEMBER, status=403)
    return own


def _rows(who: Principal, member: Membership) -> QuerySet[Any]:
    rows: QuerySet[Any] = SnoozedItem.objects.for_tenant(who.tenant_id).filter(membership_id=member.pk)
    return rows


def _keep(row: SnoozedItem) -> None:
    """One for each item and member: a later one takes its place. Raises `Http404` when either went this moment."""
    row.tenant_id = row.membership.tenant_id
    try:
        with transaction.atomic(using=APP):
            SnoozedItem.objects.bulk_create(
                [row],
                update_conflicts=True,
                unique_fields=["tenant", "activity", "membership"],
                update_fields=["until", "version"],
            )
    except IntegrityError as error:
        raise Http404 from error


# Until when an item of the inbox may be put aside: hours that people name, in the tenant's zone, or a time of their own.


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
    for choice in _list_choices(now, zone):
        if choice.at > now:
            ahead.setdefault(choice.at, choice)
    return list(ahead.values())


def until(chosen: str, own: str, now: datetime, zone: ZoneInfo) -> datetime:
    """The time of a choice, in UTC. Raises `Refused` for what is no time, is over, or is too far ahead."""
    if chosen == OWN:
        return _within_limits(_read(own, zone), now)
    found = {choice.name: choice.at for choice in _list_choices(now, zone)}
    if chosen not in found:
        raise Refused("This is no choice that the page offers.", status=400)
    if found[chosen] <= now:
        raise Refused("It is evening already. Choose another time.", status=400)
    return found[chosen].astimezone(UTC)


def in_words(moment: datetime, zone: ZoneInfo) -> str:
    """In the zone, with its name: `23 Nov, 09:00 Europe/Berlin`."""
    return f"{moment.astimezone(zone):%-d %b, %H:%M} {zone.key}"


def _list_choices(now: datetime, zone: ZoneInfo) -> tuple[Choice, ...]:
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
        moment = datetime.fromisoformat(own.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Refused("Name a date and a time, such as 2030-01-31 09:00.", status=400, field="own") from error


def _within_limits(moment: datetime, now: datetime) -> datetime:
    if moment <= now:
        raise Refused("That time is over. Choose one that lies ahead.", status=400, field="own")
    if moment - now > LONGEST:
        raise Refused(f"An item is put aside for {LONGEST.days} days at most.", status=400, field="own")
    return moment
