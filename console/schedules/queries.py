"""Schedules as a person sees them: when in words, what comes next, what became of the times that have passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Count, OuterRef, Q, Subquery

from pipelines import timing
from pipelines.models import Firing, Schedule, ScheduleExecution
from pipelines.models.schedule import FiringState
from pipelines.schedules import preview
from pipelines.timing import Timing, TimingError
from tenants import clock
from tenants.context import tenant_scope

MOST_LISTED = 200
MOST_RECORDS = 30
NEXT = 10
UNREADABLE = "Its times cannot be read any more: change them in the admin."


@dataclass(frozen=True, slots=True)
class Row:
    """One schedule of the list. `last` is the status of its newest execution."""

    schedule: Schedule
    when: str
    target: str
    last: str
    skipped: int  # times that were skipped, ever

    @property
    def next_at(self) -> datetime | None:
        return self.schedule.next_run_at if self.schedule.enabled else None

    @property
    def is_due(self) -> bool:
        """Whether its next time has come, and nobody has started anything for it yet."""
        return self.next_at is not None and self.next_at <= clock.now()


@dataclass(frozen=True, slots=True)
class Listing:
    """The list, and the calendar of the coming weeks."""

    rows: Sequence[Row]
    weeks: Sequence[Week]
    has_more: bool
    search: str
    shown: str

    @property
    def enabled(self) -> int:
        return sum(row.schedule.enabled for row in self.rows)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time to come: on the clocks of the schedule's zone, and in UTC."""

    local: str
    utc: datetime


@dataclass(frozen=True, slots=True)
class One:
    """The page of one schedule."""

    schedule: Schedule
    when: str
    target: str
    coming: Sequence[Moment]
    firings: Sequence[Firing]
    executions: Sequence[ScheduleExecution]
    facts: Sequence[tuple[str, Any]] = field(default_factory=list)


def listing(tenant_id: UUID, *, search: str = "", shown: str = "", now: datetime | None = None) -> Listing:
    """The schedules by name, with those that are switched off unless `shown` says "on" or "off" alone."""
    moment = now or clock.now()
    with tenant_scope(tenant_id):
        rows = Schedule.objects.for_tenant(tenant_id).select_related("pipeline")
        if search:
            rows = rows.filter(
                Q(name__icontains=search)
                | Q(agent_role__icontains=search)
                | Q(pipeline__key__icontains=search)
            )
        if shown in ("on", "off"):
            rows = rows.filter(enabled=shown == "on")
        newest = ScheduleExecution.objects.for_tenant(tenant_id).filter(schedule_id=OuterRef("pk"))
        rows = rows.annotate(last=Subquery(newest.order_by("-started_at", "-pk").values("status")[:1]))
        found = list(rows.order_by("name", "pk")[: MOST_LISTED + 1])
        skipped = _skipped(tenant_id, [schedule.pk for schedule in found])
    plans_of = {schedule.pk: _timing(schedule) for schedule in found}
    return Listing(
        rows=[
            Row(
                schedule, words(plans_of[schedule.pk]), target_of(schedule), schedule.last or "",
                skipped.get(schedule.pk, 0),
            )
            for schedule in found[:MOST_LISTED]
        ],
        weeks=weeks_of(
            [(each, plan) for each in found if each.enabled and (plan := plans_of[each.pk])], now=moment
        ),
        has_more=len(found) > MOST_LISTED,
        search=search,
        shown=shown,
    )  # fmt: skip


def one(tenant_id: UUID, schedule_id: UUID) -> One | None:
    """One schedule with what became of its times, or None when there is none."""
    with tenant_scope(tenant_id):
        rows = Schedule.objects.for_tenant(tenant_id).select_related("pipeline")
        schedule = rows.filter(pk=schedule_id).first()
        if schedule is None:
            return None
        firings = Firing.objects.for_tenant(tenant_id).filter(schedule_id=schedule_id)
        executions = ScheduleExecution.objects.for_tenant(tenant_id).filter(schedule_id=schedule_id)
        records = list(firings.order_by("-nominal_at", "-pk")[:MOST_RECORDS])
        begun = list(executions.order_by("-started_at", "-pk")[:MOST_RECORDS])
    plan = _timing(schedule)
    return One(schedule, words(plan), target_of(schedule), _coming(schedule, plan), records, begun)


def words(plan: Timing | None) -> str:
    return timing.in_words(plan) if plan else UNREADABLE


def target_of(schedule: Schedule) -> str:
    return schedule.agent_role or (schedule.pipeline.key if schedule.pipeline else "")


def _skipped(tenant_id: UUID, schedules: Sequence[UUID]) -> dict[UUID, int]:
    rows = Firing.objects.for_tenant(tenant_id).filter(schedule_id__in=schedules, state=FiringState.SKIPPED)
    return dict(rows.order_by().values_list("schedule_id").annotate(count=Count("pk")))


def _timing(schedule: Schedule) -> Timing | None:
    try:
        return schedule.timing()
    except TimingError:
        return None


def _coming(schedule: Schedule, plan: Timing | None) -> list[Moment]:
    if plan is None:
        return []
    zone = ZoneInfo(plan.timezone)
    found = preview.coming(schedule, count=NEXT)
    return [Moment(f"{at.astimezone(zone):%a %Y-%m-%d %H:%M %Z}", at) for at in found]


# The calendar of the coming weeks: which schedules fire on each day, by UTC's days, and how often.


WEEKS = 4
COUNTED = 24  # times of one schedule on one day; more are "many"
NAMED = 4  # schedules on one day; the others are counted
MOST_SCHEDULES = 60  # that the calendar looks ahead for, by name
DAY = timedelta(days=1)
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Mark:
    """A schedule on a day: its first time, and how often it fires."""

    schedule: Schedule
    first: str
    times: int

    @property
    def often(self) -> str:
        return (
            "" if self.times == 1 else f"\u00d7{self.times}" if self.times <= COUNTED else f"\u00d7{COUNTED}+"
        )


@dataclass(slots=True)
class Day:
    """One day. What is not named is counted in `others`."""

    on: date
    is_today: bool
    is_past: bool
    marks: list[Mark] = field(default_factory=list)
    others: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.marks


@dataclass(frozen=True, slots=True)
class Week:
    days: Sequence[Day]

    @property
    def begins(self) -> date:
        return self.days[0].on


def weeks_of(schedules: Sequence[tuple[Schedule, Timing]], *, now: datetime) -> list[Week]:
    """Whole weeks, from the Monday before now. What has passed of today is left out."""
    today = now.astimezone(UTC).date()
    monday = today - timedelta(days=today.weekday())
    days = [
        Day(monday + number * DAY, number == today.weekday(), number < today.weekday())
        for number in range(7 * WEEKS)
    ]
    for schedule, plan in schedules[:MOST_SCHEDULES]:
        for day in days[today.weekday() :]:
            _mark(day, schedule, plan, now)
    for day in days:
        day.marks.sort(key=lambda mark: (mark.first, mark.schedule.name))
        day.others = max(0, len(day.marks) - NAMED)
        del day.marks[NAMED:]
    return [Week(days[start : start + 7]) for start in range(0, len(days), 7)]


def _mark(day: Day, schedule: Schedule, plan: Timing, now: datetime) -> None:
    begin = datetime(day.on.year, day.on.month, day.on.day, tzinfo=UTC)
    after, until = max(begin - INSTANT, now), begin + DAY - INSTANT
    found = list(islice(timing.times(plan, after=after, until=until), COUNTED + 1))
    if found:
        day.marks.append(Mark(schedule, f"{found[0]:%H:%M}", len(found)))
