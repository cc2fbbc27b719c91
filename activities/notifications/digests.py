"""Digests: daily or weekly emails about what waits for people, what was done, what failed and what was spent.

A digest is an alert of its own kind with one delivery, so it is sent like any alert: claimed once, and repeated while that is safe.
Composing is one transaction that also sets the channel's next time by compare-and-set. So only one of two workers composes a digest, and a
crash leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings
from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Now
from django.template.loader import render_to_string

from activities import dead_letters
from activities.alerts import notify_channel
from activities.models import Activity, Alert, DeadLetter, NotificationChannel
from activities.models.activity import in_status
from activities.models.alert import AlertKind, ChannelKind, Digest, Weekday
from activities.models.dead_letter import DeadLetterState
from activities.notifications.backends import site
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import Status
from agents.redaction import excerpt
from tenants import clock, money, outages, sweeps
from tenants.context import tenant_scope
from tenants.models import Budget, Tenant
from tenants.sweeps import Sweep

# Composing: turns the digests that are due into alerts with one delivery each. Nothing is sent here.
#
# A channel that missed several digests during an outage gets one digest, about the last whole period.


logger = logging.getLogger(__name__)

_DUE = Sweep[Any]()


def digests_due(now: Any = None) -> QuerySet[NotificationChannel]:
    """Return the channels whose digest is due, of all tenants in a `system_scope`."""
    channels = NotificationChannel.objects.filter(
        kind=ChannelKind.EMAIL, enabled=True, tenant__is_active=True
    )
    return channels.filter(digest_due_at__lte=Now() if now is None else now)


def send_due(*, now: datetime | None = None) -> int:
    """Compose the digests that are due, and return their number. Safe in any number of processes at once."""
    moment = now or clock.now()
    channels = sweeps.pages(digests_due(moment), "digest_due_at", "pk", "tenant_id")
    sent = 0
    for due_at, channel_id, tenant_id in _DUE.turn(channels):
        # A digest that fails is still due at the next call.
        with outages.one_of_many(logger, "Digest failed", action="digest_broke", channel=str(channel_id)):
            with tenant_scope(tenant_id):
                is_sent = _compose(tenant_id, channel_id, due_at, moment)
            sent += is_sent
    return sent


def _compose(tenant_id: UUID, channel_id: UUID, due_at: datetime, now: datetime) -> bool:
    channel = NotificationChannel.objects.for_tenant(tenant_id).filter(pk=channel_id).first()
    tenant = Tenant.objects.get(pk=tenant_id)
    if channel is None or not _set_next_time(channel, tenant, due_at, now):
        return False
    period = period_before(channel.digest, zone_of(tenant.timezone), now)
    key = f"digest:{channel.pk}:{channel.digest}:{period.first}"
    digest = figures_of(tenant_id, period, channel.digest_roles, now=now)
    if is_empty(digest) or Alert.objects.for_tenant(tenant_id).filter(dedup_key=key).exists():
        return False
    digest |= {"tenant": tenant.name or tenant.slug, "channel": channel.name, "digest": channel.digest}
    digest |= {"inbox": f"{site()}/inbox/?tenant={tenant.slug}"}
    title = f"{digest['tenant']}: {channel.digest} digest, {period.in_words}"
    body = render_to_string("mail/digest.txt", digest)
    notify_channel(
        channel, AlertKind.DIGEST, title, body=body, facts=digest, dedup_key=key, acknowledged_by="digest"
    )
    return True


def _set_next_time(channel: NotificationChannel, tenant: Tenant, due_at: datetime, now: datetime) -> bool:
    """Set the next time, unless somebody else has changed it. So only one of two workers composes the digest."""
    following = next_due(times_of(channel), zone_of(tenant.timezone), after=now)
    rows = NotificationChannel.objects.for_tenant(tenant.pk).filter(pk=channel.pk, digest_due_at=due_at)
    return bool(rows.update(digest_due_at=following))


# The content of a digest, as JSON for the templates. The figures come from the selectors of the API and the console.
#
# Names come from clients and agents: each is cut to one line here, and the HTML template escapes it.


MOST = 10  # lines per list, because a digest is an overview
LONGEST_NAME = 100
GOOD_ENDS = (Status.DONE, Status.APPROVED)


def figures_of(tenant_id: UUID, period: Period, roles: Sequence[str], *, now: datetime) -> dict[str, Any]:
    """Return the content of one digest. `roles` limits the waiting items to these human roles. Must run in a `tenant_scope`."""
    return {
        "period": period.in_words,
        "timezone": period.zone.key,
        "people": _people(tenant_id, period, roles, now),
        "done": _count_done(tenant_id, period),
        "failures": _failures(tenant_id, period),
        "spend": _spend(tenant_id, period),
    }


def is_empty(digest: dict[str, Any]) -> bool:
    """Return whether nothing waits, happened or was spent. Such a digest is not sent."""
    return not (
        digest["people"]["count"]
        or digest["done"]["count"]
        or digest["failures"]["count"]
        or digest["failures"]["open"]
        or digest["spend"]["runs"]
    )


def _people(tenant_id: UUID, period: Period, roles: Sequence[str], now: datetime) -> dict[str, Any]:
    rows: QuerySet[Any] = Activity.objects.for_tenant(tenant_id).filter(OPEN_FOR_PEOPLE)
    if roles:
        rows = rows.filter(human_role__in=roles)
    counts = rows.aggregate(count=Count("pk"), overdue=Count("pk", filter=Q(due_at__lt=now)))
    first = rows.order_by(F("due_at").asc(nulls_last=True), "priority", "created_at", "pk")[:MOST]
    items = [
        {
            "name": excerpt(item.name, limit=LONGEST_NAME),
            "human_role": item.human_role,
            "since": _local(item.created_at, period),
            "due": _local(item.due_at, period) if item.due_at else None,
            "overdue": item.due_at is not None and item.due_at < now,
        }
        for item in first
    ]
    return {**counts, "items": items, "more": counts["count"] - len(items)}


def _count_done(tenant_id: UUID, period: Period) -> dict[str, Any]:
    ended = Activity.objects.for_tenant(tenant_id).filter(
        in_status(*GOOD_ENDS), finished_at__gte=period.begins, finished_at__lt=period.ends
    )
    by_role = ended.order_by().values("agent_role", "human_role").annotate(count=Count("pk"))
    rows = sorted(by_role, key=lambda row: (-row["count"], row["agent_role"] or row["human_role"] or ""))
    return {
        "count": sum(row["count"] for row in rows),
        "by_role": [
            {"role": row["agent_role"] or row["human_role"], "count": row["count"]} for row in rows[:MOST]
        ],
        "more": max(0, len(rows) - MOST),
    }


def _failures(tenant_id: UUID, period: Period) -> dict[str, Any]:
    letters = DeadLetter.objects.for_tenant(tenant_id)
    fresh = letters.filter(created_at__gte=period.begins, created_at__lt=period.ends)
    groups = list(dead_letters.groups(fresh).order_by("-count", "fingerprint", "reason")[:MOST])
    return {
        "count": fresh.count(),
        "open": letters.filter(state=DeadLetterState.OPEN).count(),
        "groups": [
            {
                "role": group.agent_role,
                "count": group.count,
                "open": group.open,
                "example": excerpt(str(newest.error.get("message", "")), limit=LONGEST_NAME),
            }
            for group, newest in dead_letters.with_examples(groups, letters)
        ],
    }


def _spend(tenant_id: UUID, period: Period) -> dict[str, Any]:
    """Sum the ledger entries of the period by their exact time. Their UTC days only serve to use the index."""
    days = money.ledger_entries(tenant_id, first=period.begins.date(), last=period.ends.date())
    spent = days.filter(at__gte=period.begins, at__lt=period.ends).aggregate(**money.FIGURES)
    figures = money.figures_of(spent)
    budgets = Budget.objects.for_tenant(tenant_id).filter(deleted_at=None).order_by("name", "pk")[:MOST]
    return {
        "cost_usd": f"{figures['cost_usd']:.2f}",
        "runs": figures["runs"],
        "tokens": figures["input_tokens"] + figures["output_tokens"],
        "budgets": [_budget(budget) for budget in budgets],
    }


def _budget(budget: Budget) -> dict[str, Any]:
    money.roll(budget)  # to the current period
    share = f"{100 * budget.spent / budget.cap:.0f} %" if budget.cap else "all"
    return {
        "name": excerpt(budget.name, limit=LONGEST_NAME),
        "unit": budget.unit,
        "period": budget.period,
        "spent": money.plain(budget.spent),
        "cap": money.plain(budget.cap),
        "share": share,
    }


def _local(moment: datetime, period: Period) -> str:
    return f"{moment.astimezone(period.zone):%Y-%m-%d %H:%M}"


# When a digest is due, and its period: whole days and weeks in the tenant's time zone.


DAYS = {Digest.DAILY: 1, Digest.WEEKLY: 7}


@dataclass(frozen=True, slots=True)
class Times:
    """The hour of the tenant's day at which a digest is sent, and the day for weekly ones (0 is Monday)."""

    hour: int
    weekday: int | None = None


