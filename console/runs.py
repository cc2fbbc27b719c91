"""Pages of pipeline runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from activities import outputs
from activities import selectors as activity_selectors
from activities.exceptions import OutputUnavailable
from activities.models import Activity
from activities.selectors import Moment
from activities.states import RUNNING
from console.activities import chart
from console.activities.chart import ChartRow
from console.activities.detail import Entry, entry_of
from console.internal_api import call_api
from console.labels import tone_of
from console.page import (
    PAGE_WIDTH,
    Cursor,
    PageContext,
    Refused,
    id_or_404,
    page,
    page_of,
    redirect_with_success,
    refusal_of,
    render_page,
)
from pipelines import diagram, selectors, versions
from pipelines.definition import DefinitionError
from pipelines.diagram import Counts, StepPicture
from pipelines.models import Pipeline, PipelineRun, StepRun
from pipelines.models.run import RunState, StepReason, StepState
from pipelines.selectors import BranchRow, StepRow
from pipelines.subjects import subject_of
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal


def _act_on_many(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """What does not fit a run any more is left alone and counted."""
    if not visit.who.role.includes(Role.OPERATOR):
        raise Http404
    run_ids = list(dict.fromkeys(id_or_404(pk) for pk in request.POST.getlist("run")[:PAGE]))
    action = request.POST.get("deed", "")
    if action not in ("cancel", "replay"):
        raise Http404
    address = reverse("console:runs")
    if not run_ids:
        return redirect_with_success(request, visit, address, "Choose the runs first.")
    body = {"action": action, "ids": [str(run_id) for run_id in run_ids]}
    reply = call_api(request, visit.who, "POST", "/pipeline-runs/bulk/", body)
    if not reply.ok:
        messages.error(request, reply.reason)
        return redirect(f"{address}?{visit.query}")
    reasons = Counter(left["message"] for left in reply.data["left_alone"])
    for reason, count in reasons.most_common(3):
        messages.error(request, f"{count} left alone: {reason}")
    done_count = len(reply.data["done"])
    did = "cancelled" if action == "cancel" else "done again from the step that failed"
    words = f"{done_count} run{'' if done_count == 1 else 's'} {did}."
    return redirect_with_success(request, visit, address, words)


@page("runs", act=_act_on_many)
def list_runs(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Runs, newest first. A POST cancels those that were chosen, or does them again from where they failed."""
    parameters = (request.GET.get(name, "") for name in ("status", "pipeline", "after", "q", "label"))
    context = {
        "listing": listing(visit.tenant_id, *parameters),
        "may_operate": visit.who.role.includes(Role.OPERATOR),
    }
    return render_page(request, visit, "console/runs/list.html", context)


