"""Doing an ended run again from one of its steps: what that step worked on, to be changed, and the new run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest

from activities import outputs
from activities.exceptions import OutputUnavailable
from activities.models import Activity
from console.flash_messages import refusal_of
from console.inbox.items import Refused
from console.internal_api import call_api
from console.runs.detail import found
from pipelines.models import PipelineRun, StepRun
from tenants.context import tenant_scope
from tenants.principals import Principal

LONGEST_SHOWN = 200_000  # characters of an input that can be edited here


@dataclass(frozen=True, slots=True)
class Again:
    """What the form shows. `remark` says why there is no input to begin with."""

    run: PipelineRun
    step: str
    content: str = ""
    data: str = ""
    remark: str = ""


def again(tenant_id: UUID, run_id: UUID, step: str) -> Again:
    """The form for one step. Raises `Http404`. Not inside a transaction: the input may have to be read from MongoDB."""
    with tenant_scope(tenant_id):
        run = found(tenant_id, run_id)
        row = StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id, step=step, branch=0).first()
        if row is None:
            raise Http404
        rows = Activity.objects.for_tenant(tenant_id)
        activity = rows.filter(pk=row.activity_id).first() if row.activity_id else None
    return _shown(run, step, *_input_of(tenant_id, activity)) if activity else Again(run, step, remark=NONE)


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


def _shown(run: PipelineRun, step: str, content: str | None, data: Any, remark: str) -> Again:
    written = "" if data is None else json.dumps(data, indent=2, ensure_ascii=False)
    if len(content or "") + len(written) > LONGEST_SHOWN:
        return Again(run, step, remark=LONG)
    return Again(run, step, _lines(content or ""), written, remark)


def step_of(request: HttpRequest) -> str:
    """From which step, by the form or the address."""
    return (request.POST.get("from_step") or request.GET.get("step", "")).replace("\x00", "")


def replay(request: HttpRequest, who: Principal, run_id: UUID) -> UUID:
    """The new run. Input that was left as the page showed it stays where it is. Raises `Refused`, `Http404`."""
    sent = request.POST
    step = step_of(request)
    before = again(who.tenant_id, run_id, step)
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