def times_of(channel: NotificationChannel) -> Times:
    """Return the times of the channel, with the platform's settings as defaults."""
    weekly = channel.digest == Digest.WEEKLY
    usual = settings.ORCHESTRATOR_WEEKLY_DIGEST_HOUR if weekly else settings.DIGEST_CRON_HOUR
    hour = usual if channel.digest_hour is None else channel.digest_hour
    return Times(hour, Weekday.values.index(channel.digest_day or Weekday.MONDAY) if weekly else None)


@dataclass(frozen=True, slots=True)
class Period:
    """The days from `first` to `last`, both included, in the zone."""

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
    """Return the time zone, or UTC if it is unknown, because an email at the wrong hour is better than none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")


def next_due(times: Times, zone: ZoneInfo, *, after: datetime) -> datetime:
    """Return the next of these times after `after`. An hour that a change of the clocks skips comes an hour later."""
    day = after.astimezone(zone).date()
    while True:
        due_at = datetime.combine(day, time(times.hour), zone).astimezone(UTC)
        if due_at > after and times.weekday in (None, day.weekday()):
            return due_at
        day += timedelta(days=1)


def period_before(digest: str, zone: ZoneInfo, now: datetime) -> Period:
    """Return the last whole day, or the last whole week from Monday to Sunday."""
    today = now.astimezone(zone).date()
    end = today if digest == Digest.DAILY else today - timedelta(days=today.weekday())
    return Period(end - timedelta(days=DAYS[Digest(digest)]), end - timedelta(days=1), zone)


def plan_digest(channel: NotificationChannel, timezone: str, *, now: datetime | None = None) -> None:
    """Set the time of the channel's next digest, or none if it wants no digests. Does not save the channel."""
    is_on = channel.digest != Digest.OFF
    after = now or clock.now()
    channel.digest_due_at = next_due(times_of(channel), zone_of(timezone), after=after) if is_on else None
