"""What people and programs look at: the inbox, the queues, the history of an activity. Reads only, in the caller's `tenant_scope`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import orjson
import redis
from django.db import connections as databases
from django.db.models import (
    Case,
    CharField,
    Count,
    DecimalField,
    Exists,
    F,
    IntegerField,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.expressions import RawSQL
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Now

from activities import backlog
from activities.admission import keys
from activities.models import (
    Activity,
    ActivityEvent,
    ActivityRun,
    Deadline,
    OutputSpool,
    ToolCall,
    TurnedAway,
    Vote,
    Wake,
    WorkerProcess,
)
from activities.models.activity import in_status
from activities.models.run import is_carried
from activities.states import BANDS, RUNNING, RunStatus, Status, WakeState
from agents.governor import providers
from agents.models import Agent, AgentConfig
from tenants import clock, pausing
from tenants import redis as connections
from tenants.context import APP
from tenants.models import Pause, PauseKind, Tenant

PATIENCE_SECONDS = 0.25  # for figures from Redis that may as well be missing
BAND_NAMES = tuple(sorted(BANDS, key=BANDS.__getitem__))

#: Left to a person, and not yet decided or completed.
OPEN_FOR_PEOPLE = Q(in_status(Status.CREATED, Status.IN_PROGRESS), assignee_type="human")


# Searching for words. What stands in params, metadata and errors has no index of its own, which every move of every activity would pay
# for. The tenant's activities are read by the index that lists them, newest first, and not more of them than these, whatever else is asked.

SEARCHED = 20_000
TEXTS = ("name", "description", "params", "metadata", "error")


@dataclass(frozen=True, slots=True)
class SearchWord:
    """A word to search for in these of `TEXTS`, ignoring case. `negated`: it must be in none of them."""

    word: str
    among: tuple[str, ...] = TEXTS
    negated: bool = False


def containing(
    rows: QuerySet[Any], tenant_id: UUID, words: Iterable[SearchWord], *, before: datetime | None = None
) -> QuerySet[Any]:
    """Those of the rows that contain all the words, among the newest `SEARCHED` of the tenant, or of those made before that moment."""
    activities = Activity.objects.for_tenant(tenant_id)
    if before is not None:
        activities = activities.filter(created_at__lt=before)
    newest, parameters = (
        activities.order_by("-created_at", "-id").values("id", *TEXTS)[:SEARCHED].query.sql_with_params()
    )
    conditions, patterns = [], []
    for each in words:
        # Objects are looked through as they are written in JSON: a quotation mark or a line feed has a backslash there.
        as_json = orjson.dumps(each.word).decode()[1:-1]
        found = [f"upper(coalesce(looked.{name}::text, '')) LIKE upper(%s)" for name in each.among]
        conditions.append(f"{'NOT ' if each.negated else ''}({' OR '.join(found)})")
        patterns += [_like(each.word if name in TEXTS[:2] else as_json) for name in each.among]
    if not conditions:
        return rows
    # The names are those above. What is looked through is bounded inside, where no other condition can move the bound.
    text = f"SELECT looked.id FROM ({newest}) looked WHERE {' AND '.join(conditions)}"  # noqa: S608
    return rows.filter(pk__in=RawSQL(text, (*parameters, *patterns)))  # noqa: S611


def _like(word: str) -> str:
    return f"%{databases[APP].ops.prep_for_like_query(word)}%"


def outputs_that_exist(tenant_id: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Which of these are outputs of the tenant. Needs no MongoDB: an output's id is its run's, or stands in an activity."""
    output_ids = set(ids)
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(pk__in=output_ids, status=RunStatus.COMPLETED)
    found = set(runs.values_list("pk", flat=True)) if output_ids else set()
    for rows, name in ((OutputSpool.objects, "pk"), (Activity.objects, "output_ref")):
        # The last of them has no index, but only a person's output that has left the spool needs it.
        if missing := output_ids - found:
            matching = rows.for_tenant(tenant_id).filter(**{f"{name}__in": missing})
            found |= set(matching.values_list(name, flat=True))
    return found


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of a timeline. `order` sorts what happened at the same time; `row` is that of a run, for anyone who shows more of it."""

    at: datetime
    order: str
    kind: str
    facts: dict[str, Any]
    row: Any = None


def timeline(tenant_id: UUID, activity_id: UUID) -> list[Moment]:
    """Everything that happened to an activity, and what will happen unless somebody decides before; oldest first."""
    moments = [
        *_transitions(tenant_id, activity_id),
        *_wakes(tenant_id, activity_id),
        *_runs(tenant_id, activity_id),
        *_tool_calls(tenant_id, activity_id),
        *_votes(tenant_id, activity_id),
        *_deadlines(tenant_id, activity_id),
    ]
    return sorted(moments, key=lambda moment: (moment.at, moment.order))


def transitions_of(tenant_id: UUID, activity_ids: Collection[UUID], limit: int) -> dict[UUID, list[Moment]]:
    """The newest transitions of these activities, so many altogether, by activity and oldest first; in one statement."""
    events = ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id__in=activity_ids)
    found: dict[UUID, list[Moment]] = defaultdict(list)
    newest = list(events.order_by("-at", "-activity_id", "-seq")[:limit]) if activity_ids else []
    moments = [(event.activity_id, moment) for event in reversed(newest) for moment in _moves(event)]
    for activity_id, moment in moments[-limit:]:
        found[activity_id].append(moment)
    return found


def _transitions(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    for event in ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id=activity_id):
        yield from _moves(event)


def _moves(event: ActivityEvent) -> Iterator[Moment]:
    for seq, verb, source, target in event.moves:
        facts = {"verb": verb, "source": source, "target": target, "actor": event.actor}
        more = {"run": event.run_id, "detail": event.detail or {}}
        yield Moment(event.at, f"1:{seq:08}", "transition", facts | more)


def _wakes(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    wakes = Wake.objects.for_tenant(tenant_id).filter(activity_id=activity_id)
    for wake in wakes.annotate(carried=is_carried(tenant_id)):
        over = wake.state == WakeState.TAKEN and not wake.carried
        facts = {
            "id": wake.pk,
            "reason": wake.reason,
            "cause": wake.cause,
            "state": WakeState.CONSUMED.value if over else wake.state,
            "run": wake.run_id,
        }
        more = {"due_at": wake.due_at, "merged": wake.merged, "payload": wake.payload}
        yield Moment(wake.created_at, f"2:{wake.pk}", "wake", facts | more)


def _runs(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    """A run stands where it began; how it ended is part of it, and of the transition that its end led to."""
    for run in ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity_id):
        facts = {
            "id": run.pk,
            "attempt": run.attempt,
            "status": run.status,
            "ended_at": run.ended_at,
            "error": run.error,
        }
        more = {"wake_reason": run.wake_reason, "usage": run.usage, "agent_version": run.agent_version}
        yield Moment(run.started_at, f"3:{run.pk}", "run", facts | more, row=run)


def _tool_calls(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    """What the agent asked for; what came of it is an activity with a history of its own."""
    for call in ToolCall.objects.for_tenant(tenant_id).filter(activity_id=activity_id).defer("arguments"):
        facts = {"id": call.pk, "tool": call.tool, "run": call.run_id, "created": call.answer.get("id")}
        yield Moment(call.at, f"4:{call.pk}", "tool_call", {**facts, "stop": call.answer.get("stop")})


def _votes(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    for vote in Vote.objects.for_tenant(tenant_id).filter(activity_id=activity_id):
        facts = {"actor": vote.actor, "decision": vote.decision, "chosen_option": vote.chosen_option}
        yield Moment(vote.at, f"5:{vote.pk}", "vote", {**facts, "notes": vote.notes})


def _deadlines(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    """A deadline stands at its time, which may lie ahead; `happened_at` says when it was noticed."""
    for deadline in Deadline.objects.for_tenant(tenant_id).filter(activity_id=activity_id):
        facts = {"id": deadline.pk, "deadline": deadline.kind, "human_role": deadline.human_role or None}
        yield Moment(
            deadline.at, f"6:{deadline.pk}", "deadline", {**facts, "happened_at": deadline.happened_at}
        )


@dataclass(slots=True)
class Queue:
    """How one role stands for one tenant."""

    role: str
    waiting: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BAND_NAMES, 0))
    granted: int = 0
    running: int = 0
    delayed: int = 0
    oldest_wait_seconds: float | None = None
    workers: int = 0
    paused: bool = False
    backlog: dict[str, Any] = field(default_factory=dict)
    turned_away: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TurnedAway.Reason.values, 0))


def queues(tenant_id: UUID, roles: Iterable[str]) -> list[Queue]:
    """The queues of these roles, in eight statements whatever the number of roles. `granted` is added by `with_grants`."""
    found = {queue.role: queue for queue in figures_of_queues(tenant_id, roles)}
    for role in _paused_roles(tenant_id, found):
        found[role].paused = True
    _add_backlogs(tenant_id, found)
    return list(found.values())


def figures_of_queues(tenant_id: UUID, roles: Iterable[str]) -> list[Queue]:
    """What waits, runs and works for these roles, in three statements: for anyone who knows already what is set for them."""
    found = {role: Queue(role) for role in roles}
    for row in _waiting_by_band(tenant_id, found):
        queue = found[row["activity__agent_role"]]
        if row["delayed"]:
            queue.delayed += row["count"]
            continue
        queue.waiting[row["band"]] += row["count"]
        waited = max(0.0, (clock.now() - row["oldest"]).total_seconds())
        queue.oldest_wait_seconds = max(round(waited, 3), queue.oldest_wait_seconds or 0.0)
    running = Activity.objects.for_tenant(tenant_id).filter(
        in_status(*RUNNING), assignee_type="agent", agent_role__in=found
    )
    for role, count in running.order_by().values_list("agent_role").annotate(count=Count("pk")):
        found[role].running = count
    for role, count in workers_by_role().items():
        if role in found:
            found[role].workers = count
    return list(found.values())


def _add_backlogs(tenant_id: UUID, found: Mapping[str, Queue]) -> None:
    """What may wait, and how much was turned away, dropped or given up ever since."""
    own = AgentConfig.objects.for_tenant(tenant_id).filter(agent_id=OuterRef("role")).values("backlog")
    policies = Agent.objects.filter(role__in=found).annotate(own_backlog=Subquery(own))
    for role, policy, own_policy in policies.values_list("role", "backlog", "own_backlog"):
        found[role].backlog = backlog.render_policy({**policy, **(own_policy or {})})
    away = TurnedAway.objects.for_tenant(tenant_id).filter(agent_role__in=found)
    for role, reason, count in away.values_list("agent_role", "reason", "count"):
        found[role].turned_away[reason] = count


def _waiting_by_band(tenant_id: UUID, roles: Collection[str]) -> Iterable[Any]:
    # A priority in between belongs to the more urgent band: each ends where the next one begins.
    bands = [
        When(activity__priority__lt=BANDS[following], then=Value(name))
        for name, following in pairwise(BAND_NAMES)
    ]
    pending = Wake.objects.for_tenant(tenant_id).filter(
        state=WakeState.PENDING, activity__status=Status.CREATED, activity__agent_role__in=roles
    )
    return (
        pending.annotate(
            band=Case(*bands, default=Value(BAND_NAMES[-1]), output_field=CharField()),
            delayed=Case(
                When(due_at__gt=Now(), then=Value(1)), default=Value(0), output_field=IntegerField()
            ),
        )
        .order_by()
        .values("activity__agent_role", "band", "delayed")
        .annotate(count=Count("activity_id", distinct=True), oldest=Min("created_at"))
    )


def workers_by_role() -> dict[str, int]:
    """How many live worker processes serve each role."""
    counts: dict[str, int] = defaultdict(int)
    for (roles,) in live_workers().values_list("roles"):
        for role in roles:
            counts[role] += 1
    return counts


def runs_of_workers(tenant_id: UUID, workers: Iterable[WorkerProcess]) -> dict[UUID, list[ActivityRun]]:
    """What each of these works on right now, as far as it is the tenant's, oldest first."""
    found: dict[UUID, list[ActivityRun]] = defaultdict(list)
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(
        worker_id__in=[worker.pk for worker in workers], status=RunStatus.RUNNING
    )
    for run in runs.select_related("activity").order_by("started_at", "pk"):
        if run.worker_id is not None:
            found[run.worker_id].append(run)
    return found


