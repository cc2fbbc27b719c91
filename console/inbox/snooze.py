"""Snoozes items: hides them from one person's list until a time, while others still see them.

An item is snoozed while the time of its row lies ahead and the item's version is the stored one. So no process has to end a snooze, and
any change of the item ends it. A snooze never lasts beyond the item's due time, and ends an hour before the item expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import IntegrityError, transaction
from django.db.models import BooleanField, DateTimeField, Exists, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Now
from django.http import Http404

from activities.models import Activity, SnoozedItem
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import LinkKind
from console.inbox.actions import OPEN, item_at_version
from console.page import Refused
from tenants import clock
from tenants.context import APP, tenant_scope
from tenants.models import Membership
from tenants.principals import Principal

ROWS_AT_ONCE = 1_000  # of one statement
BEFORE_EXPIRY = timedelta(hours=1)  # so that there is time to answer
NO_MEMBER = "Only members of the tenant can snooze items."


def is_snoozed(who: Principal) -> Exists | Value:
    """Annotate activities with whether this person has snoozed them."""
    return Value(False, output_field=BooleanField()) if who.user_id is None else Exists(_current_rows(who))


def snooze_times(who: Principal) -> Subquery | Value:
    """Annotate activities with the time until which this person has snoozed them, or null."""
    nothing = Value(None, output_field=DateTimeField())
    return nothing if who.user_id is None else Subquery(_current_rows(who).values("until")[:1])


def snooze(who: Principal, item_id: UUID, *, version: int, until: datetime) -> tuple[Activity, datetime]:
    """Snooze an item, or change its snooze; a failure with all similar ones. Return the item, and the time when it returns.

    Raises `Refused` if the item has changed or the person is not a member, and `Http404` if the tenant has no such item.
    """
    with tenant_scope(who.tenant_id):
        item = item_at_version(who.tenant_id, item_id, version)
        if item.status not in OPEN:
            raise Refused("This item is closed already.")
        member = _member(who)
        if item.due_at is not None and clock.now() < item.due_at < until:
            until = item.due_at
        if item.expires_at is not None and item.expires_at - BEFORE_EXPIRY < until:
            until = item.expires_at - BEFORE_EXPIRY
            if until <= clock.now():
                raise Refused("This item expires within an hour, so it cannot be snoozed.")
        _rows(who, member).filter(until__lte=Now()).delete()
        _save(who.tenant_id, member, _alike(item).order_by("pk").values_list("pk", "version"), until)
    return item, until


def displayed_version(sent: Mapping[str, Any]) -> int:
    """Return the version of the item that the page displayed. Raises `Refused`."""
    version = str(sent.get("version", ""))
    if not (version.isascii() and version.isdecimal()):
        raise Refused("This page is outdated. Open the item again.", status=400)
    return int(version[:10])


def end_snooze(who: Principal, item_id: UUID) -> str:
    """End the snooze of an item, if it has one, and return the item's name. Raises `Refused` and `Http404`."""
    with tenant_scope(who.tenant_id):
        items = Activity.objects.for_tenant(who.tenant_id).filter(pk=item_id, assignee_type="human")
        item: Activity = items.first_or_raise(Http404())
        _rows(who, _member(who)).filter(activity_id__in=_alike(item).values("pk")).delete()
    return item.name


def _current_rows(who: Principal) -> QuerySet[Any]:
    """Return the person's snoozes in force, for the activity of an outer query."""
    rows: QuerySet[Any] = SnoozedItem.objects.for_tenant(who.tenant_id).filter(
        activity_id=OuterRef("pk"), version=OuterRef("version"), until__gt=Now()
    )
    return rows.filter(membership__tenant_id=who.tenant_id, membership__user_id=who.user_id)


def _alike(item: Activity) -> QuerySet[Any]:
    """Return the item; for a failure also the open similar ones, which the list displays as one item."""
    rows: QuerySet[Any] = Activity.objects.for_tenant(item.tenant_id)
    fingerprint = (item.metadata or {}).get("fingerprint")
    if item.link_kind != LinkKind.ESCALATION or fingerprint is None:
        return rows.filter(pk=item.pk)
    similar = Q(
        OPEN_FOR_PEOPLE,
        link_kind=item.link_kind,
        human_role=item.human_role,
        metadata__fingerprint=fingerprint,
    )
    return rows.filter(Q(pk=item.pk) | similar)


def _member(who: Principal) -> Membership:
    rows = Membership.objects.for_tenant(who.tenant_id)
    own: Membership | None = rows.filter(user_id=who.user_id).first() if who.user_id else None
    if own is None:
        raise Refused(NO_MEMBER, status=403)
    return own


def _rows(who: Principal, member: Membership) -> QuerySet[Any]:
    return SnoozedItem.objects.for_tenant(who.tenant_id).filter(membership_id=member.pk)


def _save(tenant_id: UUID, member: Membership, items: Iterable[tuple[UUID, int]], until: datetime) -> None:
    """Replace the member's snoozes of the items, given as ids and versions. Raises `Http404` if one was deleted at this moment."""
    rows = [
        SnoozedItem(tenant_id=tenant_id, activity_id=pk, membership=member, until=until, version=version)
        for pk, version in items
    ]
    try:
        with transaction.atomic(using=APP):
            SnoozedItem.objects.bulk_create(
                rows,
                batch_size=ROWS_AT_ONCE,
                update_conflicts=True,
                unique_fields=["tenant", "activity", "membership"],
                update_fields=["until", "version"],
            )
    except IntegrityError as error:
        raise Http404 from error


# The times to choose from, in the tenant's zone.


MORNING, EVENING = time(9), time(18)
LONGEST = timedelta(days=90)
OWN = "own"  # the choice of any other time


@dataclass(frozen=True, slots=True)
class Choice:
    """A time to choose. `at` is in the tenant's zone."""

    name: str
    words: str
    at: datetime


def choices(now: datetime, zone: ZoneInfo) -> list[Choice]:
    """Return the choices that lie ahead, each time once."""
    ahead: dict[datetime, Choice] = {}
    for choice in _list_choices(now, zone):
        if choice.at > now:
            ahead.setdefault(choice.at, choice)
    return list(ahead.values())


def until(chosen: str, own: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the time of a choice, in UTC. Raises `Refused` if it is invalid, past or too far ahead."""
    if chosen == OWN:
        return _within_limits(_parse(own, zone), now)
    times = {choice.name: choice.at for choice in _list_choices(now, zone)}
    if chosen not in times:
        raise Refused("This choice is not valid. Reload the page.", status=400)
    if times[chosen] <= now:
        raise Refused("It is already evening. Choose another time.", status=400)
    return times[chosen].astimezone(UTC)


def in_words(moment: datetime, zone: ZoneInfo) -> str:
    """Format a time in the zone, with its name: `23 Nov, 09:00 Europe/Berlin`."""
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


def _parse(own: str, zone: ZoneInfo) -> datetime:
    """Parse the value of a browser's datetime field, which is in the zone."""
    try:
        moment = datetime.fromisoformat(own.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Refused(
            "Enter a date and a time, such as 2030-01-31 09:00.", status=400, field="own"
        ) from error


def _within_limits(moment: datetime, now: datetime) -> datetime:
    if moment <= now:
        raise Refused("That time has passed. Choose a time in the future.", status=400, field="own")
    if moment - now > LONGEST:
        raise Refused(f"An item can be snoozed for at most {LONGEST.days} days.", status=400, field="own")
    return moment
