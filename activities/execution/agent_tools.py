"""Agent tools: the requests that an agent may make to the orchestrator during a run.

A tool has only the authority of its run: it acts in the run's tenant, on the run's activity, while the run is the live one. A call takes
effect once. Repeating it returns the first answer.

Agents ask and people decide. No tool takes a due time, a default outcome, a quorum or voters, and no tool answers or closes a question.
A question may hold the run's own work, and the work that a person has allowed the role to hold (`may_hold` in the tenant's settings for the
role). People decide about work that is held in this way as about any other, and other reasons to wait still apply to it.
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
from rest_framework.exceptions import ValidationError

from activities import activity_tree, reassignment, suspension
from activities.decision_rules import GENERAL_ROLE, DecisionRules
from activities.exceptions import KeyReused, QuotaExceeded, RunSuperseded, ToolRefused
from activities.execution import reports
from activities.human_tasks import approvals
from activities.human_tasks.approvals import NewApproval
from activities.models import Activity, ApprovalLink, ToolCall
from activities.models.activity import in_status
from activities.run_tokens import RunToken
from activities.schemas import arguments_of
from activities.states import LIVE, SETTLED, LinkKind, Status
from agents.models import AgentConfig
from tenants import wire_json
from tenants.context import tenant_scope
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Bucket
from tenants.models import Channel

logger = logging.getLogger(__name__)

CREATE_APPROVAL = "create_approval"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a tool. `stop` in its body tells the agent that its run is over and that it will be started again later."""

    body: dict[str, Any]
    repeated: bool = field(default=False)


def perform(run: RunToken, tool: str, arguments: Mapping[str, Any], *, key: str = "") -> Answer:
    """Perform a call once. `key` distinguishes calls with equal arguments; without it they are the same call.

    `arguments` must be validated. Raises `RunSuperseded`, `QuotaExceeded`, `ToolRefused`, `KeyReused`.
    """
    with tenant_scope(run.tenant_id):
        if (answer := find_earlier_answer(run, tool, arguments, key=key)) is not None:
            return answer
        concrete = _with_work_of_scope(run, arguments) if arguments.get("scope") else arguments
        activity_tree.lock(run.tenant_id, _find_affected(run, tool, concrete))
        if (answer := find_earlier_answer(run, tool, arguments, key=key)) is not None:
            return answer  # The same call came twice at once, and the lock made us wait for the first.
        asking = activity_tree.lock_live(run)
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
    """Return the answer to an earlier equal call of this run, or None. Raises `KeyReused`. Needs a `tenant_scope`."""
    calls = ToolCall.objects.for_tenant(run.tenant_id).filter(
        run_id=run.run_id, digest=_digest(tool, key, arguments)
    )
    before = calls.values("answer", "arguments").first()
    if before is None:
        return None
    if wire_json.narrow(before["arguments"]) != _plain(arguments):
        raise KeyReused("This Idempotency-Key was used for a different call. Use a new key.")
    return Answer(before["answer"], repeated=True)


def _digest(tool: str, key: str, arguments: Mapping[str, Any]) -> str:
    text = key or orjson.dumps(_plain(arguments), option=orjson.OPT_SORT_KEYS).decode()
    return hashlib.sha256(f"{tool}\x00{'key' if key else 'body'}\x00{text}".encode()).hexdigest()


def _plain(arguments: Mapping[str, Any]) -> Any:
    return orjson.loads(orjson.dumps(dict(arguments), default=str))


def _find_affected(run: RunToken, tool: str, arguments: Mapping[str, Any]) -> set[UUID | None]:
    """Return the activities that the tool may move or count. They must be locked before anything is written."""
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
        raise QuotaExceeded("tool_calls", f"A run may call tools at most {most} times.")


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
        asking = activity_tree.lock_live(run)
        if same := _first_open(asking, LinkKind.SUBTASK, arguments["name"], arguments, human_role):
            return _continues(same)
    subtask = suspension.create_subtask(
        run, name=arguments["name"], description=arguments.get("description", ""), blocking=blocking,
        agent_role=arguments.get("agent_role"), human_role=arguments.get("human_role"), params=arguments.get("params"),
        options={name: arguments[name] for name in ("model", "max_turns") if name in arguments},
    )  # fmt: skip
    return _waits(Status.AWAITING_SUBTASK, subtask) if blocking else _continues(subtask)


