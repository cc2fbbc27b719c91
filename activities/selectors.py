"""Queries for pages and the API: text search, timeline of an activity, queues and workers. Read only, in the caller's `tenant_scope`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import chain, pairwise
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import redis
from django.db import connections as databases
from django.db.models import (
    Case,
    CharField,
    Count,
    DecimalField,
    F,
    Func,
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
from django.db.models.lookups import Exact

from activities import backlog
from activities.admission import keys
from activities.decision_rules import DEFAULT_ESCALATION_ROLE, GENERAL_ROLE, DecisionRules
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
from activities.models.run import own_wake_of
from activities.pauses import read_pauses
from activities.states import BANDS, RUNNING, LinkKind, RunStatus, Status, WakeState
from agents.models import Agent, AgentConfig
from tenants import clock
from tenants import redis as connections
from tenants.caches import TtlCache
from tenants.context import APP
from tenants.models import Membership

PATIENCE_SECONDS = 0.25  # for optional figures from Redis
BAND_NAMES = tuple(sorted(BANDS, key=BANDS.__getitem__))

#: Work of people that is not decided or completed yet.
OPEN_FOR_PEOPLE = Q(in_status(Status.CREATED, Status.IN_PROGRESS), assignee_type="human")
#: The kind of these is their link to the parent; all other items are gates or tasks.
NAMED_BY_LINK = (LinkKind.APPROVAL, LinkKind.REVIEW, LinkKind.RESOLUTION, LinkKind.ESCALATION)


class _LinkOfFirst(Func):
    """The link of the first activity of a line, for the tenant and the id of any activity of the line."""

    template = """(
        WITH RECURSIVE line AS (
            SELECT a.tenant_id, a.parent_id, a.link_kind FROM activities_activity a WHERE (a.tenant_id, a.id) = (%(expressions)s)
            UNION ALL
            SELECT a.tenant_id, a.parent_id, a.link_kind FROM line l
            JOIN activities_activity a ON (a.tenant_id, a.id) = (l.tenant_id, l.parent_id)
            WHERE l.link_kind IN ('revision_of', 'reassigned_from')
        )
        SELECT link_kind FROM line WHERE link_kind NOT IN ('revision_of', 'reassigned_from')
    )"""
    output_field = CharField()


#: The kind of an item. What was reassigned still resolves its blocker; no other named kind can be reassigned.
KIND_OF_ITEM = Case(
    When(link_kind__in=NAMED_BY_LINK, then=F("link_kind")),
    When(
        Q(link_kind=LinkKind.REASSIGNED_FROM)
        & Q(Exact(_LinkOfFirst("tenant_id", "parent_id"), LinkKind.RESOLUTION)),
        then=Value(LinkKind.RESOLUTION.value),
    ),
    When(is_approval_gate=True, then=Value("gate")),
    default=Value("task"),
    output_field=CharField(),
)


#: Suggestions of a form may be a minute old.
_human_roles: TtlCache[list[str]] = TtlCache(seconds=60.0, entries=10_000)


def list_human_roles(tenant_id: UUID) -> list[str]:
    """Return the human roles of the tenant's members, and those of questions that name none."""
    cached = _human_roles.recall(str(tenant_id))
    if cached is not None:
        return cached
    of_members = Membership.objects.for_tenant(tenant_id).values_list("human_roles", flat=True)
    roles = {GENERAL_ROLE, DEFAULT_ESCALATION_ROLE, *chain.from_iterable(of_members)}
    return _human_roles.keep(str(tenant_id), sorted(roles))


class PersonClaim(NamedTuple):
    """Who has claimed an item, and when. A claim only tells others that somebody works on it: they may still answer it."""

    actor: str
    at: datetime


def claims_of(tenant_id: UUID, items: Iterable[Any]) -> dict[UUID, PersonClaim]:
    """Return the claims on these items, which are rows of Activity. A first vote starts an item too, but is no claim."""
    claimed = [
        item.pk
        for item in items
        if item.assignee_type == "human"
        and item.status == Status.IN_PROGRESS
        and not DecisionRules.read(item.decision_rules).is_voted_on
    ]
    if not claimed:
        return {}
    events = ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id__in=claimed, verb="take_up")
    rows = events.order_by("activity_id", "-seq").distinct("activity_id")
    return {
        activity_id: PersonClaim(actor, at)
        for activity_id, actor, at in rows.values_list("activity_id", "actor", "at")
    }


