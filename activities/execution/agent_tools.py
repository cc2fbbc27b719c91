"""The tools with which an agent asks the orchestrator for something during a run.

A tool acts with the authority of its run and nothing else: in the run's tenant, on the run's activity, while the run is the live one. A
call has one effect however often it is repeated, and a repetition gets the first answer.

An agent asks; people decide. No tool takes a due time, a default outcome, a quorum or voters, none answers or closes what somebody else has
asked, and a question makes wait only what the run's own work consists of, and what a person with the right to do so has granted its role
to hold: `may_hold` of the tenant's settings for the role. A grant changes nothing else: people decide what waits by it, and it waits for
whatever else holds it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db.models import Q

from activities import activity_tree, reassignment, suspension
from activities.decision_rules import GENERAL_ROLE, DecisionRules
from activities.exceptions import ActivityError, KeyReused, QuotaExceeded, RunSuperseded, ToolRefused
from activities.execution import reports
from activities.human_tasks import approvals
from activities.human_tasks.approvals import NewApproval
from activities.models import Activity, ApprovalLink, ToolCall
from activities.models.activity import in_status
from activities.run_tokens import RunToken
from activities.schemas import arguments_of
from activities.states import LIVE, SETTLED, LinkKind, Status
from agents.models import AgentConfig
from tenants.context import tenant_scope
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Bucket
from tenants.models import Channel

logger = logging.getLogger(__name__)

CREATE_APPROVAL = "create_approval"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool answers. `stop` tells the agent that its run is over: it will be started again when there is something new."""

    body: dict[str, Any]
    repeated: bool = field(default=False)


def perform(run: RunToken, tool: str, arguments: Mapping[str, Any], *, key: str = "") -> Answer:
    """Do what the tool is for, once. `key` tells two calls with equal arguments apart; without it they are one.

    `arguments` are validated. Raises `RunSuperseded`, `QuotaExceeded`, `ToolRefused`, `KeyReused`.
    """
    with tenant_scope(run.tenant_id):
        if (answer := find_earlier_answer(run, tool, arguments, key=key)) is not None:
            return answer
        concrete = _with_work_of_scope(run, arguments) if arguments.get("scope") else arguments
        activity_tree.lock(run.tenant_id, _find_moved(run, tool, concrete))
        if (answer := find_earlier_answer(run, tool, arguments, key=key)) is not None:
            return answer  # The same call came twice at once; the lock showed us the first.
        asking = suspension.live(run)
        _refuse_too_many(run)
        if tool in _ALWAYS_ASK or arguments.get("human_role"):
            refuse_flood(asking)
        body = _TOOLS[tool](run, concrete)
        ToolCall.objects.create(
            tenant_id=run.tenant_id, activity_id=run.activity_id, run_id=run.run_id, tool=tool,
            digest=_digest(tool, key, arguments), arguments=_plain(arguments), answer=body,
        )  # fmt: skip
    return Answer(body)


def find_earlier_answer(
    run: RunToken, tool: str, arguments: Mapping[str, Any], *, key: str = ""
) -> Answer | None:
    """The answer to a call of this run that has come before. Raises `KeyReused`. In the caller's `tenant_scope`."""
    calls = ToolCall.objects.for_tenant(run.tenant_id).filter(
        run_id=run.run_id, digest=_digest(tool, key, arguments)
    )
    before = calls.values("answer", "arguments").first()
    if before is None:
        return None
    if before["arguments"] != _plain(arguments):
        raise KeyReused("This Idempotency-Key was used for a different call. Use a new key.")
    return Answer(before["answer"], repeated=True)


def _digest(tool: str, key: str, arguments: Mapping[str, Any]) -> str:
    text = key or orjson.dumps(_plain(arguments), option=orjson.OPT_SORT_KEYS).decode()
    return hashlib.sha256(f"{tool}\x00{'key' if key else 'body'}\x00{text}".encode()).hexdigest()


def _plain(arguments: Mapping[str, Any]) -> Any:
    """As JSON has it."""
    return orjson.loads(orjson.dumps(dict(arguments), default=str))


