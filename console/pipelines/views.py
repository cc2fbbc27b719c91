"""Pipelines: looked at by everybody, started and paused by operators, copied and changed by admins."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode

from console import flash_messages
from console.inbox.items import Refused
from console.internal_api import ApiForm, call_api
from console.page import ACTING, LOOKING, PageContext, page, shown
from pipelines.models.pipeline import KEY_PATTERN
from tenants.context import tenant_scope
from tenants.models import Role

from . import queries
from .parameters import StartForm, parameters_of

NOT_OFFERED = "This page does not offer that."
CHANGED = "The pipeline has changed since you looked: see what a run takes now, and start it then."
LONGEST_NUMBER = 9  # digits


@page("pipelines")
def every(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """The pipelines, and how the last run of each went."""
    search = request.GET.get("search", "").replace("\x00", "").strip()[:200]
    context = {"listing": queries.listing(visit.tenant_id, search), **_may(visit)}
    return shown(request, visit, "console/pipelines/every.html", context)


@page("pipelines", (*LOOKING, *ACTING))
def one(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """One pipeline. A POST pauses it, resumes it, or makes one of its versions the newest again."""
    refusal: Refused | None = None
    if request.method == "POST":
        try:
            words = _act(request, visit, key)
            return flash_messages.done(request, visit, reverse("console:pipeline", args=[key]), words)
        except Refused as refused:
            refusal = refused
    found = queries.one(visit.tenant_id, key, _number(request.GET.get("version", "")))
    context = {"one": found, "pipeline": found.pipeline, "refusal": refusal, **_may(visit)}
    return shown(request, visit, "console/pipelines/one.html", context, refusal.status if refusal else 200)


@page("pipelines", (*LOOKING, *ACTING))
def started(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """A form for what a run of the newest version takes. A POST starts it."""
    _refuse_below(visit, Role.OPERATOR)
    with tenant_scope(visit.tenant_id):
        pipeline, version = queries.found(visit.tenant_id, key)
        parameters = parameters_of(version)
    form, is_other = StartForm(parameters=parameters), request.POST.get("version") != str(version.number)
    if request.method == "POST":
        form = StartForm(request.POST, parameters=parameters)
        if is_other:
            form.status = HTTPStatus.CONFLICT
            form.add_error(None, CHANGED)
        elif reply := form.send(request, visit.who, "POST", f"/pipelines/{key}/runs/"):
            address = reverse("console:run", args=[reply.data["id"]])
            return flash_messages.done(request, visit, address, "The run has begun.")
    context = {"form": form, "pipeline": pipeline, "version": version}
    return shown(request, visit, "console/pipelines/start.html", context, form.status if form.errors else 200)


class CopyForm(ApiForm):
    """What the copy is called. Everything else is as in the pipeline that is copied."""

    name = forms.CharField(max_length=200)
    key = forms.RegexField(
        KEY_PATTERN,
        max_length=63,
        help_text="Its name for programs: lower-case letters, digits, - and _.",
        error_messages={"invalid": "Use lower-case letters, digits, - and _."},
    )


@page("pipelines", (*LOOKING, *ACTING))
def copied(request: HttpRequest, visit: PageContext, key: str) -> HttpResponse:
    """A new pipeline that does what the newest version of this one does."""
    _refuse_below(visit, Role.ADMIN)
    with tenant_scope(visit.tenant_id):
        pipeline, version = queries.found(visit.tenant_id, key)
    form = CopyForm(initial={"name": f"Copy of {pipeline.name}"[:200], "key": f"{key}-copy"[:63]})
    if request.method == "POST":
        form = CopyForm(request.POST)
        if form.is_valid():
            body = {**version.definition, **form.body()}
            reply = call_api(request, visit.who, "POST", "/pipelines/", body)
            if reply.ok:
                address = reverse("console:pipeline", args=[form.cleaned_data["key"]])
                return flash_messages.done(request, visit, address, f"Made: {form.cleaned_data['name']}")
            form.blame(reply)
    context = {"form": form, "pipeline": pipeline}
    return shown(request, visit, "console/pipelines/copy.html", context, form.status if form.errors else 200)


def _act(request: HttpRequest, visit: PageContext, key: str) -> str:
    deed, _, number = request.POST.get("deed", "").partition(":")
    if deed in ("pause", "resume"):
        reply = call_api(request, visit.who, "POST", f"/pipelines/{key}/{deed}/", {})
        words = "Paused: nothing new of its runs starts" if deed == "pause" else "It goes on"
    elif deed == "restore" and (wanted := _number(number)) is not None:
        with tenant_scope(visit.tenant_id):
            _, version = queries.found(visit.tenant_id, key, wanted)
        seen = _number(request.POST.get("latest", ""))
        reply = call_api(request, visit.who, "PUT", f"/pipelines/{key}/", version.definition, version=seen)
        words = f"Version {wanted} is the newest again, under a new number"
    else:
        raise Refused(NOT_OFFERED, status=400)
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    if not reply.ok:
        raise flash_messages.refusal_of(reply)
    return words


def _may(visit: PageContext) -> dict[str, Any]:
    """What the person may do with pipelines, and where they are edited."""
    is_admin = visit.who.role.includes(Role.ADMIN)
    editor = f"{reverse('admin:pipelines_pipeline_add')}?{urlencode({'tenant': str(visit.tenant_id)})}"
    return {
        "may_operate": visit.who.role.includes(Role.OPERATOR),
        "may_arrange": is_admin,
        "new_pipeline": editor if is_admin else "",
    }


def _refuse_below(visit: PageContext, role: Role) -> None:
    if not visit.who.role.includes(role):
        raise Http404


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER else None