# Text search. Params, metadata and errors have no index, because every change of an activity would have to update it. The search reads
# the tenant's newest activities, at most `SEARCHED` of them, by the index for lists.

SEARCHED = 20_000
TEXTS = ("name", "description", "params", "metadata", "error")


@dataclass(frozen=True, slots=True)
class SearchWord:
    """A word to search for in some of `TEXTS`, ignoring case. With `negated` none of them may contain it."""

    word: str
    among: tuple[str, ...] = TEXTS
    negated: bool = False


def containing(
    rows: QuerySet[Any], tenant_id: UUID, words: Iterable[SearchWord], *, before: datetime | None = None
) -> QuerySet[Any]:
    """Filter the rows by words that all must match, among the newest `SEARCHED` activities of the tenant, or those created `before`."""
    activities = Activity.objects.for_tenant(tenant_id)
    if before is not None:
        activities = activities.filter(created_at__lt=before)
    newest, parameters = (
        activities.order_by("-created_at", "-id").values("id", *TEXTS)[:SEARCHED].query.sql_with_params()
    )
    conditions, patterns = [], []
    for each in words:
        # JSON objects are searched as text, in which a quotation mark or a line feed is escaped with a backslash.
        as_json = orjson.dumps(each.word).decode()[1:-1]
        matches = [f"upper(coalesce(searched.{name}::text, '')) LIKE upper(%s)" for name in each.among]
        conditions.append(f"{'NOT ' if each.negated else ''}({' OR '.join(matches)})")
        patterns += [_like(each.word if name in TEXTS[:2] else as_json) for name in each.among]
    if not conditions:
        return rows
    # The column names come from `TEXTS`. The limit is in the subquery, so that no other condition changes which rows are searched.
    sql = f"SELECT searched.id FROM ({newest}) searched WHERE {' AND '.join(conditions)}"  # noqa: S608
    return rows.filter(pk__in=RawSQL(sql, (*parameters, *patterns)))  # noqa: S611


def _like(word: str) -> str:
    return f"%{databases[APP].ops.prep_for_like_query(word)}%"


def outputs_that_exist(tenant_id: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Return those of the ids that are outputs of the tenant. Needs no MongoDB: the id is that of a run, or an activity refers to it."""
    output_ids = set(ids)
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(pk__in=output_ids, status=RunStatus.COMPLETED)
    existing = set(runs.values_list("pk", flat=True)) if output_ids else set()
    for rows, name in ((OutputSpool.objects, "pk"), (Activity.objects, "output_ref")):
        # `output_ref` has no index, but only a person's output that has left the spool needs it.
        if missing := output_ids - existing:
            matching = rows.for_tenant(tenant_id).filter(**{f"{name}__in": missing})
            existing |= set(matching.values_list(name, flat=True))
    return existing


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of a timeline. `order` sorts entries of the same time; `row` is the row of a run, for callers that display more of it."""

    at: datetime
    order: str
    kind: str
    facts: dict[str, Any]
    row: Any = None


def timeline(tenant_id: UUID, activity_id: UUID) -> list[Moment]:
    """Return everything that happened to an activity, and its future deadlines; oldest first."""
    runs = list(ActivityRun.objects.for_tenant(tenant_id).filter(activity_id=activity_id))
    moments = [
        *_transitions(tenant_id, activity_id),
        *_wakes(tenant_id, activity_id, runs),
        *_runs(runs),
        *_tool_calls(tenant_id, activity_id),
        *_votes(tenant_id, activity_id),
        *_deadlines(tenant_id, activity_id),
    ]
    return sorted(moments, key=lambda moment: (moment.at, moment.order))


def transitions_of(tenant_id: UUID, activity_ids: Collection[UUID], limit: int) -> dict[UUID, list[Moment]]:
    """Return the newest transitions of these activities, at most `limit` altogether, by activity and oldest first; in one statement."""
    events = ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id__in=activity_ids)
    transitions: dict[UUID, list[Moment]] = defaultdict(list)
    newest = list(events.order_by("-at", "-activity_id", "-seq")[:limit]) if activity_ids else []
    moments = [(event.activity_id, moment) for event in reversed(newest) for moment in _moves(event)]
    for activity_id, moment in moments[-limit:]:
        transitions[activity_id].append(moment)
    return transitions