def _find_moved(run: RunToken, tool: str, arguments: Mapping[str, Any]) -> set[UUID | None]:
    """What the tool may move or count, to be locked before anything is written."""
    ids: set[UUID | None] = {run.activity_id}
    if tool in (suspension.SUBTASK_TOOL, reassignment.TOOL):
        ids.add(activity_tree.tree_of(run.tenant_id, run.activity_id).root)
    if tool == reassignment.TOOL:
        ids |= activity_tree.ids_that_end_with(run.tenant_id, run.activity_id)
    if tool == CREATE_APPROVAL:
        asking = Activity.objects.for_tenant(run.tenant_id).get(pk=run.activity_id)
        ids |= set(_askable(asking, _find_asked_about(run, arguments)))
    return ids


def _refuse_too_many(run: RunToken) -> None:
    most = settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN
    if ToolCall.objects.for_tenant(run.tenant_id).filter(run_id=run.run_id).count() >= most:
        raise QuotaExceeded("tool_calls", f"A run may call tools {most} times, not more.")


def _report_blocker(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    resolution = suspension.report_blocker(
        run,
        blocker_type=arguments["type"],
        message=arguments["message"],
        channel_id=arguments.get("channel_id"),
    )
    return _waits(Status.BLOCKED, resolution)


def _create_subtask(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    blocking = arguments["blocking"]
    if not blocking and (human_role := arguments.get("human_role")):
        task = {"name": arguments["name"], "description": arguments.get("description") or ""}
        same = same_task(suspension.live(run), human_role=human_role, **task)
        if same is not None:
            return _goes_on(same)
    subtask = suspension.create_subtask(
        run, name=arguments["name"], description=arguments.get("description", ""), blocking=blocking,
        agent_role=arguments.get("agent_role"), human_role=arguments.get("human_role"), params=arguments.get("params"),
        options={name: arguments[name] for name in ("model", "max_turns") if name in arguments},
    )  # fmt: skip
    return _waits(Status.AWAITING_SUBTASK, subtask) if blocking else _goes_on(subtask)


def _request_human_review(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    review = suspension.request_review(
        run, question=arguments["question"], content=arguments.get("content"), human_role=arguments.get("human_role")
    )  # fmt: skip
    return _waits(Status.AWAITING_REVIEW, review)


def _create_approval(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    asking = activity_tree.lock(run.tenant_id, [run.activity_id])[run.activity_id]
    activity_ids = _find_asked_about(run, arguments)
    if len(activity_ids) > (most := settings.ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL):
        raise QuotaExceeded("links", f"An agent may ask about {most} activities at once, not more.")
    linked, refused = _sort_out(asking, activity_ids)
    not_granted = _not_granted(asking, arguments.get("scope") or {})
    if not linked:  # nothing would wait for the answer, so nobody is asked
        return {**_goes_on(None), **_holding(asking, activity_ids, (), refused, not_granted)}
    if run.activity_id not in linked and (same := _same_approval(asking, arguments, linked)):
        return {**_goes_on(same), **_holding(asking, activity_ids, linked, refused, not_granted)}
    new = NewApproval(
        type=arguments["type"], title=arguments["title"], description=arguments.get("description", ""),
        human_role=arguments.get("human_role"), rules=DecisionRules(options=tuple(arguments.get("options") or ())),
    )  # fmt: skip
    identity = f"run:{run.run_id}"
    approval = approvals.open_approval(run.tenant_id, new, actor=identity, identity=identity, about=asking)
    approvals.link(run.tenant_id, approval, list(linked.values()), actor=identity, may_hold=linked)
    answer = _goes_on(approval)
    if run.activity_id in linked:
        suspension.suspend(run, "await_review", tool=CREATE_APPROVAL, detail={"approval": str(approval)})
        answer = _waits(Status.AWAITING_REVIEW, approval)
    return {**answer, **_holding(asking, activity_ids, linked, refused, not_granted)}


def _find_asked_about(run: RunToken, arguments: Mapping[str, Any]) -> list[UUID]:
    """Each once, in the order in which they were given; with neither ids nor a scope, it is the run's own activity."""
    named = arguments.get("activity_ids") or []
    return list(dict.fromkeys(named if named or arguments.get("scope") else [run.activity_id]))


#: What a scope may name, and by which column an activity belongs to it.
_SCOPES = {
    "pipelines": "pipeline_id",
    "deliverables": "deliverable_id",
    "roles": "agent_role",
    "groups": "group_key",
}
_NOT_GRANTED = "Nobody has granted your role to hold it."


def _read_grants(asking: Activity) -> Mapping[str, Any]:
    """What people let the role hold beside its own work; nothing unless they have said so."""
    rows = AgentConfig.objects.for_tenant(asking.tenant_id).filter(agent_id=asking.agent_role)
    found: Mapping[str, Any] = rows.values_list("may_hold", flat=True).first() or {}
    return found


def _within(scope: Mapping[str, Any]) -> Q:
    """Agents' work of a scope, or of a grant. An empty one holds nothing."""
    if scope.get("everything") is True:
        return Q(assignee_type="agent")
    found = Q(pk__in=())
    for kind, column in _SCOPES.items():
        if names := scope.get(kind):
            found |= Q(**{f"{column}__in": names})
    return found & Q(assignee_type="agent")


def _with_work_of_scope(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with what the scope comes to at this moment: work that has not ended and that the role may hold, oldest first."""
    asking = Activity.objects.for_tenant(run.tenant_id).get(pk=run.activity_id)
    rows = Activity.objects.for_tenant(run.tenant_id).filter(
        _within(arguments["scope"]), _within(_read_grants(asking)), in_status(*LIVE)
    )
    most = settings.ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL
    found = (
        rows.exclude(pk=run.activity_id).order_by("created_at", "pk").values_list("pk", flat=True)[: most + 1]
    )
    return {**arguments, "activity_ids": [*(arguments.get("activity_ids") or ()), *found]}


def _not_granted(asking: Activity, scope: Mapping[str, Any]) -> list[dict[str, str]]:
    """The members of a scope that the role may not hold as a whole, whether they exist or not."""
    granted = _read_grants(asking) if scope else {}
    if granted.get("everything") is True:
        return []
    return [
        {"scope": kind, "name": str(name), "reason": _NOT_GRANTED}
        for kind in _SCOPES
        for name in scope.get(kind) or ()
        if str(name) not in granted.get(kind, ())
    ]


def _askable(asking: Activity, activity_ids: Sequence[UUID]) -> dict[UUID, bool]:
    """Of what an agent names, what its question may be about; true for what is part of its own work. The others may exist or not."""
    own = activity_tree.own_work(asking.tenant_id, asking, activity_ids)
    if (others := [one for one in activity_ids if one not in own]) and (granted := _read_grants(asking)):
        rows = Activity.objects.for_tenant(asking.tenant_id).filter(_within(granted), pk__in=others)
        own |= dict.fromkeys(rows.values_list("pk", flat=True), False)
    return own


def _same_approval(asking: Activity, arguments: Mapping[str, Any], linked: Iterable[UUID]) -> UUID | None:
    return same_approval(
        asking, kind=arguments["type"], name=arguments["title"], description=arguments.get("description") or "",
        human_role=arguments.get("human_role") or GENERAL_ROLE, linked=linked,
    )  # fmt: skip


#: Neither has it begun, or an answer must come before it goes on.
_WAITS = (Status.CREATED, Status.AWAITING_REVIEW)
#: The same for what belongs to somebody else and for what does not exist.
NOT_OWN = "It is not of this run's work."
_BY_A_PERSON = "A person does it, and decides when."


def _sort_out(asking: Activity, activity_ids: Sequence[UUID]) -> tuple[dict[UUID, Activity], dict[UUID, str]]:
    """Of what an agent names: what its question may be about, locked, and why it is not about the others.

    That is its own activity, its subtasks at any depth, and what waits of its pipeline run, its deliverable and what its role was granted.
    """
    own = _askable(asking, activity_ids)
    rows = activity_tree.lock(asking.tenant_id, own)
    refused = {
        activity_id: why for activity_id, row in rows.items() if (why := _why_not(row, is_part=own[activity_id]))
    }  # fmt: skip
    return {pk: row for pk, row in rows.items() if pk not in refused}, refused


def _why_not(activity: Activity, *, is_part: bool) -> str:
    """What keeps a question of an agent from being about work that is its own; empty when nothing does."""
    if activity.assignee_type != "agent":
        return _BY_A_PERSON
    if activity.status in SETTLED or (not is_part and activity.status not in _WAITS):
        return f"It is {activity.status}."
    return ""


#: Why what a question is about does not wait for it alone.
_NOT_HELD: dict[str, str] = {
    Status.ASSIGNED: "It is {}, and goes on.",
    Status.IN_PROGRESS: "It is {}, and goes on.",
    Status.BLOCKED: "It is {}. It goes on when that is over and people have decided.",
    Status.AWAITING_SUBTASK: "It is {}. It goes on when that is over and people have decided.",
}


def _holding(
    asking: Activity,
    activity_ids: Sequence[UUID],
    linked: Iterable[UUID],
    refused: Mapping[UUID, str],
    not_granted: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """What an agent is told about what it named: what waits for people now, and why the rest does not."""
    rows = Activity.objects.for_tenant(asking.tenant_id).filter(pk__in=list(linked))
    now = dict(rows.values_list("pk", "status"))
    held = [pk for pk in activity_ids if now.get(pk) == Status.AWAITING_REVIEW]
    reasons = {pk: _NOT_HELD.get(status, "It is {}.").format(status) for pk, status in now.items()}
    reasons |= refused
    return {
        "held": [str(pk) for pk in held],
        "not_held": [
            *({"id": str(pk), "reason": reasons.get(pk, NOT_OWN)} for pk in activity_ids if pk not in held),
            *not_granted,
        ],
    }


def _reassign_task(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    successor = reassignment.reassign_by_agent(
        run,
        reason=arguments["reason"],
        agent_role=arguments.get("agent_role"),
        human_role=arguments.get("human_role"),
    )
    return _waits(Status.REASSIGNED, successor)


def _waits(status: Status, created: UUID) -> dict[str, Any]:
    return {"id": str(created), "status": status.value, "stop": True}


def _goes_on(created: UUID | None) -> dict[str, Any]:
    return {"id": str(created) if created else None, "status": Status.IN_PROGRESS.value, "stop": False}


_TOOLS: dict[str, Callable[[RunToken, Mapping[str, Any]], dict[str, Any]]] = {
    suspension.BLOCKER_TOOL: _report_blocker,
    suspension.SUBTASK_TOOL: _create_subtask,
    suspension.REVIEW_TOOL: _request_human_review,
    CREATE_APPROVAL: _create_approval,
    reassignment.TOOL: _reassign_task,
}
#: The tools that put something into the inbox in any case; the others do when they name a person.
_ALWAYS_ASK = frozenset({suspension.BLOCKER_TOOL, suspension.REVIEW_TOOL, CREATE_APPROVAL})
NAMES = tuple(_TOOLS)


# The one way by which an agent's call reaches a tool, whether it came over HTTP or from an adapter in a worker.
#
# What an agent says is untrusted: its arguments are read by the letter, and what they name must be its tenant's. Only then is it called.


def receive_call(run: RunToken, tool: str, body: Any, *, key: str = "") -> Answer:
    """One call. `key` tells two calls with equal bodies apart.

    Raises REST framework's `ValidationError` naming every error of the body, `reports.RunOver`, and what `perform` raises.
    """
    try:
        return _call_once(run, tool, body, key)
    except (ToolRefused, QuotaExceeded) as refusal:
        # Honest agents seldom meet these. Many of them from one role are how a hijacked one looks.
        logger.warning(
            "Tool refused",
            extra={"action": "tool_refused", "tool": tool, "code": refusal.code, "run": str(run.run_id), **_quota_of(refusal)},
        )  # fmt: skip
        raise


def _quota_of(refusal: ActivityError) -> dict[str, Any]:
    """Which quota it was, if it was one."""
    return dict(getattr(refusal, "problem_members", {}))


def _call_once(run: RunToken, tool: str, body: Any, key: str) -> Answer:
    refuse_hammering(run.run_id)
    arguments = arguments_of(tool, body)
    with tenant_scope(run.tenant_id):
        answer = find_earlier_answer(run, tool, arguments, key=key)
    if answer is not None:
        return answer
    _refuse_unknown(run, arguments)
    try:
        return perform(run, tool, arguments, key=key)
    except RunSuperseded as error:
        raise reports.run_over(run) from error


def _refuse_unknown(run: RunToken, arguments: Mapping[str, Any]) -> None:
    """Look at what the arguments name. Raises `ToolRefused` for what is not the tenant's."""
    with tenant_scope(run.tenant_id):
        channel = arguments.get("channel_id")
        if channel and not Channel.objects.for_tenant(run.tenant_id).filter(pk=channel).exists():
            raise ToolRefused(f"There is no channel {channel}.")


# How often the agent of one run may call tools, refused calls included.
#
# A quota counts what came of calls; a call that is refused costs statements all the same. This bound is asked of Redis alone, before
# anything else, so that an agent that repeats what is refused keeps nobody waiting. Where Redis does not answer at once, calls pass
# unmeasured.


PATIENCE_SECONDS = 0.05
_breaker = Breaker(seconds=5.0)


def refuse_hammering(run_id: UUID) -> None:
    """Raise `QuotaExceeded` when the run has made far more calls than any useful run makes."""
    if _breaker.is_open():
        return
    bucket = Bucket(
        name=f"tools:{run_id}",
        rate=settings.ORCHESTRATOR_TOOL_RATE,
        burst=settings.ORCHESTRATOR_TOOL_BURST,
        timeout_seconds=PATIENCE_SECONDS,
    )
    try:
        decision = bucket.take()
    except LimiterUnavailable:
        _breaker.trip()
        return
    if not decision.allowed:
        raise QuotaExceeded("rate", "This run calls tools faster than anybody answers. Slow down.")


# What agents may put into the inbox: so many open items for each tenant and role, and the same question only once.
#
# People answer questions one by one; an agent asks them by the thousand. What it asks beyond the quota is refused, so that what others
# ask stays visible. What it asks again while the first is open is that first one.


#: What agents ask of people with tools. A gate is not among them: anyone who submitted the work has asked for it.
ASKED = (
    LinkKind.REVIEW,
    LinkKind.RESOLUTION,
    LinkKind.APPROVAL,
    LinkKind.SUBTASK,
    LinkKind.REASSIGNED_FROM,
)
_OPEN = (Status.CREATED, Status.IN_PROGRESS)


def refuse_flood(asking: Any) -> None:
    """Raise `QuotaExceeded` when agents of the role of `asking`, a row of Activity, have put enough into the tenant's inbox.

    Calls that come at once may each find the last place free, so there can be as many more as calls are under way.
    """
    most = settings.ORCHESTRATOR_OPEN_ITEMS_PER_AGENT
    rows = Activity.objects.for_tenant(asking.tenant_id).filter(
        in_status(*_OPEN),
        assignee_type="human",
        link_kind__in=ASKED,
        parent__tenant_id=asking.tenant_id,
        parent__agent_role=asking.agent_role,
    )
    if rows.order_by().values("pk")[:most].count() >= most:
        raise QuotaExceeded(
            "inbox", f"Agents of the role {asking.agent_role} may have {most} open questions to people."
        )


def same_task(asking: Activity, *, name: str, description: str, human_role: str) -> UUID | None:
    """A person's subtask that the same activity has asked for in the same words and that is still open."""
    return _first(asking, LinkKind.SUBTASK, name, description, human_role)


def same_approval(
    asking: Activity, *, kind: str, name: str, description: str, human_role: str, linked: Iterable[UUID]
) -> UUID | None:
    """An approval of that type over the same activities that the same activity has asked for in the same words and that is still open."""
    found = _first(asking, LinkKind.APPROVAL, name, description, human_role, metadata__approval_type=kind)
    if found is None:
        return None
    links = ApprovalLink.objects.for_tenant(asking.tenant_id).filter(approval_id=found)
    return found if set(links.values_list("activity_id", flat=True)) == set(linked) else None


def _first(
    asking: Activity, kind: LinkKind, name: str, description: str, human_role: str, **more: Any
) -> UUID | None:
    rows = Activity.objects.for_tenant(asking.tenant_id).filter(
        parent_id=asking.pk,
        link_kind=kind,
        status__in=_OPEN,
        name=name,
        description=description,
        human_role=human_role,
        **more,
    )
    found: UUID | None = rows.order_by("created_at").values_list("pk", flat=True).first()
    return found
