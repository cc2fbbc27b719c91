"""Pages of pipeline runs: the list, one run, and the form that replays one from a step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.db.models import Count, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from activities import outputs
from activities import selectors as activity_selectors
from activities.exceptions import OutputUnavailable
from activities.models import Activity
from activities.selectors import Moment
from activities.states import RUNNING
from console.activities import chart
from console.activities.chart import ChartRow
from console.activities.detail import Entry, entry_of
from console.labels import tone_of
from console.page import PageContext, Refused, id_or_404, page, page_of
from console.pipelines import draw_version
from pipelines import selectors
from pipelines.diagram import Counts
from pipelines.models import Pipeline, PipelineRun, StepRun
from pipelines.models.run import RunState
from pipelines.selectors import BranchRow, StepRow
from pipelines.subjects import subject_of
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal


def _act_on_many(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Cancel or replay several runs. Runs that no longer allow it are skipped and counted."""
    if not visit.who.role.includes(Role.OPERATOR):
        raise Http404
    run_ids = list(dict.fromkeys(id_or_404(pk) for pk in request.POST.getlist("run")[:PAGE]))
    action = request.POST.get("action", "")
    if action not in ("cancel", "replay"):
        raise Http404
    if not run_ids:
        return visit.redirect("Select runs first.", "runs")
    body = {"action": action, "ids": [str(run_id) for run_id in run_ids]}
    reply = visit.call("POST", "/pipeline-runs/bulk/", body)
    if not reply.ok:
        return visit.answer(reply, "", "runs")
    reasons = Counter(skipped["message"] for skipped in reply.data["left_alone"])
    for reason, count in reasons.most_common(3):
        messages.error(request, f"{count} skipped: {reason}")
    done_count = len(reply.data["done"])
    verb = "cancelled" if action == "cancel" else "replayed from the failed step"
    words = f"{done_count} run{'' if done_count == 1 else 's'} {verb}."
    return visit.redirect(words, "runs")