def _transitions(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    """Yield the changes of the activity. Votes are entries of their own, and among them are also those that decided."""
    for event in (
        ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id=activity_id).exclude(verb="vote")
    ):
        yield from _moves(event)


def _moves(event: ActivityEvent) -> Iterator[Moment]:
    for seq, verb, source, target in event.moves:
        facts = {"verb": verb, "source": source, "target": target, "actor": event.actor}
        more = {"run": event.run_id, "detail": event.detail or {}}
        yield Moment(event.at, f"1:{seq:08}", "transition", facts | more)


def _wakes(tenant_id: UUID, activity_id: UUID, runs: Sequence[ActivityRun]) -> Iterator[Moment]:
    stored = Wake.objects.for_tenant(tenant_id).filter(activity_id=activity_id)
    wakes = {wake.pk: wake for wake in stored}
    own_wakes = {wake.pk: wake for run in runs if (wake := own_wake_of(run))}
    live_runs = {run.pk for run in runs if run.status == RunStatus.RUNNING}
    # After a requeue, a run's own wake is stored.
    for wake in (own_wakes | wakes).values():
        over = wake.state == WakeState.TAKEN and wake.run_id not in live_runs
        facts = {
            "id": wake.pk,
            "reason": wake.reason,
            "cause": wake.cause,
            "state": WakeState.CONSUMED.value if over else wake.state,
            "run": wake.run_id,
        }
        more = {"due_at": wake.due_at, "merged": wake.merged, "payload": wake.payload}
        yield Moment(wake.created_at, f"2:{wake.pk}", "wake", facts | more)


def _runs(runs: Iterable[ActivityRun]) -> Iterator[Moment]:
    """Yield each run at its start; its end is part of the entry, and also the transition that it caused."""
    for run in runs:
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
    """Yield the agent's tool calls; the activity that a call created has its own history."""
    for call in ToolCall.objects.for_tenant(tenant_id).filter(activity_id=activity_id).defer("arguments"):
        facts = {"id": call.pk, "tool": call.tool, "run": call.run_id, "created": call.answer.get("id")}
        yield Moment(call.at, f"4:{call.pk}", "tool_call", {**facts, "stop": call.answer.get("stop")})


