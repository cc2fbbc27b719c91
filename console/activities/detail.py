"""The page of one activity: time breakdown, attempts, wakes, tool calls, child activities, history, prompt and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from activities import activity_tree, reassignment, run_logs, selectors, wait_reasons
from activities.api.allowed_actions import list_possible_actions
from activities.api.run_callbacks import job_again
from activities.exceptions import OutputUnavailable
from activities.models import Activity, ActivityRun, WorkerProcess
from activities.run_logs import NumberedLine
from activities.run_tokens import RunToken
from activities.selectors import Moment
from activities.states import WAITING, LinkKind, RunStatus, Status
from agents import configuration
from agents.exceptions import AgentError
from console.activities import chart
from console.activities.chart import Segment, segments
from console.activities.listing import read_assignee
from console.inbox.detail import Reader, Source, Text
from console.labels import cost_in, name_actor, past_tense, text_of_event, tokens_in
from console.live import requested_parts
from console.page import PageContext, Refused, number_in, page
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.principals import Principal

MOST_CHILDREN = 50
MOST_MARKS = 200
MOST_MEMBERS = 6  # of an agent's progress report
TAIL_LINES = 200  # of a log on the page of its activity
PAGE_LINES = 500
LONG_LINE = 600  # characters
OPERATIONS = ("cancel", "retry", "reassign", "run-now")
LONGEST_NUMBER = 17  # digits
DONE = {
    "cancel": "The activity was cancelled.",
    "retry": "The activity is being retried.",
    "reassign": "The activity was reassigned.",
    "run-now": "The activity runs before all other work, ignoring pauses and dates.",
}
CHANGED = "The activity has changed since you loaded the page. Check its current state; nothing was done."


def _act(request: HttpRequest, visit: PageContext, activity_id: UUID) -> HttpResponse:
    """Perform an action, if the activity's version is still the displayed one. Redirect to the activity, or its successor."""
    sent = request.POST
    action, version = sent.get("action", ""), number_in(sent.get("version", ""))
    if action not in DONE or version is None:
        raise Refused("Choose an action.", status=400)
    body: dict[str, Any] = {"reason": sent["reason"]} if action != "retry" and "reason" in sent else {}
    if action == "reassign":
        body |= read_assignee(sent)
    path = f"/activities/{activity_id}/{action}/"
    reply = visit.act("POST", path, body, version=version, changed=CHANGED)
    return visit.redirect(DONE[action], "activity", reply.data["id"])


@page("activities", act=_act)
def one(request: HttpRequest, visit: PageContext, activity_id: UUID) -> HttpResponse:
    """One activity. A POST cancels, retries, reassigns or runs it now."""
    parts = requested_parts(request) or frozenset()
    if request.method != "POST" and parts and parts <= {"running", "log"}:
        return _run_alone(visit, activity_id, with_log="log" in parts)
    details = detail(visit.who, activity_id)
    context = {
        "detail": details,
        "watched": details.watched,
        "log": tail_of(visit.tenant_id, details.watched.run) if "log" in parts and details.watched else None,
        "activity": details.activity,
        "agent_roles": sorted(configuration.list_roles()) if details.may_be_agents else (),
        "sent": request.POST if visit.refusal else {},
    }
    return visit.render("console/activities/one.html", context)


def _run_alone(visit: PageContext, activity_id: UUID, *, with_log: bool) -> HttpResponse:
    """Render only the parts that change often while an agent works."""
    activity, run = read_watched(visit.tenant_id, activity_id)
    log = tail_of(visit.tenant_id, run.run) if with_log and run is not None else None
    context = {"activity": activity, "watched": run, "log": log}
    return visit.render("console/activities/running.html", context)


@page("activities")
def show_full_log(request: HttpRequest, visit: PageContext, activity_id: UUID, run_id: UUID) -> HttpResponse:
    """The whole transcript of a run, page by page."""
    after = number_in(request.GET.get("after", ""), LONGEST_NUMBER) or 0
    activity, log = log_of(visit.tenant_id, activity_id, run_id, after)
    return visit.render("console/activities/log.html", {"activity": activity, "log": log})


