"""Pages of schedules. Everybody sees them, operators run, pause and test them, admins create, change, enable and disable them."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, ClassVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from django import forms
from django.db.models import OuterRef, Q, Subquery, Sum
from django.http import Http404, HttpRequest, HttpResponse

from agents import configuration
from console.internal_api import ApiForm, JsonField
from console.page import (
    ACTING,
    LOOKING,
    NOT_OFFERED,
    PageContext,
    Refused,
    id_or_404,
    number_in,
    page,
    text_in,
)
from pipelines import timing
from pipelines.models import Firing, Pipeline, Schedule, ScheduleExecution
from pipelines.models.schedule import FiringState, Overlap
from pipelines.schedules import editing, preview
from pipelines.timing import INSTANT, Timing, TimingError
from tenants import clock, pausing
from tenants.context import tenant_scope
from tenants.models import PauseKind, Role
from tenants.principals import Principal
from tenants.time_zones import error_of_zone, zone_names

STARTED_BEFORE = (
    "This run was already started by the same button. Press it again to run the schedule once more"
)
TIMES = 10
COMING = 5


@page("schedules")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The schedules, and a calendar of the coming weeks."""
    search, state = text_in(request.GET, "search"), text_in(request.GET, "state")
    context = listing(visit.tenant_id, search=search, state=state)
    return visit.render("console/schedules/every.html", context)


