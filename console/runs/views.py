"""Pages of pipeline runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from activities import outputs
from activities.exceptions import OutputUnavailable
from activities.models import Activity
from console import flash_messages
from console.flash_messages import refusal_of
from console.inbox.items import Refused
from console.internal_api import call_api
from console.page import ACTING, LOOKING, PageContext, page, shown
from console.runs.detail import detail, found
from console.runs.listing import listing
from pipelines.models import PipelineRun, StepRun
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal


@page("runs")
def listed(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Runs, newest first."""
    given = (request.GET.get(name, "") for name in ("status", "pipeline", "after"))
    context = {
        "listing": listing(visit.tenant_id, *given),
        "may_operate": visit.who.role.includes(Role.OPERATOR),
    }
    return shown(request, visit, "console/runs/list.html", context)


@page("runs", (*LOOKING, *ACTING))
def one(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    """One run as it goes on. A POST cancels it."""
    if request.method == "POST":
        return _cancelled(request, visit, run_id)
    found = detail(visit.who, run_id)
    return shown(request, visit, "console/runs/one.html", {"detail": found, "run": found.run})


@page("runs", (*LOOKING, *ACTING))
def replayed(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    """What a step of an ended run worked on. A POST does the run again from there."""
    _refuse_lookers(visit)
    refusal = None
    if request.method == "POST":
        try:
            new = replay_run(request, visit.who, run_id)
        except Refused as refused:
            refusal = refused
        else:
            words = "The run is done again from this step."
            return flash_messages.done(request, visit, reverse("console:run", args=[new]), words)
    step = step_of(request)
    found = replay_form(visit.tenant_id, run_id, step)
    context = {
        "again": found,
        "run": found.run,
        "refusal": refusal,
        "content": request.POST["content"] if refusal and "content" in request.POST else found.content,
        "data": request.POST["data"] if refusal and "data" in request.POST else found.data,
    }
    return shown(
        request, visit, "console/runs/replay.html", context, status=refusal.status if refusal else 200
    )


def _cancelled(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    reply = call_api(request, visit.who, "POST", f"/pipeline-runs/{run_id}/cancel/", {})
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    address = reverse("console:run", args=[run_id])
    if not reply.ok:
        messages.error(request, reply.reason)
        return redirect(f"{address}?{visit.query}")
    return flash_messages.done(request, visit, address, "The run was cancelled.")


def _refuse_lookers(visit: PageContext) -> None:
    if not visit.who.role.includes(Role.OPERATOR):
        raise Http404


# Doing an ended run again from one of its steps: what that step worked on, to be changed, and the new run.


LONGEST_SHOWN = 200_000  # characters of an input that can be edited here


@dataclass(frozen=True, slots=True)
class ReplayForm:
    """What the form shows. `remark` says why there is no input to begin with."""

    run: PipelineRun
    step: str
    content: str = ""
    data: str = ""
    remark: str = ""


def replay_form(tenant_id: UUID, run_id: UUID, step: str) -> ReplayForm:
    """The form for one step. Raises `Http404`. Not inside a transaction: the input may have to be read from MongoDB."""
    with tenant_scope(tenant_id):
        run = found(tenant_id, run_id)
        row = StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id, step=step, branch=0).first()
        if row is None:
            raise Http404
        rows = Activity.objects.for_tenant(tenant_id)
        activity = rows.filter(pk=row.activity_id).first() if row.activity_id else None
    return (
        _shown(run, step, *_input_of(tenant_id, activity)) if activity else ReplayForm(run, step, remark=NONE)
    )


NONE = "The step never came to work on anything. Leave both empty to let it begin as usual."
SEVERAL = "It works on what several steps have left. Leave both empty to keep that."
AWAY = "The store of outputs does not answer, so its input cannot be shown. Leave both empty to keep it."
LONG = "Its input is too long to be edited here. Leave both empty to keep it."


def _input_of(tenant_id: UUID, activity: Activity) -> tuple[str | None, Any, str]:
    """Content, data and a remark."""
    given: Mapping[str, Any] = activity.input or {}
    if given.get("content") is not None or given.get("data") is not None:
        return given.get("content"), given.get("data"), ""
    refs = list((given.get("refs") or {}).values()) or ([activity.input_ref] if activity.input_ref else [])
    if len(refs) != 1 or isinstance(refs[0], list):
        return None, None, SEVERAL if refs else ""
    try:
        output = outputs.read(tenant_id, UUID(str(refs[0])))
    except OutputUnavailable:
        return None, None, AWAY
    return (output.content, output.data, "") if output else (None, None, AWAY)


def _shown(run: PipelineRun, step: str, content: str | None, data: Any, remark: str) -> ReplayForm:
    written = "" if data is None else json.dumps(data, indent=2, ensure_ascii=False)
    if len(content or "") + len(written) > LONGEST_SHOWN:
        return ReplayForm(run, step, remark=LONG)
    return ReplayForm(run, step, _lines(content or ""), written, remark)


def step_of(request: HttpRequest) -> str:
    """From which step, by the form or the address."""
    return (request.POST.get("from_step") or request.GET.get("step", "")).replace("\x00", "")


def replay_run(request: HttpRequest, who: Principal, run_id: UUID) -> UUID:
    """The new run. Input that was left as the page showed it stays where it is. Raises `Refused`, `Http404`."""
    sent = request.POST
    step = step_of(request)
    before = replay_form(who.tenant_id, run_id, step)
    content, data = _lines(sent.get("content", "")), _lines(sent.get("data", "")).strip()
    body: dict[str, Any] = {"from_step": step}
    if (content, data) not in ((before.content, before.data.strip()), ("", "")):
        given = {"content": content or None, "data": _json(data)}
        body["input"] = {name: value for name, value in given.items() if value is not None}
    reply = call_api(request, who, "POST", f"/pipeline-runs/{run_id}/replay/", body)
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    if not reply.ok:
        raise refusal_of(reply)
    return UUID(str(reply.data["id"]))


def _json(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"The data is not JSON: {error}", status=400, field="data") from error


def _lines(text: str) -> str:
    """As the browser sends them, so that what was not touched is found equal."""
    return text.replace("\r\n", "\n").replace("\x00", "")