@page("activities")
def both_texts(request: HttpRequest, visit: PageContext, activity_id: UUID) -> HttpResponse:
    """The prompt and output of a run."""
    details = texts(visit.tenant_id, activity_id, request.GET.get("run", ""))
    return visit.render("console/activities/texts.html", {"texts": details, "activity": details.activity})


@dataclass(frozen=True, slots=True)
class Entry:
    at: datetime
    words: str
    more: str


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run of an activity. `alive_at` is the last heartbeat of its agent, or else of its worker."""

    run: ActivityRun
    requested_model: str = ""
    alive_at: datetime | None = None

    @property
    def goes_on(self) -> bool:
        return bool(self.run.status == RunStatus.RUNNING)

    @property
    def percent(self) -> int | None:
        """The percentage that the agent reports, if it is a number."""
        percent = self._progress.get("percent")
        if isinstance(percent, bool) or not isinstance(percent, int | float):
            return None
        return min(100, max(0, int(percent)))

    @property
    def message(self) -> str:
        if isinstance(self.run.progress, str):
            return run_logs.plain(self.run.progress)
        message = next((self._progress[name] for name in ("message", "stage") if name in self._progress), "")
        return run_logs.plain(str(message)) if isinstance(message, str | int | float) else ""

    @property
    def more(self) -> list[tuple[str, str]]:
        """The other short members of its progress report."""
        others = {k: v for k, v in self._progress.items() if k not in ("percent", "message", "stage")}
        plain = {k: v for k, v in others.items() if isinstance(v, str | int | float)}
        return [(run_logs.plain(k), run_logs.plain(str(v))) for k, v in list(plain.items())[:MOST_MEMBERS]]

    @property
    def _progress(self) -> Mapping[str, Any]:
        return self.run.progress if isinstance(self.run.progress, Mapping) else {}

    @property
    def model(self) -> str:
        return str((self.run.usage or {}).get("model") or self.requested_model)

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens so far."""
        return tokens_in(self.run.usage)

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens)

    @property
    def cost(self) -> Decimal:
        return cost_in(self.run.usage)

    @property
    def duration(self) -> Any:
        return (self.run.ended_at or clock.now()) - self.run.started_at


@dataclass(frozen=True, slots=True)
class ShownLine:
    """One line of a log as a page displays it; long lines are collapsed."""

    line: NumberedLine

    @property
    def text(self) -> str:
        return run_logs.plain(self.line.text)

    @property
    def is_long(self) -> bool:
        return len(self.text) > LONG_LINE


@dataclass(frozen=True, slots=True)
class ShownLog:
    """A part of a run's log. `before` is the number of earlier lines, `following` the cursor of the next page."""

    run: ActivityRun
    lines: Sequence[ShownLine]
    before: int = 0
    following: int | None = None
    away: bool = False


@dataclass(frozen=True, slots=True)
class Detail:
    """The activity as its page displays it."""

    activity: Activity
    reason: wait_reasons.Waiting
    moments: Sequence[Moment]
    children: Sequence[Activity]
    actions: Sequence[str]
    watched: ShownRun | None
    open_question: Activity | None = None  # the item that people have to answer
    may_be_agents: bool = False  # whether it can be reassigned to an agent
    human_roles: Sequence[str] = ()  # the known ones to which it can be reassigned

    @property
    def is_for_people(self) -> bool:
        return self.activity.assignee_type == "human"

    @property
    def role(self) -> str:
        return self.activity.agent_role or self.activity.human_role or ""

    @property
    def segments(self) -> list[Segment]:
        reason_now = self.reason.detail if self.reason.code else ""
        return segments(self.moments, by_person=self.is_for_people, now=clock.now(), reason_now=reason_now)

    @property
    def picture(self) -> SafeString:
        marked = [
            (moment.at, _mark_moment(moment))
            for moment in self.moments
            if moment.kind in ("wake", "tool_call")
        ]
        return chart.draw_chart(self.segments, marked[:MOST_MARKS])

    @property
    def attempts(self) -> list[ShownRun]:
        return [ShownRun(moment.row) for moment in reversed(self.moments) if moment.kind == "run"]

    @property
    def wakes(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.kind == "wake"]

    @property
    def tool_calls(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.kind == "tool_call"]

    @property
    def history(self) -> list[Entry]:
        return [
            entry_of(moment) for moment in self.moments if moment.kind in ("transition", "vote", "deadline")
        ]