def _cancel(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    reply = call_api(request, visit.who, "POST", f"/pipeline-runs/{run_id}/cancel/", {})
    if reply.status == HTTPStatus.NOT_FOUND:
        raise Http404
    address = reverse("console:run", args=[run_id])
    if not reply.ok:
        messages.error(request, reply.reason)
        return redirect(f"{address}?{visit.query}")
    return redirect_with_success(request, visit, address, "The run was cancelled.")


@page("runs", act=_cancel)
def one(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    """One run as it goes on. A POST cancels it."""
    found = detail(visit.who, run_id)
    return render_page(request, visit, "console/runs/one.html", {"detail": found, "run": found.run})


def _replay(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    new = replay_run(request, visit.who, run_id)
    return redirect_with_success(
        request, visit, reverse("console:run", args=[new]), "The run is done again from this step."
    )


@page("runs", act=_replay, least=Role.OPERATOR)
def replay(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    """What a step of an ended run worked on. A POST does the run again from there."""
    found = replay_form(visit.tenant_id, run_id, step_of(request))
    context = {
        "again": found,
        "run": found.run,
        "content": request.POST.get("content", found.content),
        "data": request.POST.get("data", found.data),
    }
    return render_page(request, visit, "console/runs/replay.html", context)


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
        run = find_run(tenant_id, run_id)
        row = StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id, step=step, branch=0).first()
        if row is None:
            raise Http404
        rows = Activity.objects.for_tenant(tenant_id)
        activity = rows.filter(pk=row.activity_id).first() if row.activity_id else None
    return (
        _show_form(run, step, *_input_of(tenant_id, activity))
        if activity
        else ReplayForm(run, step, remark=NONE)
    )


NONE = "The step never came to work on anything. Leave both empty to let it begin as usual."
SEVERAL = "It works on what several steps have left. Leave both empty to keep that."
AWAY = "The store of outputs does not answer, so its input cannot be shown. Leave both empty to keep it."
LONG = "Its input is too long to be edited here. Leave both empty to keep it."


def _input_of(tenant_id: UUID, activity: Activity) -> tuple[str | None, Any, str]:
    """Content, data and a remark."""
    input_: Mapping[str, Any] = activity.input or {}
    if input_.get("content") is not None or input_.get("data") is not None:
        return input_.get("content"), input_.get("data"), ""
    refs = list((input_.get("refs") or {}).values()) or ([activity.input_ref] if activity.input_ref else [])
    if len(refs) != 1 or isinstance(refs[0], list):
        return None, None, SEVERAL if refs else ""
    try:
        output = outputs.read(tenant_id, UUID(str(refs[0])))
    except OutputUnavailable:
        return None, None, AWAY
    return (output.content, output.data, "") if output else (None, None, AWAY)


def _show_form(run: PipelineRun, step: str, content: str | None, data: Any, remark: str) -> ReplayForm:
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
        new_input = {"content": content or None, "data": _json(data)}
        body["input"] = {name: value for name, value in new_input.items() if value is not None}
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


# One pipeline run as its page shows it: the picture of its steps as they stand, and each of them in words.


MOST_BRANCHES = 50  # of a step that are listed
MOST_REPLAYS = 20
MOST_EVENTS = 2_000  # that the chart of a run is made of, the newest
MOST_CHART_ROWS = 100
MOST_TOLD = 200  # events of a run that are told in words


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the run."""

    shown: StepRow
    begun: datetime | None
    ended: datetime | None
    who: str
    running: int = 0  # of its branches, when it was fanned out
    cost: Decimal = Decimal(0)

    @property
    def waiting(self) -> int:
        """Of its branches that are not over, those on which nobody works: they wait for their turn, or for people."""
        counts = self.shown.counts
        return max(0, counts.active - self.running) if counts else 0

    @property
    def status(self) -> str:
        run = self.shown.run
        if run.status == StepState.SKIPPED and run.reason == StepReason.CONDITION:
            return "condition_unmet"
        return self.shown.activity_status or run.status

    @property
    def why(self) -> str:
        """Why it was left out, or failed before it came to its activity."""
        run = self.shown.run
        return str((run.error or {}).get("message") or (run.get_reason_display() if run.reason else ""))

    @property
    def duration(self) -> timedelta | None:
        return (self.ended or clock.now()) - self.begun if self.begun else None

    @property
    def branches(self) -> Sequence[tuple[BranchRow, str]]:
        """Each with the name of what it works on."""
        return [(branch, _item_name(branch)) for branch in self.shown.branches]


def _item_name(branch: BranchRow) -> str:
    item = branch.item
    words = (
        subject_of("", item if isinstance(item, Mapping) else {"name": str(item)}) if item is not None else ""
    )
    return words or str(branch.run.branch)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, in the list and on its page."""

    run: PipelineRun

    @property
    def pipeline(self) -> str:
        return self.run.version.pipeline.name or self.run.version.pipeline.key

    @property
    def subject(self) -> str:
        """What it is about, else the name of its pipeline."""
        return subject_of(self.run.name, self.run.params) or self.pipeline

    @property
    def labels(self) -> list[str]:
        """Each as the list is narrowed by it."""
        return [f"{name}:{text}" for name, text in sorted(self.run.labels.items())]

    @property
    def duration(self) -> timedelta:
        return (self.run.finished_at or clock.now()) - self.run.started_at


@dataclass(frozen=True, slots=True)
class Detail(RunView):
    """What the page shows."""

    steps: Sequence[Step]
    picture: SafeString
    replays: Sequence[PipelineRun]
    may_cancel: bool
    may_replay: bool
    chart: SafeString
    history: Sequence[tuple[str, Entry]]
    cost: Decimal
    arguments: Sequence[tuple[str, str]]
    output: UUID | None  # the activity of the last step, once it has one

    @property
    def stands_at(self) -> Sequence[Step]:
        """The steps at which something happens or is asked now."""
        return [step for step in self.steps if tone_of(step.status) in ("live", "ask", "bad")]


def detail(who: Principal, run_id: UUID) -> Detail:
    """Raises `Http404`."""
    with tenant_scope(who.tenant_id):
        run = find_run(who.tenant_id, run_id)
        shown = selectors.steps_of(who.tenant_id, [run], branches=MOST_BRANCHES)[run.pk]
        steps = _steps(who.tenant_id, run, shown)
        costs = _costs_by_step(who.tenant_id, run)
        steps = [replace(step, cost=costs.get(step.shown.run.step, Decimal(0))) for step in steps]
        drawn = _draw_run(run, steps, who.tenant)
        again = PipelineRun.objects.for_tenant(who.tenant_id).filter(replay_of=run_id)
        replays = list(again.only("id", "status", "started_at", "replay_from")[:MOST_REPLAYS])
        names = _name_activities(steps)
        moments = activity_selectors.transitions_of(who.tenant_id, names, MOST_EVENTS)
        arguments = _list_arguments(run)
    operates, running = who.role.includes(Role.OPERATOR), run.status == RunState.RUNNING
    depended_on = {need for step in steps for need in step.shown.needs}
    ends = [step for step in steps if step.shown.run.step not in depended_on and step.shown.run.activity_id]
    return Detail(
        run,
        steps,
        drawn,
        replays,
        operates and running,
        operates and not running,
        chart=_chart(run, names, moments, who.tenant),
        history=_history(names, moments),
        cost=sum(costs.values(), Decimal(0)),
        arguments=arguments,
        output=ends[-1].shown.run.activity_id if ends else None,
    )


def _name_activities(steps: Sequence[Step]) -> dict[UUID, tuple[str, bool]]:
    """The activities of the steps and of their branches, each with its name, and whether a person does it."""
    names: dict[UUID, tuple[str, bool]] = {}
    for step in steps:
        by_person = bool(step.shown.human_role) and not step.shown.agent_role
        if step.shown.run.activity_id:
            names[step.shown.run.activity_id] = (step.shown.name, by_person)
        for branch, item in step.branches:
            if branch.run.activity_id:
                names[branch.run.activity_id] = (f"{step.shown.name}: {item}", by_person)
    return names


def _chart(
    run: PipelineRun,
    names: Mapping[UUID, tuple[str, bool]],
    moments: Mapping[UUID, Sequence[Moment]],
    tenant: str,
) -> SafeString:
    now, query = clock.now(), urlencode({"tenant": tenant})
    rows = [
        ChartRow(
            name,
            f"{reverse('console:activity', args=[pk])}?{query}",
            chart.segments(moments.get(pk, ()), by_person=by_person, now=now),
        )
        for pk, (name, by_person) in names.items()
    ]
    return chart.draw_rows_chart(rows[:MOST_CHART_ROWS], run.started_at)


def _history(
    names: Mapping[UUID, tuple[str, bool]], moments: Mapping[UUID, Sequence[Moment]]
) -> list[tuple[str, Entry]]:
    """What happened to its steps, newest last, each with the name of its step."""
    entries = [(names[pk][0], entry_of(moment)) for pk, several in moments.items() for moment in several]
    return sorted(entries, key=lambda each: each[1].at)[-MOST_TOLD:]


def _list_arguments(run: PipelineRun) -> list[tuple[str, str]]:
    """What it was started with: its parameters and its input, as text."""
    both = (("Parameters", run.params), ("Input", run.input))
    return [
        (name, json.dumps(each, indent=2, ensure_ascii=False)[:LONGEST_SHOWN]) for name, each in both if each
    ]


def _costs_by_step(tenant_id: UUID, run: PipelineRun) -> dict[str, Decimal]:
    own = Activity.objects.for_tenant(tenant_id).filter(pipeline_run_id=run.pk, step__isnull=False)
    return activity_selectors.costs_of(tenant_id, own, "step")


def find_run(tenant_id: UUID, run_id: UUID) -> PipelineRun:
    """Raises `Http404`. In the caller's `tenant_scope`."""
    run = selectors.runs(tenant_id).filter(pk=run_id).first()
    if run is None:
        raise Http404
    return run


def _steps(tenant_id: UUID, run: PipelineRun, shown: Sequence[StepRow]) -> list[Step]:
    ids = {step.run.activity_id for step in shown if step.run.activity_id}
    done_by: Mapping[UUID, Any] = (
        Activity.objects.for_tenant(tenant_id)
        .only("id", "tenant_id", "started_at", "finished_at", "agent_role", "human_role")
        .in_bulk(ids)
        if ids
        else {}
    )
    running = _running_branches(tenant_id, run) if any(step.counts for step in shown) else {}
    steps = [
        _step(step, done_by.get(step.run.activity_id) if step.run.activity_id else None) for step in shown
    ]
    return [replace(step, running=running.get(step.shown.run.step, 0)) for step in steps]


def _running_branches(tenant_id: UUID, run: PipelineRun) -> dict[str, int]:
    """By step: on how many of its branches an agent or a person is at work."""
    branches = StepRun.objects.for_tenant(tenant_id).filter(run_id=run.pk, branch__gt=0)
    busy = Activity.objects.for_tenant(tenant_id).filter(
        pk__in=branches.values("activity_id"), status__in=RUNNING
    )
    return dict(busy.order_by().values_list("step").annotate(count=Count("pk")))


def _step(step: StepRow, activity: Any) -> Step:
    if activity is None:
        return Step(step, None, step.run.settled_at, "")
    who = activity.agent_role or activity.human_role or ""
    return Step(step, activity.started_at, activity.finished_at, who)


def _draw_run(run: PipelineRun, steps: Sequence[Step], tenant: str) -> SafeString:
    try:
        definition = versions.compile_version(run.version_id).definition
    except DefinitionError:
        return SafeString("")  # An old version that the present program cannot read; the steps are listed.
    svg = diagram.draw(
        definition,
        {step.shown.run.step: _picture_of(step, tenant) for step in steps},
        title=f"{definition.name}: {run.status}",
        counts=_counts(steps),
        styled=False,
        widest=PAGE_WIDTH,
    )
    return mark_safe(svg)  # noqa: S308  # `draw` escapes every text and checks every link


def _picture_of(step: Step, tenant: str) -> StepPicture:
    run = step.shown.run
    href = reverse("console:activity", args=[run.activity_id]) if run.activity_id else _branches_of(step)
    ended = step.begun and step.ended
    return StepPicture(
        status=step.status,
        detail=f"{step.duration.total_seconds():.1f} s" if ended and step.duration else "",
        href=f"{href}{'&' if '?' in href else '?'}{urlencode({'tenant': tenant})}" if href else None,
        round=run.round,
    )


def _branches_of(step: Step) -> str:
    """The list of the activities of a step that was fanned out."""
    run = step.shown.run
    if not run.branches:
        return ""
    return f"{reverse('console:activities')}?{urlencode({'q': f'run:{run.run_id} step:{run.step}'})}"


def _counts(steps: Sequence[Step]) -> Counts:
    return {
        step.shown.run.step: {
            "failed": counts.failed,
            "in_progress": step.running,
            "created": step.waiting,
            "done": counts.done,
        }
        for step in steps
        if (counts := step.shown.counts) is not None
    }


# The list of pipeline runs, newest first, narrowed by status and pipeline.


PAGE = 50
MOST_PIPELINES = 200  # that can be chosen from
LONGEST_QUERY = 200  # characters
TONES = ("good", "live", "ask", "bad", "idle", "off")


@dataclass(frozen=True, slots=True)
class Row(RunView):
    """One run of the list."""

    steps: Sequence[StepRow]
    cost: Decimal = Decimal(0)
    waits_for: Sequence[str] = ()  # people by their role, then the roles of agents at work or in their queues

    @property
    def settled(self) -> int:
        return sum(1 for step in self.steps if step.run.status not in ("pending", "active"))

    @property
    def shares(self) -> list[tuple[str, int, int]]:
        """Tone, beginning and width of each part of the bar that says how far it is."""
        counts = Counter(tone_of(step.activity_status or step.run.status) for step in self.steps)
        found, at = [], 0
        for tone in TONES:
            if counts[tone]:
                found.append((tone, at, counts[tone]))
                at += counts[tone]
        return found


@dataclass(frozen=True, slots=True)
class Listing:
    """What the list shows."""

    status: str
    pipeline: str
    rows: Sequence[Row]
    after: Cursor | None
    is_first: bool
    pipelines: Mapping[str, str]
    query: str = ""
    label: str = ""

    @property
    def statuses(self) -> list[tuple[str, str, bool]]:
        known = [("", "All"), *((str(value), str(value).capitalize()) for value in RunState.values)]
        return [(value, words, value == self.status) for value, words in known]

    @property
    def is_narrowed(self) -> bool:
        return bool(self.status or self.pipeline or self.query or self.label)


def listing(
    tenant_id: UUID, status: str, pipeline: str, after: str, query: str = "", label: str = ""
) -> Listing:
    """One page of the runs. Raises `Http404` for a status that there is not: a list that shows too much would mislead."""
    if status and status not in RunState.values:
        raise Http404
    place = Cursor.read(after) if after else None
    query, label = (" ".join(each.replace("\x00", "").split())[:LONGEST_QUERY] for each in (query, label))
    with tenant_scope(tenant_id):
        rows = selectors.runs(tenant_id)
        rows = rows.filter(status=status) if status else rows
        rows = rows.filter(version__pipeline__key=pipeline.replace("\x00", "")) if pipeline else rows
        rows = selectors.search(rows, tenant_id, query) if query else rows
        rows = selectors.with_label(rows, label) if label else rows
        page, following = page_of(rows, "started_at", place, PAGE)
        steps = selectors.steps_of(tenant_id, page)
        costs = selectors.costs_of(tenant_id, page)
        waits = selectors.waits_for(tenant_id, steps)
        known = Pipeline.objects.for_tenant(tenant_id).order_by("key").values_list("key", "name")
        pipelines = dict(known[:MOST_PIPELINES])
    shown = [Row(run, steps[run.pk], costs.get(run.pk, Decimal(0)), waits.get(run.pk, ())) for run in page]
    return Listing(status, pipeline, shown, following, place is None, pipelines, query, label)