@page("runs", act=_act_on_many)
def list_runs(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Runs, newest first. A POST cancels the selected runs, or replays them from the failed step."""
    parameters = (request.GET.get(name, "") for name in ("status", "pipeline", "after", "q", "label"))
    return visit.render("console/runs/list.html", {"listing": listing(visit.tenant_id, *parameters)})


def _cancel(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    reply = visit.call("POST", f"/pipeline-runs/{run_id}/cancel/", {})
    return visit.answer(reply, "The run was cancelled.", "run", run_id)


@page("runs", act=_cancel)
def one(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    """One run. A POST cancels it."""
    details = detail(visit.who, run_id)
    return visit.render("console/runs/one.html", {"detail": details, "run": details.run})


def _replay(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    # Unchanged input is not sent.
    sent = request.POST
    step = step_of(request)
    before = replay_form(visit.who.tenant_id, run_id, step)
    content, data = _lines(sent.get("content", "")), _lines(sent.get("data", "")).strip()
    body: dict[str, Any] = {"from_step": step}
    if (content, data) not in ((before.content, before.data.strip()), ("", "")):
        new_input = {"content": content or None, "data": _json(data)}
        body["input"] = {name: value for name, value in new_input.items() if value is not None}
    reply = visit.act("POST", f"/pipeline-runs/{run_id}/replay/", body)
    return visit.redirect("The run is being replayed from this step.", "run", reply.data["id"])


@page("runs", act=_replay, least=Role.OPERATOR)
def replay(request: HttpRequest, visit: PageContext, run_id: UUID) -> HttpResponse:
    """The input of a step of an ended run. A POST replays the run from there."""
    form = replay_form(visit.tenant_id, run_id, step_of(request))
    context = {
        "again": form,
        "run": form.run,
        "content": request.POST.get("content", form.content),
        "data": request.POST.get("data", form.data),
    }
    return visit.render("console/runs/replay.html", context)


# Replaying an ended run from one of its steps, perhaps with other input.


LONGEST_SHOWN = 200_000  # characters of an editable input


@dataclass(frozen=True, slots=True)
class ReplayForm:
    """The form with the step's input. `remark` explains why the input is missing."""

    run: PipelineRun
    step: str
    content: str = ""
    data: str = ""
    remark: str = ""


def replay_form(tenant_id: UUID, run_id: UUID, step: str) -> ReplayForm:
    """Return the form for a step. Raises `Http404`. Not inside a transaction, because the input may lie in MongoDB."""
    with tenant_scope(tenant_id):
        run = find_run(tenant_id, run_id)
        steps = StepRun.objects.for_tenant(tenant_id).filter(run_id=run_id, step=step, branch=0)
        row = steps.first_or_raise(Http404())
        rows = Activity.objects.for_tenant(tenant_id)
        activity = rows.filter(pk=row.activity_id).first() if row.activity_id else None
    return (
        _build_form(run, step, *_input_of(tenant_id, activity))
        if activity
        else ReplayForm(run, step, remark=NONE)
    )


NONE = "The step never started, so it has no input yet. Leave both fields empty to let it start as usual."
SEVERAL = "The input of this step comes from several steps. Leave both fields empty to keep it."
AWAY = (
    "The output store does not answer, so the input cannot be displayed. Leave both fields empty to keep it."
)
LONG = "The input is too long to edit here. Leave both fields empty to keep it."


def _input_of(tenant_id: UUID, activity: Activity) -> tuple[str | None, Any, str]:
    """Return the content, the data and a remark."""
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


def _build_form(run: PipelineRun, step: str, content: str | None, data: Any, remark: str) -> ReplayForm:
    written = "" if data is None else json.dumps(data, indent=2, ensure_ascii=False)
    if len(content or "") + len(written) > LONGEST_SHOWN:
        return ReplayForm(run, step, remark=LONG)
    return ReplayForm(run, step, _lines(content or ""), written, remark)


def step_of(request: HttpRequest) -> str:
    """Return the step to replay from, as the form or the address names it."""
    return (request.POST.get("from_step") or request.GET.get("step", "")).replace("\x00", "")


def _json(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"The data is not JSON: {error}", status=400, field="data") from error


def _lines(text: str) -> str:
    """Normalize line ends, so that an unchanged text from a browser compares equal."""
    return text.replace("\r\n", "\n").replace("\x00", "")


MOST_BRANCHES = 50  # listed for a step
MOST_REPLAYS = 20
MOST_EVENTS = 2_000  # the newest, from which the chart is drawn
MOST_CHART_ROWS = 100
MOST_ENTRIES = 200  # of the history


@dataclass(frozen=True, slots=True)
class Step:
    row: StepRow
    running: int  # branches of a fan-out
    cost: Decimal

    @property
    def who(self) -> str:
        return self.row.done_by or self.row.agent_role or self.row.human_role or ""

    @property
    def waiting(self) -> int:
        """The number of open branches that are not running: they are queued, or wait for people."""
        counts = self.row.counts
        return max(0, counts.active - self.running) if counts else 0

    @property
    def why(self) -> str:
        """Why it was skipped, cancelled, or failed before its activity was created."""
        return str((self.row.run.error or {}).get("message") or self.row.reason_detail)

    @property
    def duration(self) -> timedelta | None:
        started = self.row.started_at
        return (self.row.ended_at or clock.now()) - started if started else None

    @property
    def branches(self) -> Sequence[tuple[BranchRow, str]]:
        """Each branch with the name of its item."""
        return [(branch, _item_name(branch)) for branch in self.row.branches]


def _item_name(branch: BranchRow) -> str:
    item = branch.item
    words = (
        subject_of("", item if isinstance(item, Mapping) else {"name": str(item)}) if item is not None else ""
    )
    return words or str(branch.run.branch)


@dataclass(frozen=True, slots=True)
class RunView:
    run: PipelineRun

    @property
    def pipeline(self) -> str:
        return self.run.version.pipeline.name or self.run.version.pipeline.key

    @property
    def subject(self) -> str:
        """The run's subject, else the name of its pipeline."""
        return subject_of(self.run.name, self.run.params) or self.pipeline

    @property
    def labels(self) -> list[str]:
        """The labels as values of the list's filter."""
        return [f"{name}:{text}" for name, text in sorted(self.run.labels.items())]

    @property
    def duration(self) -> timedelta:
        return (self.run.finished_at or clock.now()) - self.run.started_at


@dataclass(frozen=True, slots=True)
class Detail(RunView):
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
    def current_steps(self) -> Sequence[Step]:
        """The steps that are running, wait for people or have failed."""
        return [step for step in self.steps if tone_of(step.row.shown_status) in ("live", "ask", "bad")]


def detail(who: Principal, run_id: UUID) -> Detail:
    """Return the run for its page. Raises `Http404`."""
    with tenant_scope(who.tenant_id):
        run = find_run(who.tenant_id, run_id)
        rows = selectors.steps_of(who.tenant_id, [run], branches=MOST_BRANCHES)[run.pk]
        own = Activity.objects.for_tenant(who.tenant_id).filter(pipeline_run_id=run.pk, step__isnull=False)
        costs = activity_selectors.costs_of(who.tenant_id, own, "step")
        busy = _running_branches(who.tenant_id, run) if any(row.counts for row in rows) else {}
        steps = [Step(row, busy.get(row.run.step, 0), costs.get(row.run.step, Decimal(0))) for row in rows]
        picture = _draw_run(run, steps, who.tenant)
        again = PipelineRun.objects.for_tenant(who.tenant_id).filter(replay_of=run_id)
        replays = list(again.only("id", "status", "started_at", "replay_from")[:MOST_REPLAYS])
        names = _name_activities(steps)
        moments = activity_selectors.transitions_of(who.tenant_id, names, MOST_EVENTS)
        both = (("Parameters", run.params), ("Input", run.input))
        arguments = [
            (name, json.dumps(each, indent=2, ensure_ascii=False)[:LONGEST_SHOWN])
            for name, each in both
            if each
        ]
    operates, running = who.role.includes(Role.OPERATOR), run.status == RunState.RUNNING
    depended_on = {need for step in steps for need in step.row.needs}
    ends = [step for step in steps if step.row.run.step not in depended_on and step.row.run.activity_id]
    # The history of all steps, newest last, each entry with the name of its step.
    entries = [(names[pk][0], entry_of(moment)) for pk, several in moments.items() for moment in several]
    return Detail(
        run,
        steps,
        picture,
        replays,
        operates and running,
        operates and not running,
        chart=_chart(run, names, moments, who.tenant),
        history=sorted(entries, key=lambda each: each[1].at)[-MOST_ENTRIES:],
        cost=sum(costs.values(), Decimal(0)),
        arguments=arguments,
        output=ends[-1].row.run.activity_id if ends else None,
    )


def _name_activities(steps: Sequence[Step]) -> dict[UUID, tuple[str, bool]]:
    """Return the activities of the steps and branches, each with its name and whether a person does it."""
    names: dict[UUID, tuple[str, bool]] = {}
    for step in steps:
        by_person = bool(step.row.human_role) and not step.row.agent_role
        if step.row.run.activity_id:
            names[step.row.run.activity_id] = (step.row.name, by_person)
        for branch, item in step.branches:
            if branch.run.activity_id:
                names[branch.run.activity_id] = (f"{step.row.name}: {item}", by_person)
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


def find_run(tenant_id: UUID, run_id: UUID) -> PipelineRun:
    """Return a run. Raises `Http404`. In the caller's `tenant_scope`."""
    return selectors.runs(tenant_id).filter(pk=run_id).first_or_raise(Http404())


def _running_branches(tenant_id: UUID, run: PipelineRun) -> dict[str, int]:
    branches = StepRun.objects.for_tenant(tenant_id).filter(run_id=run.pk, branch__gt=0)
    busy = Activity.objects.for_tenant(tenant_id).filter(
        pk__in=branches.values("activity_id"), status__in=RUNNING
    )
    return dict(busy.order_by().values_list("step").annotate(count=Count("pk")))


def _draw_run(run: PipelineRun, steps: Sequence[Step], tenant: str) -> SafeString:
    states = {step.row.run.step: step.row.picture(_link_of(step.row.run, tenant)) for step in steps}
    title = f"{run.version.pipeline.name}: {run.status}"
    return draw_version(run.version_id, states, title=title, counts=_counts(steps))


def _link_of(step: StepRun, tenant: str) -> str | None:
    """Return the address of the step's activity, or of the list of a fan-out's activities."""
    chosen = {"tenant": tenant}
    if step.activity_id:
        return f"{reverse('console:activity', args=[step.activity_id])}?{urlencode(chosen)}"
    query = {"q": f"run:{step.run_id} step:{step.step}", **chosen}
    return f"{reverse('console:activities')}?{urlencode(query)}" if step.branches else None


def _counts(steps: Sequence[Step]) -> Counts:
    return {
        step.row.run.step: {
            "failed": counts.failed,
            "in_progress": step.running,
            "created": step.waiting,
            "done": counts.done,
        }
        for step in steps
        if (counts := step.row.counts) is not None
    }


# The list of runs, newest first, filtered by status, pipeline, text and label.


PAGE = 50
MOST_PIPELINES = 200  # in the filter
LONGEST_QUERY = 200  # characters
TONES = ("good", "live", "ask", "bad", "idle", "off")


@dataclass(frozen=True, slots=True)
class Row(RunView):
    steps: Sequence[StepRow]
    cost: Decimal = Decimal(0)
    waits_for: Sequence[str] = ()  # human roles, then the roles of agents that run or are queued

    @property
    def settled(self) -> int:
        return sum(1 for step in self.steps if step.run.status not in ("pending", "active"))

    @property
    def shares(self) -> list[tuple[str, int, int]]:
        """Tone, start and width of each part of the progress bar."""
        counts = Counter(tone_of(step.activity_status or step.run.status) for step in self.steps)
        parts, at = [], 0
        for tone in TONES:
            if counts[tone]:
                parts.append((tone, at, counts[tone]))
                at += counts[tone]
        return parts


def listing(
    tenant_id: UUID, status: str, pipeline: str, after: str, query: str, label: str
) -> dict[str, Any]:
    """Return one page of the runs with its filters. Raises `Http404` for an unknown status, because ignoring it would mislead."""
    if status and status not in RunState.values:
        raise Http404
    query, label = (" ".join(each.replace("\x00", "").split())[:LONGEST_QUERY] for each in (query, label))
    with tenant_scope(tenant_id):
        rows: QuerySet[PipelineRun] = selectors.runs(tenant_id)
        rows = rows.filter(status=status) if status else rows
        rows = rows.filter(version__pipeline__key=pipeline.replace("\x00", "")) if pipeline else rows
        rows = selectors.search(rows, tenant_id, query) if query else rows
        rows = selectors.with_label(rows, label) if label else rows
        page, following = page_of(rows, "started_at", after, PAGE)
        steps = selectors.steps_of(tenant_id, page)
        costs = selectors.costs_of(tenant_id, page)
        waits = selectors.waits_for(tenant_id, steps)
        known = Pipeline.objects.for_tenant(tenant_id).order_by("key").values_list("key", "name")
        pipelines = dict(known[:MOST_PIPELINES])
    return {
        "rows": [
            Row(run, steps[run.pk], costs.get(run.pk, Decimal(0)), waits.get(run.pk, ())) for run in page
        ],
        "after": following,
        "is_first": not after,
        "pipelines": pipelines,
        "statuses": [("", "All"), *((value, value.capitalize()) for value in RunState.values)],
        "status": status,
        "pipeline": pipeline,
        "query": query,
        "label": label,
        "is_narrowed": bool(status or pipeline or query or label),
    }