@page("schedules", (*LOOKING, *ACTING))
def trial(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """A preview of unsaved times and parameters, at first those of the schedule named in the address. Nothing is written."""
    named = request.GET.get("schedule", "")
    form = _form_of(request, visit, visit.read(f"/schedules/{id_or_404(named)}/") if named else None)
    return _show_form(request, visit, form, "try", schedule_id=named)


def _act(request: HttpRequest, visit: PageContext, schedule_id: UUID) -> Any:
    """Perform the action. Return a preview for a dry run, else the redirect."""
    action, address, words = request.POST.get("action", ""), f"/schedules/{schedule_id}/", ""
    if action == "dry_run":
        return visit.act("GET", f"{address}preview/", query={"count": TIMES}).data
    if action == "run":
        reply = visit.act("POST", f"{address}run/")
        words = STARTED_BEFORE if reply.repeated else "Started: see the executions below"
    elif action in ("pause", "resume"):
        visit.act("POST", f"{address}{action}/")
        words = (
            "The schedule is resumed"
            if action == "resume"
            else "The schedule is paused: it does not run, and none of its work starts, until it is resumed"
        )
    elif action in ("on", "off"):
        visit.act("PATCH", address, {"enabled": action == "on"})
        words = (
            "The schedule is enabled" if action == "on" else "The schedule is disabled: its times do not fire"
        )
    else:
        raise Refused(NOT_OFFERED, status=400)
    return visit.redirect(words, "schedule", schedule_id)


@page("schedules", act=_act)
def one(request: HttpRequest, visit: PageContext, schedule_id: UUID) -> HttpResponse:
    """One schedule. A POST runs, pauses, resumes, enables or disables it, or (with `dry_run`) previews its jobs."""
    with tenant_scope(visit.tenant_id):
        schedule = _with_pauses(visit.tenant_id).filter(pk=schedule_id).first_or_raise(Http404())
        firings = Firing.objects.for_tenant(visit.tenant_id).filter(schedule_id=schedule_id)
        executions = ScheduleExecution.objects.for_tenant(visit.tenant_id).filter(schedule_id=schedule_id)
        context = {
            "schedule": schedule,
            "target": target_of(schedule),
            "firings": list(firings.order_by("-nominal_at", "-pk")[:MOST_RECORDS]),
            "executions": list(executions.order_by("-started_at", "-pk")[:MOST_RECORDS]),
            "forecast": visit.acted,
        }
    plan = _timing(schedule)
    times = preview.next_times(schedule, count=NEXT) if plan else ()
    # Each time in the schedule's zone and in UTC.
    coming = [(f"{at.astimezone(ZoneInfo(schedule.timezone)):%a %Y-%m-%d %H:%M %Z}", at) for at in times]
    context |= {"when": words_of(plan), "coming": coming}
    return visit.render("console/schedules/one.html", context)


@page("schedules", (*LOOKING, *ACTING), least=Role.ADMIN)
def new(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The form of a new schedule. A POST creates or previews it."""
    form = _form_of(request, visit)
    if request.POST.get("action") == "save" and (reply := form.send(visit, "POST", "/schedules/")):
        return visit.redirect(f"Created: {reply.data['name']}", "schedule", reply.data["id"])
    return _show_form(request, visit, form, "edit")


@page("schedules", (*LOOKING, *ACTING), least=Role.ADMIN)
def change(request: HttpRequest, visit: PageContext, schedule_id: UUID) -> HttpResponse:
    """The form of a schedule. A POST changes it, if its version is still the displayed one."""
    address = f"/schedules/{schedule_id}/"
    form = _form_of(request, visit, visit.read(address))
    if request.POST.get("action") == "save":
        seen = number_in(request.POST.get("version", ""))
        if form.send(visit, "PATCH", address, version=seen):
            return visit.redirect("Saved", "schedule", schedule_id)
    return _show_form(request, visit, form, "edit", schedule_id=schedule_id)


@page("schedules", ACTING, least=Role.ADMIN)
def words(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """A part of the form's page: the preview of its present input."""
    return visit.render("console/schedules/words.html", _preview_of(visit, _form_of(request, visit)))


def _form_of(request: HttpRequest, visit: PageContext, present: Any = None) -> ScheduleForm:
    """Return the form with what was sent, else with the values of the schedule `present`, or those of a new one."""
    initial = {"timezone": visit.zone_name, "target": f"pipeline:{request.GET.get('pipeline', '')[:63]}"}
    return ScheduleForm(request.POST or None, targets=targets_of(visit.who), initial=initial, present=present)


def _show_form(
    request: HttpRequest, visit: PageContext, form: ScheduleForm, template: str, **context: Any
) -> HttpResponse:
    if request.POST.get("action") == "look":
        context |= _preview_of(visit, form)
    context |= {"form": form, "zones": sorted(zone_names())}
    return visit.render(f"console/schedules/{template}.html", context)


def _preview_of(visit: PageContext, form: ScheduleForm) -> dict[str, Any]:
    """Return the preview, or what the form lacks for it. A name is not needed."""
    form.fields["name"].required = False
    if reply := form.send(visit, "POST", "/schedules/preview/", query={"count": COMING}):
        return {"forecast": reply.data}
    missing = (f"{_label(form, name)}: {' '.join(map(str, texts))}" for name, texts in form.errors.items())
    return {"unclear": " ".join(missing)}


def _label(form: ScheduleForm, name: str) -> str:
    return str(form.fields[name].label or name).capitalize() if name in form.fields else "The form"


# The list, and the page of one schedule: its times in words, the next times, and the outcomes of past ones.

MOST_LISTED = 200
MOST_RECORDS = 30
NEXT = 10
UNREADABLE = "The stored times are no longer valid. Change them in the admin."


def listing(
    tenant_id: UUID, *, search: str = "", state: str = "", now: datetime | None = None
) -> dict[str, Any]:
    """Return the schedules, ordered by name. `state` "on", "off" or "paused" selects the enabled, disabled or paused ones."""
    moment = now or clock.now()
    with tenant_scope(tenant_id):
        rows = _with_pauses(tenant_id)
        if search:
            rows = rows.filter(
                Q(name__icontains=search)
                | Q(agent_role__icontains=search)
                | Q(pipeline__key__icontains=search)
            )
        if state in ("on", "off"):
            rows = rows.filter(enabled=state == "on")
        elif state == "paused":
            rows = rows.filter(paused=True)
        newest = ScheduleExecution.objects.for_tenant(tenant_id).filter(schedule_id=OuterRef("pk"))
        rows = rows.annotate(last=Subquery(newest.order_by("-started_at", "-pk").values("status")[:1]))
        schedules = list(rows.order_by("name", "pk")[: MOST_LISTED + 1])
        skipped = _count_skipped(tenant_id, [schedule.pk for schedule in schedules])
    timings = [(schedule, _timing(schedule)) for schedule in schedules]
    active = [(each, plan) for each, plan in timings if plan and each.enabled and not each.paused]
    return {
        "rows": [
            {
                "schedule": schedule,
                "when": words_of(plan),
                "target": target_of(schedule),
                "skipped": skipped.get(schedule.pk, 0),
                "is_due": schedule.next_run_at is not None and schedule.next_run_at <= moment,
            }
            for schedule, plan in timings[:MOST_LISTED]
        ],
        "enabled": any(schedule.enabled for schedule in schedules),
        "weeks": weeks_of(active, now=moment),
        "has_more": len(schedules) > MOST_LISTED,
        "search": search,
        "state": state,
    }


def _with_pauses(tenant_id: UUID) -> Any:
    return pausing.with_pauses(
        Schedule.objects.for_tenant(tenant_id).select_related("pipeline"), PauseKind.SCHEDULE
    )


def words_of(plan: Timing | None) -> str:
    return timing.in_words(plan) if plan else UNREADABLE


def target_of(schedule: Schedule) -> str:
    return schedule.agent_role or (schedule.pipeline.key if schedule.pipeline else "")


def _count_skipped(tenant_id: UUID, schedules: Sequence[UUID]) -> dict[UUID, int]:
    rows = Firing.objects.for_tenant(tenant_id).filter(schedule_id__in=schedules, state=FiringState.SKIPPED)
    return dict(rows.order_by().values_list("schedule_id").annotate(times=Sum("count")))


def _timing(schedule: Schedule) -> Timing | None:
    try:
        return schedule.timing()
    except TimingError:
        return None


# The calendar of the coming weeks: the schedules of each day (UTC), and how often they run.


WEEKS = 4
COUNTED = 24  # times of one schedule on one day; more are displayed as "24+"
NAMED = 4  # listed schedules per day; the others are only counted
MOST_SCHEDULES = 60  # in the calendar, by name
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Mark:
    """A schedule on a day: its first time, and the number of times."""

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
    """One day. `others` counts the schedules that are not listed."""

    on: date
    is_today: bool
    is_past: bool
    marks: list[Mark] = field(default_factory=list)
    others: int = 0


def weeks_of(schedules: Sequence[tuple[Schedule, Timing]], *, now: datetime) -> list[list[Day]]:
    """Return whole weeks from this week's Monday on. Past times of today are omitted."""
    today = now.astimezone(UTC).date()
    monday = today - timedelta(days=today.weekday())
    days = [
        Day(monday + number * DAY, number == today.weekday(), number < today.weekday())
        for number in range(7 * WEEKS)
    ]
    for schedule, plan in schedules[:MOST_SCHEDULES]:
        for day in days[today.weekday() :]:
            begin = datetime(day.on.year, day.on.month, day.on.day, tzinfo=UTC)
            after, until = max(begin - INSTANT, now), begin + DAY - INSTANT
            times = list(islice(timing.times(plan, after=after, until=until), COUNTED + 1))
            if times:
                day.marks.append(Mark(schedule, f"{times[0]:%H:%M}", len(times)))
    for day in days:
        day.marks.sort(key=lambda mark: (mark.first, mark.schedule.name))
        day.others = max(0, len(day.marks) - NAMED)
        del day.marks[NAMED:]
    return [days[start : start + 7] for start in range(0, len(days), 7)]


# The form of a schedule: its times, time zone and target.
#
# The style sheet alone hides the fields that do not fit the chosen kind of times, so the form works without scripts.

MOST_PIPELINES = 500  # choices
EVERY, ONCE, CRON = "every", "once", "cron"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of times. `fields` are those of the form that it needs, and `cron` its expression, in which numbers replace the names."""

    words: str
    fields: tuple[str, ...]
    cron: str = ""

    def read(self, cron: str) -> dict[str, str] | None:
        """Return the numbers in an expression of this kind; None for another kind."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d{1,2})", re.escape(self.cron))
        match = re.fullmatch(pattern, cron) if self.cron else None
        return match.groupdict() if match else None


#: In the order of the form.
KINDS: Mapping[str, Kind] = {
    "hourly": Kind("Every hour", ("minute",), "{minute} * * * *"),
    "daily": Kind("Every day", ("at",), "{m} {h} * * *"),
    "workdays": Kind("Monday to Friday", ("at",), "{m} {h} * * 1-5"),
    "weekly": Kind("Every week", ("weekday", "at"), "{m} {h} * * {weekday}"),
    "monthly": Kind("Every month", ("day", "at"), "{m} {h} {day} * *"),
    EVERY: Kind("At an interval", ("minutes",)),
    ONCE: Kind("Once", ("moment",)),
    CRON: Kind("By a cron expression", ("cron",)),
}
DAYS = tuple((str(number % 7), calendar.day_name[number - 1]) for number in range(1, 8))
OVERLAPS = (
    (Overlap.SKIP.value, "skip this time"),
    (Overlap.QUEUE_ONE.value, "start after it ends"),
    (Overlap.ALLOW.value, "start in parallel"),
    (Overlap.CANCEL_RUNNING.value, "cancel it, then start"),
)
MINUTE_MS = 60_000


class ScheduleForm(ApiForm):
    """The form of a schedule. `present` is the API's data of the existing schedule, None for a new one."""

    #: By field, the kinds of times that it is for; other fields are for all.
    fits: ClassVar[Mapping[str, str]] = {
        name: " ".join(kind for kind, each in KINDS.items() if name in each.fields)
        for name in ("minute", "weekday", "day", "at", "minutes", "moment", "cron")
    }
    chooser = "when"

    name = forms.CharField(max_length=editing.LONGEST_NAME)
    target = forms.ChoiceField(label="Starts")
    when = forms.ChoiceField(choices=[(name, kind.words) for name, kind in KINDS.items()], initial="daily")
    minute = forms.IntegerField(label="At minute", required=False, min_value=0, max_value=59, initial=0)
    weekday = forms.ChoiceField(label="On", choices=DAYS, required=False, initial="1")
    day = forms.IntegerField(
        label="On day",
        required=False,
        min_value=1,
        max_value=31,
        initial=1,
        help_text="Months without that day are skipped.",
    )
    at = forms.TimeField(
        label="At",
        required=False,
        initial="09:00",
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
    )
    minutes = forms.DecimalField(
        label="Minutes", required=False, min_value=Decimal("0.016"), max_digits=12, initial=30
    )
    moment = forms.CharField(
        label="Day and time",
        required=False,
        max_length=32,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )
    cron = forms.CharField(
        label="Cron",
        required=False,
        max_length=200,
        help_text="Minute, hour, day of the month, month, day of the week.",
    )
    timezone = forms.CharField(
        label="Time zone",
        max_length=64,
        widget=forms.TextInput(attrs={"list": "zones", "autocomplete": "off"}),
    )
    params = JsonField(
        label="Parameters", required=False, help_text="As JSON. A data source string is expanded into jobs."
    )
    overlap = forms.ChoiceField(
        label="If the previous run is active", choices=OVERLAPS, initial=Overlap.SKIP.value
    )
    description = forms.CharField(
        required=False, max_length=editing.LONGEST_DESCRIPTION, widget=forms.Textarea(attrs={"rows": 2})
    )

    def __init__(
        self,
        data: Any = None,
        *,
        targets: Sequence[tuple[str, Any]],
        initial: Mapping[str, Any],
        present: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data, initial={**initial, **(_initial_of(present) if present else {})})
        self.present = present
        own = self.initial.get("target")
        if own and present and not any(own == value for _, choices in targets for value, _ in choices):
            targets = [*targets, ("Current", [(own, own.partition(":")[2])])]
        self.fields["target"].choices = targets  # type: ignore[attr-defined]  # a ChoiceField

    def clean_timezone(self) -> str:
        name: str = self.cleaned_data["timezone"]
        if error := error_of_zone(name):
            raise forms.ValidationError(error)
        return name

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        kind = KINDS.get(cleaned.get("when", ""))
        for name in kind.fields if kind else ():
            if cleaned.get(name) in (None, "") and name not in self.errors:
                self.add_error(name, "This field is required.")
        if cleaned.get("when") == ONCE and cleaned.get("moment"):
            try:
                self.start_at = datetime.fromisoformat(cleaned["moment"])
            except ValueError:
                self.add_error("moment", "Enter a date and a time, such as 2027-05-01T09:30.")
        return cleaned

    def body(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        kind, _, target = cleaned["target"].partition(":")
        members = {
            "name": cleaned["name"],
            "description": cleaned["description"],
            "timezone": cleaned["timezone"],
            "params": cleaned["params"] or {},
            "overlap": cleaned["overlap"],
            "target_type": kind,
            "agent_role": target if kind == "agent" else None,
            "pipeline": target if kind == "pipeline" else None,
            **self._times(cleaned),
        }
        return (
            members
            if self.present
            else {name: value for name, value in members.items() if value not in (None, "")}
        )

    def _times(self, cleaned: Mapping[str, Any]) -> dict[str, Any]:
        when = cleaned["when"]
        if when == ONCE:
            return {
                "repeat": "once",
                "start_at": self._moment(cleaned).isoformat(),
                "cron": None,
                "interval_ms": None,
                "end_at": None,
            }
        # Keep a bound of a repeating schedule, but not the time of a former one-time schedule.
        was_once = self.present is not None and self.present.get("repeat") == "once"
        repeating: dict[str, Any] = {"repeat": "repeating", **({"start_at": None} if was_once else {})}
        if when == EVERY:
            return {**repeating, "interval_ms": self._interval_ms(cleaned), "cron": None}
        return {**repeating, "cron": self._cron(cleaned), "interval_ms": None}

    # The form shows times to the second and intervals to six digits, and does not show which of two equal local times is meant.
    # So a value that comes back as it was shown keeps its exact value.

    def _moment(self, cleaned: Mapping[str, Any]) -> datetime:
        if self.start_at.tzinfo:
            return self.start_at
        shown = self.initial.get("moment")
        is_same = shown and datetime.fromisoformat(shown) == self.start_at
        if self.present and is_same and cleaned["timezone"] == self.present["timezone"]:
            return cast(datetime, self.present["start_at"])
        return self.start_at.replace(tzinfo=ZoneInfo(cleaned["timezone"]))

    def _interval_ms(self, cleaned: Mapping[str, Any]) -> int:
        shown = self.initial.get("minutes")
        if self.present and shown and Decimal(shown) == cleaned["minutes"]:
            return cast(int, self.present["interval_ms"])
        return round(cleaned["minutes"] * MINUTE_MS)

    @staticmethod
    def _cron(cleaned: Mapping[str, Any]) -> str:
        at = cleaned.get("at") or time()
        kind = KINDS[cleaned["when"]]
        return kind.cron.format(**{**cleaned, "m": at.minute, "h": at.hour}) or str(cleaned.get("cron"))

    def places(self) -> Mapping[str, str]:
        kind = KINDS.get(self.cleaned_data.get("when", ""))
        cron = kind.fields[0] if kind else "cron"
        return {
            "repeat": "when", "interval_ms": "minutes", "start_at": "moment", "target_type": "target", "agent_role": "target",
            "pipeline": "target", "cron": cron,
        }  # fmt: skip


def targets_of(who: Principal) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the possible targets as grouped choices."""
    with tenant_scope(who.tenant_id):
        known = Pipeline.objects.for_tenant(who.tenant_id).filter(enabled=True).order_by("name", "key")
        pipelines = [
            (f"pipeline:{key}", name or key)
            for key, name in known.values_list("key", "name")[:MOST_PIPELINES]
        ]
        agents = [(f"agent:{role}", role) for role in sorted(configuration.list_roles())]
    return [("Pipelines", pipelines), ("Agents", agents)]


def _initial_of(present: Mapping[str, Any]) -> dict[str, Any]:
    """Return the initial values for an existing schedule."""
    kind = present["target_type"]
    target = present["agent_role"] if kind == "agent" else present["pipeline"]
    initial = {name: present[name] for name in ("name", "timezone", "params", "overlap", "description")}
    return {**initial, "target": f"{kind}:{target}", **_when(present)}


def _when(present: Mapping[str, Any]) -> dict[str, Any]:
    if present["repeat"] == "once":
        start = present["start_at"]
        local = start.astimezone(ZoneInfo(present["timezone"])) if start else None
        return {"when": ONCE, "moment": f"{local:%Y-%m-%dT%H:%M:%S}" if local else ""}
    if present["interval_ms"]:
        return {"when": EVERY, "minutes": f"{present['interval_ms'] / MINUTE_MS:.6g}"}
    for name, kind in KINDS.items():
        parts = kind.read(present["cron"] or "")
        if parts and parts.get("weekday", "0") in dict(DAYS):
            at = {"at": f"{int(parts.pop('h')):02}:{int(parts.pop('m')):02}"} if "h" in parts else {}
            return {"when": name, "cron": present["cron"], **at, **parts}
    return {"when": CRON, "cron": present["cron"]}