def live_workers() -> QuerySet[WorkerProcess]:
    """Worker processes whose lease has not ended. A process that serves no role runs no agents."""
    return WorkerProcess.objects.filter(ended_at=None).exclude(roles=[])


def _paused_roles(tenant_id: UUID, roles: Collection[str]) -> set[str]:
    stopped = Pause.objects.filter(tenant_id=OuterRef("pk"), kind=PauseKind.PROVIDER)
    tenant = Tenant.objects.annotate(stops_providers=Exists(stopped)).get(pk=tenant_id)
    if tenant.paused or not tenant.is_active:
        return set(roles)
    off = Agent.objects.filter(Q(paused=True) | Q(enabled=False), role__in=roles).values_list(
        "role", flat=True
    )
    own = AgentConfig.objects.for_tenant(tenant_id).filter(
        Q(paused=True) | Q(enabled=False), agent_id__in=roles
    )
    calling = _of_paused_providers(tenant_id, roles) if tenant.stops_providers else ()
    return {*off, *own.values_list(F("agent_id"), flat=True), *calling}


def _of_paused_providers(tenant_id: UUID, roles: Collection[str]) -> set[str]:
    paused = {subject for _, subject in pausing.parts_of(tenant_id, PauseKind.PROVIDER)}
    own = AgentConfig.objects.for_tenant(tenant_id).filter(agent_id__in=roles)
    adapters = dict(Agent.objects.filter(role__in=roles).values_list("role", "adapter"))
    adapters |= {role: adapter for role, adapter in own.values_list("agent_id", "adapter") if adapter}
    return {role for role, adapter in adapters.items() if providers.name_of(adapter) in paused}


