"""Pages of pipeline runs."""

from __future__ import annotations

from http import HTTPStatus
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from console import flash_messages
from console.inbox.items import Refused
from console.internal_api import call_api
from console.page import ACTING, LOOKING, PageContext, page, shown
from console.runs.detail import detail
from console.runs.listing import listing
from tenants.models import Role

from . import replay


@page("runs")
def listed(request: HttpRequest, desk: PageContext) -> HttpResponse:
    """Runs, newest first."""
    given = (request.GET.get(name, "") for name in ("status", "pipeline", "after"))
    return shown(request, desk, "console/runs/list.html", {"listing": listing(desk.tenant_id, *given)})


@page("runs", (*LOOKING, *ACTING))
def one(request: HttpRequest, desk: PageContext, run_id: UUID) -> HttpResponse:
    """One run as it goes on. A POST cancels it."""
    if request.method == "POST":
        return _cancelled(request, desk, run_id)
    found = detail(desk.who, run_id)
    return shown(request, desk, "console/runs/one.html", {"detail": found, "run": found.run})


@page("runs", (*LOOKING, *ACTING))
def replayed(request: HttpRequest, desk: PageContext, run_id: UUID) -> HttpResponse:
    """What a step of an ended run worked on. A POST does the run again from there."""
    _refuse_lookers(desk)
    refusal = None
    if request.method == "POST":
        try:
            new = replay.replay(request, desk.who, run_id)
        except Refused as refused:
            refusal = refused
        else:
            words = "The run is done again from this step."
            return flash_messages.done(request, desk, reverse("console:run", args=[new]), words)
    step = replay.step_of(request)
    found = replay.again(desk.tenant_id, run_id, step)
    context = {
        "again": found,
        "run": found.run,
        "refusal": refusal,
        "content": request.POST["content"] if refusal and "content" in request.POST else found.content,
        "data": request.POST["data"] if refusal and "data" in request.POST else found.data,
    }
    return shown(
        request, desk, "console/runs/replay.html", context, status=refusal.status if refusal else 200
    )


def _cancelled(request: HttpRequest, desk: PageContext, run_id: UUID) -> HttpResponse:
    reply = call_api(request, desk.who, "POST", f"/pipeline-runs/{run_id}/cancel/", {})
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    address = reverse("console:run", args=[run_id])
    if not reply.ok:
        messages.error(request, reply.reason)
        return redirect(f"{address}?{desk.query}")
    return flash_messages.done(request, desk, address, "The run was cancelled.")


def _refuse_lookers(desk: PageContext) -> None:
    if not desk.who.role.includes(Role.OPERATOR):
        raise Http404