def detail(who: Principal, activity_id: UUID) -> Detail:
    """Return the activity for its page. Raises `Http404`. Not inside a transaction, because it may query Redis."""
    with tenant_scope(who.tenant_id):
        rows = Activity.objects.for_tenant(who.tenant_id)
        activity = rows.filter(pk=activity_id).select_related("parent").first_or_raise(Http404())
        newest_first = rows.filter(parent_id=activity_id).order_by("-created_at", "-pk")
        moments = selectors.timeline(who.tenant_id, activity_id)
        runs = [moment.row for moment in moments if moment.kind == "run"]
        reason = wait_reasons.explain_many(who.tenant_id, [activity])[activity_id]
        actions = _actions(who, activity)
        is_reassignable = "reassign" in actions
        children = list(newest_first.defer("input", "params", "metadata")[:MOST_CHILDREN])
        details = Detail(
            activity=activity,
            reason=reason,
            moments=moments,
            children=children,
            actions=actions,
            watched=_build_watched(runs[-1] if runs else None, activity),
            open_question=_open_question(activity, children),
            may_be_agents=is_reassignable and not reassignment.why_no_agent(activity),
            human_roles=selectors.list_human_roles(who.tenant_id) if is_reassignable else (),
        )
    return replace(details, reason=wait_reasons.add_queue_position(activity, reason))


def read_watched(tenant_id: UUID, activity_id: UUID) -> tuple[Activity, ShownRun | None]:
    """Return the activity and its newest run. Raises `Http404`."""
    with tenant_scope(tenant_id):
        activity = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first_or_raise(Http404())
        runs = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity_id)
        return activity, _build_watched(runs.order_by("-started_at", "-pk").first(), activity)


def tail_of(tenant_id: UUID, run: ActivityRun) -> ShownLog:
    """Return the end of a run's log. Not inside a transaction."""
    try:
        page = run_logs.tail(tenant_id, run.pk, TAIL_LINES)
    except OutputUnavailable:
        return ShownLog(run, (), away=True)
    before = page.lines[0].number - 1 if page.lines else 0
    return ShownLog(run, [ShownLine(line) for line in page.lines], before=before)


def log_of(tenant_id: UUID, activity_id: UUID, run_id: UUID, after: int) -> tuple[Activity, ShownLog]:
    """Return a page of a run's log. Raises `Http404`. Not inside a transaction."""
    with tenant_scope(tenant_id):
        runs = ActivityRun.objects.for_tenant(tenant_id).filter(pk=run_id, activity_id=activity_id)
        run = runs.select_related("activity").first_or_raise(Http404())
    try:
        page = run_logs.read(tenant_id, run_id, after=after, limit=PAGE_LINES)
    except OutputUnavailable:
        return run.activity, ShownLog(run, (), away=True)
    lines = [ShownLine(line) for line in page.lines]
    return run.activity, ShownLog(run, lines, before=after, following=page.cursor if page.more else None)


def _build_watched(run: ActivityRun | None, activity: Activity) -> ShownRun | None:
    if run is None:
        return None
    alive_at = run.beat_at
    if run.status == RunStatus.RUNNING and alive_at is None and run.worker_id is not None:
        worker = WorkerProcess.objects.filter(pk=run.worker_id)
        alive_at = worker.values_list("beat_at", flat=True).first()
    return ShownRun(run, str((activity.agent_options or {}).get("model") or ""), alive_at)


def _actions(who: Principal, activity: Activity) -> list[str]:
    if not who.role.includes(Role.OPERATOR):
        return []
    possible = list_possible_actions(who.tenant_id, [activity])[activity.pk]
    return [name for name in possible if name in OPERATIONS]


#: Children that people answer.
_ANSWERED = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.RESOLUTION, LinkKind.SUBTASK, LinkKind.ESCALATION)


def _open_question(activity: Activity, children: Sequence[Activity]) -> Activity | None:
    """Return the open item that people have to answer: the activity itself, what it waits for, or else its newest question."""
    candidates: Sequence[Activity] = [child for child in children if child.link_kind in _ANSWERED]
    if activity.assignee_type == "human":
        candidates = [activity]
    elif activity.status in WAITING and activity.status != Status.AWAITING_APPROVAL:
        # Somebody else may have asked, or got the question from the person who was asked first.
        candidates = activity_tree.counterparts_of(activity.tenant_id, [activity])[activity.pk]
    return next(
        (one for one in candidates if one.assignee_type == "human" and one.status in activity_tree.OPEN), None
    )