def with_grants(tenant_id: UUID, found: list[Queue]) -> list[Queue]:
    """Add how many slots are held beyond what runs. Asks Redis, so not inside a transaction; without an answer it stays 0."""
    client = connections.client(timeout_seconds=PATIENCE_SECONDS)
    try:
        name: Any = client.get(keys.pointer())
        if name is None or not found:
            return found
        scopes = [f"pair:{tenant_id}:{queue.role}" for queue in found]
        used = client.hmget(f"{keys.generation(name.decode())}used", scopes)
    except redis.RedisError:
        return found
    for queue, count in zip(found, used, strict=True):
        queue.granted = max(0, int(count or 0) - queue.running)
    return found


#: Costs as agents report them; what is no number counts as none.
_COST = r"^[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?$"


def costs_of(tenant_id: UUID, activities: QuerySet[Activity], by: str) -> dict[Any, Decimal]:
    """What all attempts at these activities have cost in US dollars, by a field of theirs. What has cost nothing is not in it."""
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id__in=activities.values("pk"))
    rows_with_cost = rows.annotate(cost_text=KeyTextTransform("cost_usd", "usage")).filter(
        cost_text__regex=_COST
    )
    amount = Sum(Cast("cost_text", DecimalField(max_digits=36, decimal_places=12)))
    return dict(rows_with_cost.order_by().values_list(f"activity__{by}").annotate(amount=amount))
