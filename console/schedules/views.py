"""Schedules: looked at by everybody, run by operators, switched by admins; and times that somebody wants to try out first."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from console import flash_messages, internal_api
from console.inbox.items import Refused
from console.internal_api import ApiForm, JsonField
from console.page import ACTING, LOOKING, PageContext, page, shown
from console.schedules import queries
from console.schedules.forms import ScheduleForm, targets_of
from pipelines.models import Schedule
from pipelines.models.schedule import DEFAULT_TIMEZONE, Repeat
from pipelines.timing.clock import zone_names
from tenants.models import Role

BEGUN_BEFORE = "It had begun already, by the same button of the same page. Press it again to run it once more"
NOT_OFFERED = "This page does not offer that."
TIMES = 10
COMING = 5


@page("schedules")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The schedules, and what they will do in the coming weeks."""
    search = request.GET.get("search", "").replace("\x00", "").strip()[:200]
    found = queries.listing(visit.tenant_id, search=search, shown=request.GET.get("shown", ""))
    role = visit.who.role
    context = {
        "listing": found,
        "may_try": role.includes(Role.OPERATOR),
        "may_make": role.includes(Role.ADMIN),
    }
    return shown(request, visit, "console/schedules/every.html", context)


@page("schedules", (*LOOKING, *ACTING))
def trial(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Times and parameters that nobody has saved: when they would fire, and which jobs they would make. Nothing is written."""
    form = TrialForm(request.POST) if request.method == "POST" else TrialForm(initial=_given(request, visit))
    reply = form.send(request, visit.who, "POST", "/schedules/preview/") if request.method == "POST" else None
    context = {"form": form, "forecast": reply.data if reply else None}
    status = form.status if request.method == "POST" and reply is None else 200
    return shown(request, visit, "console/schedules/try.html", context, status)


@page("schedules", (*LOOKING, *ACTING))
def one(request: HttpRequest, visit: PageContext, schedule_id: UUID) -> HttpResponse:
    """One schedule. A POST runs it now, switches it on or off, or (with `dry_run`) looks at the jobs that it would make."""
    refusal: Refused | None = None
    forecast: Any = None
    if request.method == "POST":
        try:
            forecast = _dry_run(request, visit, schedule_id)
            if forecast is None:
                words = _act(request, visit, schedule_id)
                return flash_messages.done(
                    request, visit, reverse("console:schedule", args=[schedule_id]), words
                )
        except Refused as refused:
            refusal = refused
    found = queries.one(visit.tenant_id, schedule_id)
    if found is None:
        raise Http404
    context = {
        "one": found,
        "may_run": visit.who.role.includes(Role.OPERATOR),
        "may_switch": visit.who.role.includes(Role.ADMIN),
        "forecast": forecast,
        "refusal": refusal,
    }
    return shown(request, visit, "console/schedules/one.html", context, refusal.status if refusal else 200)


@page("schedules", (*LOOKING, *ACTING))
def new(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """A form for one more. A POST makes it, or says what it would do."""
    _refuse_others(visit)
    pipeline = request.GET.get("pipeline", "")[:63]
    initial = {"timezone": zone_name(visit), "target": f"pipeline:{pipeline}"}
    form = ScheduleForm(request.POST or None, targets=targets_of(visit.who), initial=initial)
    if request.POST.get("deed") == "save" and (reply := form.send(request, visit.who, "POST", "/schedules/")):
        address = reverse("console:schedule", args=[reply.data["id"]])
        return flash_messages.done(request, visit, address, f"Made: {reply.data['name']}")
    return _edited(request, visit, form)


@page("schedules", (*LOOKING, *ACTING))
def changed(request: HttpRequest, visit: PageContext, schedule_id: UUID) -> HttpResponse:
    """The form of one. A POST changes it, if it is still as the form showed it."""
    _refuse_others(visit)
    address = f"/schedules/{schedule_id}/"
    present = internal_api.found(internal_api.call_api(request, visit.who, "GET", address))
    given = {"targets": targets_of(visit.who), "initial": {"timezone": zone_name(visit)}, "present": present}
    form = ScheduleForm(request.POST or None, **given)
    if request.POST.get("deed") == "save":
        version = request.POST.get("version", "")
        seen = int(version[:9]) if version.isdecimal() else None
        if form.send(request, visit.who, "PATCH", address, version=seen):
            return flash_messages.done(
                request, visit, reverse("console:schedule", args=[schedule_id]), "Saved"
            )
    return _edited(request, visit, form, schedule_id)


@page("schedules", ACTING)
def words(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What the form, as it is filled in, would come to: a part of its page."""
    _refuse_others(visit)
    form = ScheduleForm(request.POST, targets=targets_of(visit.who), initial={})
    return shown(request, visit, "console/schedules/words.html", _foretold(request, visit, form))


def zone_name(visit: PageContext) -> str:
    """That of the tenant. Who looks at it from outside begins with UTC."""
    return next((own.timezone for own in visit.tenants if own.pk == visit.tenant_id), "UTC")


def _edited(
    request: HttpRequest, visit: PageContext, form: ScheduleForm, schedule_id: UUID | None = None
) -> HttpResponse:
    looks = request.POST.get("deed") == "look"
    context = {
        "form": form,
        "schedule_id": schedule_id,
        "zones": sorted(zone_names()),
        **(_foretold(request, visit, form) if looks else {}),
    }
    return shown(request, visit, "console/schedules/edit.html", context, form.status if form.errors else 200)


def _foretold(request: HttpRequest, visit: PageContext, form: ScheduleForm) -> dict[str, Any]:
    """A forecast, or what is missing for one. A name is not."""
    form.fields["name"].required = False
    if not form.is_valid():
        return {
            "unclear": " ".join(
                f"{_label(form, name)}: {' '.join(map(str, texts))}" for name, texts in form.errors.items()
            )
        }
    address, count = "/schedules/preview/", {"count": COMING}
    reply = internal_api.call_api(request, visit.who, "POST", address, form.body(), query=count)
    if reply.ok:
        return {"forecast": reply.data}
    return {"unclear": flash_messages.refusal_of(reply).reason}


def _label(form: ScheduleForm, name: str) -> str:
    return str(form.fields[name].label or name).capitalize() if name in form.fields else "The form"


def _refuse_others(visit: PageContext) -> None:
    if not visit.who.role.includes(Role.ADMIN):
        raise Http404


def _dry_run(request: HttpRequest, visit: PageContext, schedule_id: UUID) -> Any:
    if request.POST.get("deed") != "dry_run":
        return None
    address = f"/schedules/{schedule_id}/preview/"
    reply = internal_api.call_api(request, visit.who, "GET", address, query={"count": TIMES})
    if not reply.ok:
        raise flash_messages.refusal_of(reply)
    return reply.data


def _act(request: HttpRequest, visit: PageContext, schedule_id: UUID) -> str:
    deed, address = request.POST.get("deed", ""), f"/schedules/{schedule_id}/"
    if deed == "run":
        reply = internal_api.call_api(request, visit.who, "POST", f"{address}run/")
        words = BEGUN_BEFORE if reply.repeated else "Begun: see its executions"
    elif deed in ("on", "off"):
        reply = internal_api.call_api(request, visit.who, "PATCH", address, {"enabled": deed == "on"})
        words = "Switched on" if deed == "on" else "Switched off: it fires no more until it is switched on"
    else:
        raise Refused(NOT_OFFERED, status=400)
    if not reply.ok:
        raise flash_messages.refusal_of(reply)
    return words


def _given(request: HttpRequest, visit: PageContext) -> dict[str, Any]:
    """What the form begins with: the schedule that the address names, or nothing."""
    named = request.GET.get("schedule", "")
    try:
        found = queries.one(visit.tenant_id, UUID(named)) if named else None
    except ValueError:
        found = None
    return TrialForm.members_of(found.schedule) if found else {}


# The form in which somebody tries out times and parameters of a schedule.


class TrialForm(ApiForm):
    """Members of a schedule that say when and with what. The API says what is wrong with them."""

    cron = forms.CharField(
        label="Cron",
        required=False,
        max_length=200,
        help_text="Minute, hour, day of the month, month, day of the week.",
    )
    interval_seconds = forms.DecimalField(label="Or every so many seconds", required=False, min_value=1)
    timezone = forms.CharField(label="Time zone", max_length=64, initial=DEFAULT_TIMEZONE)
    agent_role = forms.CharField(label="Agent", required=False, max_length=63)
    pipeline = forms.CharField(label="Or pipeline", required=False, max_length=63)
    params = JsonField(
        label="Parameters",
        required=False,
        help_text="A value that is a data source string is expanded into jobs.",
    )

    def body(self) -> dict[str, Any]:
        given = super().body()
        seconds = given.pop("interval_seconds", None)
        target = "pipeline" if given.get("pipeline") else "agent"
        body = {"repeat": Repeat.REPEATING.value, "target_type": target, **given}
        return body | ({} if seconds is None else {"interval_ms": int(seconds * 1000)})

    @staticmethod
    def members_of(schedule: Schedule) -> dict[str, Any]:
        """What the form begins with for a schedule that there is."""
        return {
            "cron": schedule.cron,
            "interval_seconds": None if schedule.interval_ms is None else schedule.interval_ms / 1000,
            "timezone": schedule.timezone,
            "agent_role": schedule.agent_role or "",
            "pipeline": schedule.pipeline.key if schedule.pipeline else "",
            "params": schedule.params,
        }