def _votes(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    for vote in Vote.objects.for_tenant(tenant_id).filter(activity_id=activity_id):
        facts = {"actor": vote.actor, "decision": vote.decision, "chosen_option": vote.chosen_option}
        yield Moment(vote.at, f"5:{vote.pk}", "vote", {**facts, "notes": vote.notes})


def _deadlines(tenant_id: UUID, activity_id: UUID) -> Iterator[Moment]:
    """Yield each deadline at its time, which may be in the future; `happened_at` is when it was processed."""
    for deadline in Deadline.objects.for_tenant(tenant_id).filter(activity_id=activity_id):
        facts = {"id": deadline.pk, "deadline": deadline.kind, "human_role": deadline.human_role or None}
        yield Moment(
            deadline.at, f"6:{deadline.pk}", "deadline", {**facts, "happened_at": deadline.happened_at}
        )


@dataclass(slots=True)
class Queue:
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
    """Return the queues of these roles, in seven statements for any number of roles. `with_grants` adds `granted`."""
    by_role = {queue.role: queue for queue in count_queues(tenant_id, roles)}
    paused = read_pauses(tenant_id, by_role)
    for role, queue in by_role.items():
        queue.paused = paused.are_on(role)
    _add_backlogs(tenant_id, by_role)
    return list(by_role.values())


def count_queues(tenant_id: UUID, roles: Iterable[str]) -> list[Queue]:
    """Count waiting and running work and workers of these roles, in three statements. For callers that know the roles' settings already."""
    by_role = {role: Queue(role) for role in roles}
    for row in _waiting_by_band(tenant_id, by_role):
        queue = by_role[row["activity__agent_role"]]
        if row["delayed"]:
            queue.delayed += row["count"]
            continue
        queue.waiting[row["band"]] += row["count"]
        waited = max(0.0, (clock.now() - row["oldest"]).total_seconds())
        queue.oldest_wait_seconds = max(round(waited, 3), queue.oldest_wait_seconds or 0.0)
    running = Activity.objects.for_tenant(tenant_id).filter(
        in_status(*RUNNING), assignee_type="agent", agent_role__in=by_role
    )
    for role, count in running.order_by().values_list("agent_role").annotate(count=Count("pk")):
        by_role[role].running = count
    for role, count in workers_by_role().items():
        if role in by_role:
            by_role[role].workers = count
    return list(by_role.values())


def _add_backlogs(tenant_id: UUID, by_role: Mapping[str, Queue]) -> None:
    """Add the backlog policies, and the totals of refused, shed and expired work."""
    own = AgentConfig.objects.for_tenant(tenant_id).filter(agent_id=OuterRef("role")).values("backlog")
    policies = Agent.objects.filter(role__in=by_role).annotate(own_backlog=Subquery(own))
    for role, policy, own_policy in policies.values_list("role", "backlog", "own_backlog"):
        by_role[role].backlog = backlog.render_policy({**policy, **(own_policy or {})})
    turned_away = TurnedAway.objects.for_tenant(tenant_id).filter(agent_role__in=by_role)
    for role, reason, count in turned_away.values_list("agent_role", "reason", "count"):
        by_role[role].turned_away[reason] = count


def _waiting_by_band(tenant_id: UUID, roles: Collection[str]) -> Iterable[Any]:
    # A priority between two bands belongs to the more urgent one: each band ends where the next begins.
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
    """Count the live worker processes of each role."""
    counts: dict[str, int] = defaultdict(int)
    for (roles,) in live_workers().values_list("roles"):
        for role in roles:
            counts[role] += 1
    return counts


def runs_of_workers(tenant_id: UUID, workers: Iterable[WorkerProcess]) -> dict[UUID, list[ActivityRun]]:
    """Return the tenant's running runs of each of these workers, oldest first."""
    by_worker: dict[UUID, list[ActivityRun]] = defaultdict(list)
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(
        worker_id__in=[worker.pk for worker in workers], status=RunStatus.RUNNING
    )
    for run in runs.select_related("activity").order_by("started_at", "pk"):
        if run.worker_id is not None:
            by_worker[run.worker_id].append(run)
    return by_worker


def live_workers() -> QuerySet[WorkerProcess]:
    """Return worker processes whose lease has not ended. Processes without roles are excluded, because they run no agents."""
    return WorkerProcess.objects.filter(ended_at=None).exclude(roles=[])


def with_grants(tenant_id: UUID, queues: list[Queue]) -> list[Queue]:
    """Add the number of slots that are granted but not running yet; it stays 0 if Redis does not answer.

    Do not call it inside a transaction, because it queries Redis.
    """
    used = count_slots([f"pair:{tenant_id}:{queue.role}" for queue in queues])
    for queue, count in zip(queues, used, strict=False):  # there are no counts while Redis does not answer
        queue.granted = max(0, count - queue.running)
    return queues


def count_slots(scopes: Sequence[str]) -> list[int]:
    """Return the number of slots, including granted ones, of each scope; an empty list if Redis is down or not rebuilt yet."""
    client = connections.client(timeout_seconds=PATIENCE_SECONDS)
    try:
        generation: Any = client.get(keys.pointer())
        if generation is None or not scopes:
            return []
        used = client.hmget(f"{keys.generation(generation.decode())}used", list(scopes))
    except redis.RedisError:
        return []
    return [int(count or 0) for count in used]


#: Costs as agents report them; anything else is ignored.
_COST = r"^[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?$"


def costs_of(tenant_id: UUID, activities: QuerySet[Activity], by: str) -> dict[Any, Decimal]:
    """Sum the costs of all runs of these activities in US dollars, grouped by a field of the activity. Omits groups without costs."""
    rows = ActivityRun.objects.for_tenant(tenant_id).filter(activity_id__in=activities.values("pk"))
    rows_with_cost = rows.annotate(cost_text=KeyTextTransform("cost_usd", "usage")).filter(
        cost_text__regex=_COST
    )
    amount = Sum(Cast("cost_text", DecimalField(max_digits=36, decimal_places=12)))
    return dict(rows_with_cost.order_by().values_list(f"activity__{by}").annotate(amount=amount))