def _mark_moment(moment: Moment) -> str:
    if moment.kind == "tool_call":
        return f"Its agent called {moment.facts['tool']}"
    return f"Woken: {moment.facts['reason'].replace('_', ' ')}"


def entry_of(moment: Moment) -> Entry:
    """Return the history entry of a transition, a vote or a deadline."""
    facts = moment.facts
    if moment.kind == "vote":
        return Entry(
            moment.at, f"{name_actor(facts['actor'])} voted: {facts['decision']}", facts["notes"] or ""
        )
    if moment.kind == "deadline":
        return Entry(moment.at, f"Deadline: {facts['deadline'].replace('_', ' ')}", facts["human_role"] or "")
    more = text_of_event(facts["detail"], ("reason", "message", "notes", "note"))
    return Entry(moment.at, f"{name_actor(facts['actor'])} {past_tense(facts['verb'])}", more)


# The prompt and output of a run, side by side.

LONGEST_PROMPT = 300_000  # displayed characters


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts that a run was given and those that it produced."""

    activity: Activity
    run: ActivityRun | None
    prompts: Sequence[Text]
    results: Sequence[Text]


def texts(tenant_id: UUID, activity_id: UUID, run_id: str = "") -> Texts:
    """Return the texts of the named run, else of the one whose output counts, else of the last one.

    Raises `Http404`. Not inside a transaction.
    """
    with tenant_scope(tenant_id):
        activity = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first_or_raise(Http404())
        run = _run(tenant_id, activity, run_id)
        edited = _was_edited(tenant_id, activity)
    reader = Reader(tenant_id)
    if run is None:
        sources = [Source("Submitted result", output_id=activity.output_ref)] if activity.output_ref else []
        input_ = activity.input or {}
        prompts = [
            Source("Description", activity.description or None),
            Source("Input", input_.get("content"), input_.get("data")),
            Source("Parameters", data=activity.params or None),
        ]
        return Texts(activity, None, reader.texts(prompts), reader.texts(sources))
    sources = (
        [Source("Output", output_id=run.pk)]
        if run.status == RunStatus.COMPLETED and not run.ended_by_tool
        else []
    )
    if edited:
        sources.append(
            Source(f"Edited and approved by {name_actor(activity.decided_by)}", output_id=activity.output_ref)
        )
    return Texts(activity, run, [_prompt(tenant_id, run)], reader.texts(sources))


def _run(tenant_id: UUID, activity: Activity, run_id: str) -> ActivityRun | None:
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity.pk)
    if run_id:
        try:
            named: ActivityRun | None = rows.filter(pk=UUID(run_id)).first()
        except ValueError:
            named = None
        if named is None:
            raise Http404
        return named
    runs = list(rows.order_by("-started_at", "-pk"))
    return next((run for run in runs if run.pk == activity.output_ref), runs[0] if runs else None)


def _was_edited(tenant_id: UUID, activity: Activity) -> bool:
    """Return whether a person edited the output before approving it, so that no run produced it."""
    if activity.assignee_type != "agent" or activity.status != Status.APPROVED or activity.output_ref is None:
        return False
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity.pk)
    return not runs.filter(pk=activity.output_ref).exists()


def _prompt(tenant_id: UUID, run: ActivityRun) -> Text:
    """Rebuild the prompt from the stored data of the run; the prompt itself is not stored."""
    token = RunToken(tenant_id, run.activity_id, run.pk, run.fence)
    try:
        prompt = str(job_again(token, run)["prompt"])
    except OutputUnavailable:
        return Text("Prompt", remark="The output store does not answer. Reload the page in a moment.")
    except AgentError as error:
        return Text("Prompt", remark=f"The prompt can no longer be rebuilt: {error}")
    cut = len(prompt) - LONGEST_PROMPT
    return Text(
        "Prompt",
        plain=prompt[:LONGEST_PROMPT],
        remark=f"{cut} more characters are not displayed." if cut > 0 else "",
    )