def _request_human_review(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    review = suspension.request_review(
        run, question=arguments["question"], content=arguments.get("content"), human_role=arguments.get("human_role")
    )  # fmt: skip
    return _waits(Status.AWAITING_REVIEW, review)


def _create_approval(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    asking = activity_tree.lock(run.tenant_id, [run.activity_id])[run.activity_id]
    activity_ids = _find_asked_about(run, arguments)
    if len(activity_ids) > (most := settings.ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL):
        raise QuotaExceeded("links", f"An agent may ask about at most {most} activities at once.")
    linked, refused = _sort_out(asking, activity_ids)
    not_granted = _not_granted(asking, arguments.get("scope") or {})
    if not linked:  # nothing would wait for the answer, so no question is opened
        return {**_continues(None), **_holding(asking, activity_ids, (), refused, not_granted)}
    if run.activity_id not in linked and (same := _same_approval(asking, arguments, linked)):
        return {**_continues(same), **_holding(asking, activity_ids, linked, refused, not_granted)}
    new = NewApproval(
        type=arguments["type"], title=arguments["title"], description=arguments.get("description", ""),
        human_role=arguments.get("human_role"), rules=DecisionRules(options=tuple(arguments.get("options") or ())),
    )  # fmt: skip
    identity = f"run:{run.run_id}"
    approval = approvals.open_approval(run.tenant_id, new, actor=identity, identity=identity, about=asking)
    approvals.link(run.tenant_id, approval, list(linked.values()), actor=identity)
    answer = _continues(approval)
    if run.activity_id in linked:
        suspension.suspend(run, "await_review", tool=CREATE_APPROVAL, detail={"approval": str(approval)})
        answer = _waits(Status.AWAITING_REVIEW, approval)
    return {**answer, **_holding(asking, activity_ids, linked, refused, not_granted)}


def _find_asked_about(run: RunToken, arguments: Mapping[str, Any]) -> list[UUID]:
    """Return the distinct ids in the given order. Without ids and scope, it is the run's own activity."""
    ids = arguments.get("activity_ids") or []
    return list(dict.fromkeys(ids if ids or arguments.get("scope") else [run.activity_id]))


#: The members of a scope, and the column of an activity that each one selects by.
_SCOPES = {
    "pipelines": "pipeline_id",
    "deliverables": "deliverable_id",
    "roles": "agent_role",
    "groups": "group_key",
}
_NOT_GRANTED = "Your role is not allowed to hold it."


def _read_grants(asking: Activity) -> Mapping[str, Any]:
    """Return what the role may hold in addition to its own work. By default nothing."""
    rows = AgentConfig.objects.for_tenant(asking.tenant_id).filter(agent_id=asking.agent_role)
    return rows.values_list("may_hold", flat=True).first() or {}


def _within(scope: Mapping[str, Any]) -> Q:
    """Return the filter for agents' work in a scope or a grant. An empty one selects nothing."""
    if scope.get("everything") is True:
        return Q(assignee_type="agent")
    members = Q(pk__in=())
    for kind, column in _SCOPES.items():
        if names := scope.get(kind):
            members |= Q(**{f"{column}__in": names})
    return members & Q(assignee_type="agent")


def _with_work_of_scope(run: RunToken, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the ids of the work in the scope: live work that the role may hold, oldest first."""
    asking = Activity.objects.for_tenant(run.tenant_id).get(pk=run.activity_id)
    rows = Activity.objects.for_tenant(run.tenant_id).filter(
        _within(arguments["scope"]), _within(_read_grants(asking)), in_status(*LIVE)
    )
    most = settings.ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL
    ids = (
        rows.exclude(pk=run.activity_id).order_by("created_at", "pk").values_list("pk", flat=True)[: most + 1]
    )
    return {**arguments, "activity_ids": [*(arguments.get("activity_ids") or ()), *ids]}


def _not_granted(asking: Activity, scope: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the members of a scope that the role may not hold as a whole, whether they exist or not."""
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
    """Return the ids that an agent's question may be about; true if the activity is part of its own work. The others may not exist."""
    own = activity_tree.own_work(asking.tenant_id, asking, activity_ids)
    if (others := [one for one in activity_ids if one not in own]) and (granted := _read_grants(asking)):
        rows = Activity.objects.for_tenant(asking.tenant_id).filter(_within(granted), pk__in=others)
        own |= dict.fromkeys(rows.values_list("pk", flat=True), False)
    return own


#: It has not begun, or it needs an answer before it continues.
_WAITS = (Status.CREATED, Status.AWAITING_REVIEW)
#: The same text for work of others and for ids that do not exist.
NOT_OWN = "It does not belong to this run's work."
_BY_A_PERSON = "It is the task of a person, who decides when to do it."


def _sort_out(asking: Activity, activity_ids: Sequence[UUID]) -> tuple[dict[UUID, Activity], dict[UUID, str]]:
    """Return the activities that an agent's question may be about, locked, and for others why not. Unknown ids are in neither.

    A question may be about the agent's own activity, its subtasks at any depth, and waiting work of its pipeline run, of its deliverable
    and of its role's grants.
    """
    own = _askable(asking, activity_ids)
    rows = activity_tree.lock(asking.tenant_id, own)
    refused = {
        activity_id: why for activity_id, row in rows.items() if (why := _why_not(row, is_part=own[activity_id]))
    }  # fmt: skip
    return {pk: row for pk, row in rows.items() if pk not in refused}, refused


def _why_not(activity: Activity, *, is_part: bool) -> str:
    """Return why an agent's question may not be about this activity; empty if it may."""
    if activity.assignee_type != "agent":
        return _BY_A_PERSON
    if activity.status in SETTLED or (not is_part and activity.status not in _WAITS):
        return f"It is {activity.status}."
    return ""


#: Why an activity in this status is not held by the question alone.
_NOT_HELD: dict[str, str] = {
    Status.ASSIGNED: "It is {} and continues.",
    Status.IN_PROGRESS: "It is {} and continues.",
    Status.BLOCKED: "It is {}. It continues after that and after people have decided.",
    Status.AWAITING_SUBTASK: "It is {}. It continues after that and after people have decided.",
}


def _holding(
    asking: Activity,
    activity_ids: Sequence[UUID],
    linked: Iterable[UUID],
    refused: Mapping[UUID, str],
    not_granted: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """Return the part of the answer that says which activities wait for people now, and why the others do not."""
    rows = Activity.objects.for_tenant(asking.tenant_id).filter(pk__in=list(linked))
    statuses = dict(rows.values_list("pk", "status"))
    held = [pk for pk in activity_ids if statuses.get(pk) == Status.AWAITING_REVIEW]
    reasons = {pk: _NOT_HELD.get(status, "It is {}.").format(status) for pk, status in statuses.items()}
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


def _continues(created: UUID | None) -> dict[str, Any]:
    return {"id": str(created) if created else None, "status": Status.IN_PROGRESS.value, "stop": False}


_TOOLS: dict[str, Callable[[RunToken, Mapping[str, Any]], dict[str, Any]]] = {
    suspension.BLOCKER_TOOL: _report_blocker,
    suspension.SUBTASK_TOOL: _create_subtask,
    suspension.REVIEW_TOOL: _request_human_review,
    CREATE_APPROVAL: _create_approval,
    reassignment.TOOL: _reassign_task,
}
#: The tools that always add an item to the inbox. The others do if they name a human role.
_ALWAYS_ASK = frozenset({suspension.BLOCKER_TOOL, suspension.REVIEW_TOOL, CREATE_APPROVAL})
NAMES = tuple(_TOOLS)


# Every call of an agent takes this path, whether it comes over HTTP or from an adapter in a worker.
#
# Agents are not trusted: the arguments are validated strictly, and the objects that they name must belong to the tenant.


def receive_call(run: RunToken, tool: str, body: Any, *, key: str = "") -> Answer:
    """Receive one call. `key` distinguishes calls with equal bodies.

    Raises REST framework's `ValidationError` naming every error of the body, `reports.RunOver`, and what `perform` raises.
    """
    try:
        return _call_once(run, tool, body, key)
    except (ToolRefused, QuotaExceeded) as refusal:
        # Honest agents rarely see these. Many of them from one role suggest that the agent was hijacked.
        facts = {"tool": tool, "code": refusal.code, **getattr(refusal, "problem_members", {})}
        logger.warning("Tool refused", extra={"action": "tool_refused", "run": str(run.run_id), **facts})
        raise


def _call_once(run: RunToken, tool: str, body: Any, key: str) -> Answer:
    refuse_hammering(run.run_id)
    try:
        arguments = arguments_of(tool, body)
    except ValidationError:
        arguments_of(tool, body, run.tenant_id)  # names the errors of its roles as well
        raise
    with tenant_scope(run.tenant_id):
        answer = find_earlier_answer(run, tool, arguments, key=key)
    if answer is not None:
        return answer  # A role or a channel that it named may be gone by now.
    arguments_of(tool, body, run.tenant_id)
    _refuse_unknown(run, arguments)
    try:
        return perform(run, tool, arguments, key=key)
    except RunSuperseded as error:
        raise reports.run_over(run) from error


def _refuse_unknown(run: RunToken, arguments: Mapping[str, Any]) -> None:
    """Raise `ToolRefused` if the arguments name an object that is not the tenant's."""
    with tenant_scope(run.tenant_id):
        channel = arguments.get("channel_id")
        if channel and not Channel.objects.for_tenant(run.tenant_id).filter(pk=channel).exists():
            raise ToolRefused(f"There is no channel {channel}.")


# The rate limit for tool calls of one run, refused calls included.
#
# Quotas count successful calls, but refused calls cost statements as well. This limit is checked in Redis first, so that an agent which
# repeats refused calls slows down nobody. If Redis does not answer in time, calls pass without a check.


PATIENCE_SECONDS = 0.05
_breaker = Breaker(seconds=5.0)


def refuse_hammering(run_id: UUID) -> None:
    """Raise `QuotaExceeded` if the run calls tools far more often than any useful run does."""
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
        raise QuotaExceeded(
            "rate", "This run calls tools too often. Slow down.", retry_after=decision.retry_after
        )


# The quota of open inbox items for each tenant and role.
#
# People answer questions one by one, but an agent can ask thousands. Questions beyond the quota are refused, so that questions of others
# stay visible. A question that is repeated while the first one is open is not asked again.


#: The kinds of items that agents create with tools. Gates are not included, because the submitter of the work requested them.
ASKED = (
    LinkKind.REVIEW,
    LinkKind.RESOLUTION,
    LinkKind.APPROVAL,
    LinkKind.SUBTASK,
    LinkKind.REASSIGNED_FROM,
)


def refuse_flood(asking: Any) -> None:
    """Raise `QuotaExceeded` if agents of the role of `asking`, a row of Activity, have reached the quota of the tenant's inbox.

    Simultaneous calls may each take the last place, so the quota can be exceeded by the number of calls under way.
    """
    most = settings.ORCHESTRATOR_OPEN_ITEMS_PER_AGENT
    rows = Activity.objects.for_tenant(asking.tenant_id).filter(
        in_status(*activity_tree.OPEN),
        assignee_type="human",
        link_kind__in=ASKED,
        parent__tenant_id=asking.tenant_id,
        parent__agent_role=asking.agent_role,
    )
    if rows.order_by().values("pk")[:most].count() >= most:
        raise QuotaExceeded(
            "inbox", f"Agents of the role {asking.agent_role} may have {most} open questions to people."
        )


def _same_approval(asking: Activity, arguments: Mapping[str, Any], linked: Iterable[UUID]) -> UUID | None:
    """Return the open approval with the same type, text and activities that the activity has already requested, or None."""
    human_role = arguments.get("human_role") or GENERAL_ROLE
    approval = _first_open(
        asking, LinkKind.APPROVAL, arguments["title"], arguments, human_role, metadata__approval_type=arguments["type"]
    )  # fmt: skip
    if approval is None:
        return None
    links = ApprovalLink.objects.for_tenant(asking.tenant_id).filter(approval_id=approval)
    return approval if set(links.values_list("activity_id", flat=True)) == set(linked) else None


def _first_open(
    asking: Activity, kind: LinkKind, name: str, arguments: Mapping[str, Any], human_role: str, **more: Any
) -> UUID | None:
    """Return the first open item for this human role, with the same text, that the activity has already requested, or None."""
    rows = Activity.objects.for_tenant(asking.tenant_id).filter(
        parent_id=asking.pk,
        link_kind=kind,
        status__in=activity_tree.OPEN,
        name=name,
        description=arguments.get("description") or "",
        human_role=human_role,
        **more,
    )
    return rows.order_by("created_at").values_list("pk", flat=True).first()
