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
from pipelines.models import Schedule
from pipelines.models.schedule import DEFAULT_TIMEZONE, Repeat
from tenants.models import Role

BEGUN_BEFORE = "It had begun already, by the same button of the same page. Press it again to run it once more"
NOT_OFFERED = "This page does not offer that."
TIMES = 10


@page("schedules")
def every(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """The schedules, and what they will do in the coming weeks."""
    search = request.GET.get("search", "").replace("\x00", "").strip()[:200]
    found = queries.listing(desk.tenant_id, search=search, shown=request.GET.get("shown", ""))
    may_try = desk.who.role.includes(Role.OPERATOR)
    return shown(request, desk, "console/schedules/every.html", {"listing": found, "may_try": may_try})


@page("schedules", (*LOOKING, *ACTING))
def trial(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """Times and parameters that nobody has saved: when they would fire, and which jobs they would make. Nothing is written."""
    form = TrialForm(request.POST) if request.method == "POST" else TrialForm(initial=_given(request, desk))
    reply = form.send(request, desk.who, "POST", "/schedules/preview/") if request.method == "POST" else None
    context = {"form": form, "forecast": reply.data if reply else None}
    status = form.status if request.method == "POST" and reply is None else 200
    return shown(request, desk, "console/schedules/try.html", context, status)


@page("schedules", (*LOOKING, *ACTING))
def one(request: HttpRequest, desk: PageContext, schedule_id: UUID) -> HttpResponse:
    """One schedule. A POST runs it now, switches it on or off, or (with `dry_run`) looks at the jobs that it would make."""
    refusal: Refused | None = None
    forecast: Any = None
    if request.method == "POST":
        try:
            forecast = _dry_run(request, desk, schedule_id)
            if forecast is None:
                words = _act(request, desk, schedule_id)
                return flash_messages.done(
                    request, desk, reverse("console:schedule", args=[schedule_id]), words
                )
        except Refused as refused:
            refusal = refused
    found = queries.one(desk.tenant_id, schedule_id)
    if found is None:
        raise Http404
    context = {
        "one": found,
        "may_run": desk.who.role.includes(Role.OPERATOR),
        "may_switch": desk.who.role.includes(Role.ADMIN),
        "forecast": forecast,
        "refusal": refusal,
    }
    return shown(request, desk, "console/schedules/one.html", context, refusal.status if refusal else 200)


def _dry_run(request: HttpRequest, desk: PageContext, schedule_id: UUID) -> Any:
    if request.POST.get("deed") != "dry_run":
        return None
    address = f"/schedules/{schedule_id}/preview/"
    reply = internal_api.call_api(request, desk.who, "GET", address, query={"count": TIMES})
    if not reply.ok:
        raise flash_messages.refusal_of(reply)
    return reply.data


def _act(request: HttpRequest, desk: PageContext, schedule_id: UUID) -> str:
    deed, address = request.POST.get("deed", ""), f"/schedules/{schedule_id}/"
    if deed == "run":
        reply = internal_api.call_api(request, desk.who, "POST", f"{address}run/")
        words = BEGUN_BEFORE if reply.repeated else "Begun: see its executions"
    elif deed in ("on", "off"):
        reply = internal_api.call_api(request, desk.who, "PATCH", address, {"enabled": deed == "on"})
        words = "Switched on" if deed == "on" else "Switched off: it fires no more until it is switched on"
    else:
        raise Refused(NOT_OFFERED, status=400)
    if not reply.ok:
        raise flash_messages.refusal_of(reply)
    return words


def _given(request: HttpRequest, desk: PageContext) -> dict[str, Any]:
    """What the form begins with: the schedule that the address names, or nothing."""
    named = request.GET.get("schedule", "")
    try:
        found = queries.one(desk.tenant_id, UUID(named)) if named else None
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
