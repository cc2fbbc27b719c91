"""Explains why an activity does not run now: a code, and a sentence with the facts.

If several reasons hold, the first of these is named: people or other work, a budget, a date or delay, a pause, no worker, and then limits:
concurrent runs, narrowest scope first, a provider's time, rates. A reason that only people end comes before one that changes by the second.
A pause is mentioned with a budget or a date, too, because it may outlast them.

The facts of PostgreSQL come first. Only for ready work it also queries admission, which knows the missing slot. If Redis does not answer,
the explanation is less exact, but never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import redis

from activities import (
    activity_tree,
    admission,
    backlog,
    budgets,
    cancellation,
    provider_batches,
    selectors,
    transitions,
)
from activities.exceptions import NotFound
from activities.leases import ALL
from activities.models import Activity, ActivityEvent, ActivityRun, BatchItem, Wake, WorkerProcess
from activities.outbox import LATER
from activities.pauses import Pause, Pauses, read_pauses
from activities.rescheduling import HELD_BY_PROVIDERS
from activities.selectors import PersonClaim
from activities.states import SETTLED, STATUSES, WAITING, LinkKind, RunStatus, Status, WakeState
from agents.governor import providers
from tenants import clock, money
from tenants.caches import TtlCache
from tenants.context import tenant_scope
from tenants.models import BudgetWait
from tenants.money import plain
from tenants.sql import Statement

QUEUED = "It is ready and will start when its turn comes."
REBUILT = "Admission is being rebuilt from the database; it will start when its turn comes."
STILL_CALLED = "The agent has not ended the call of the run before. This one starts when it has."

#: Error codes of runs that a provider refused for now, which used up no attempt: the reason and its sentence.
_HELD_BACK = {
    "provider_limit": (
        "provider_limit",
        "{holder} accepts no more requests for now; the next attempt is at {at}.",
    ),
    "rate_limited": ("provider_limit", "{holder} requested a delay; the next attempt is at {at}."),
    "breaker_open": (
        "breaker_open",
        "{holder} failed too often in a row and is not called for now; the next attempt is at {at}.",
    ),
}
_CAPPED = {
    "group": "group_cap",
    "files": "group_cap",
    "pair": "tenant_cap",
    "tenant": "tenant_cap",
    "role": "role_cap",
    "global": "global_cap",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why an activity waits. `code` is None if it waits for nothing: it runs, or it has ended."""

    code: str | None
    detail: str
    holder: str | None = None
    since: datetime | None = None
    position: int | None = None
    estimate_seconds: float | None = None


def why(tenant_id: UUID, activity_id: UUID) -> Waiting:
    """Explain one activity in full. Raises `NotFound`. Do not call it inside a transaction, because it may query Redis."""
    with tenant_scope(tenant_id):
        activity = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
        if activity is None:
            raise NotFound("activity", activity_id)
        awaited = activity_tree.counterparts_of(tenant_id, [activity])
        delays = _delays([activity])
        waits = budgets.waits_of(tenant_id, [activity_id] if delays else [])
        last_runs = _last_runs([activity], delays)
        reason = _explain_from_database(
            activity,
            delays,
            read_pauses(tenant_id, _roles_of([activity])),
            awaited,
            last_runs,
            waits,
            selectors.claims_of(tenant_id, [activity]),
        )
        if (
            item := provider_batches.waiting_items(tenant_id, _running([activity])).get(activity_id)
        ) is not None:
            reason = _explain_batch(
                item, None if item.batch_id else provider_batches.count_collected_with(item)
            )
        if activity.status == Status.REJECTED and activity_tree.has_successor(tenant_id, activity_id):
            reason = Waiting(None, "It was rejected; a revision took its place.")
        events = ActivityEvent.objects.for_tenant(tenant_id).filter(activity_id=activity_id)
        last = events.order_by("-seq").values_list("at", "actor").first()
        since, actor = last or (activity.created_at, "")
        if activity.status == Status.CANCELLED and _expired_at(activity) is None:
            reason = Waiting(None, _explain_cancellation(activity, actor))
    if reason is None:
        reason = _explain_from_admission(activity)
    return replace(reason, since=(reason.since or since) if reason.code else None)


def add_queue_position(activity: Activity, reason: Waiting) -> Waiting:
    """Complete a result of `explain_many` with the missing slot and the position in the queue.

    Do not call it inside a transaction, because it may query Redis.
    """
    is_queued = reason.code == "queued" and _may_start(activity)
    return replace(_explain_from_admission(activity), since=reason.since) if is_queued else reason


def explain_many(tenant_id: UUID, activities: Sequence[Activity]) -> dict[UUID, Waiting]:
    """Explain a page of activities from PostgreSQL alone, in a few queries. In the caller's `tenant_scope`.

    Pauses may be a second old, because lists are read often, and a pause takes two seconds to act anyway.
    """
    ready = [activity for activity in activities if _may_start(activity)]
    # An activity that has not changed since its submission has only its first wake, whose date the activity contains.
    delays = _delays([activity for activity in ready if activity.version > 1]) | _first_delays(ready)
    paused, awaited = _recent_pauses(tenant_id, ready), activity_tree.counterparts_of(tenant_id, activities)
    last_runs = _last_runs(ready, delays)
    waits = budgets.waits_of(tenant_id, [activity.pk for activity in ready])
    claims = selectors.claims_of(tenant_id, activities)
    parked = provider_batches.waiting_items(tenant_id, _running(activities))
    return {
        activity.pk: _explain_from_database(activity, delays, paused, awaited, last_runs, waits, claims)
        or Waiting("queued", QUEUED)
        for activity in activities
    } | {activity_id: _explain_batch(item) for activity_id, item in parked.items()}


def _running(activities: Iterable[Activity]) -> list[UUID]:
    return [
        activity.pk
        for activity in activities
        if activity.status == Status.IN_PROGRESS and activity.assignee_type == "agent"
    ]


def _explain_batch(item: BatchItem, number: int | None = None) -> Waiting:
    return Waiting(
        "batch",
        provider_batches.describe_item(item, number=number),
        provider_batches.provider_name(item.provider),
        since=item.created_at,
    )


def _may_start(activity: Activity) -> bool:
    return activity.status == Status.CREATED and activity.assignee_type == "agent"


def _explain_from_database(
    activity: Activity,
    delays: Mapping[UUID, Wake],
    paused: Pauses,
    awaited: Mapping[UUID, Sequence[Activity]],
    last_runs: Mapping[UUID, _LastRun],
    waits: Mapping[UUID, BudgetWait],
    claims: Mapping[UUID, PersonClaim],
) -> Waiting | None:
    """Explain without admission. Returns None for an agent's work that could start as far as PostgreSQL knows."""
    status = Status(activity.status)
    if status == Status.NEEDS_REVIEW:
        return Waiting("human", STATUSES[status].sentence, holder="operator")
    if status == Status.CANCELLED and (expired_at := _expired_at(activity)) is not None:
        return Waiting(None, f"It expired at {expired_at:%Y-%m-%d %H:%M:%S} UTC.")
    if status == Status.CANCELLED:
        return Waiting(None, _explain_cancellation(activity))
    if status in SETTLED:
        return Waiting(None, STATUSES[status].sentence)
    if status in WAITING:
        return explain_counterparts(activity, awaited.get(activity.pk, ()))
    if activity.assignee_type == "human":
        return Waiting("human", _explain_person(activity, claims.get(activity.pk)), holder=_person(activity))
    if status != Status.CREATED:
        return Waiting(None, "It is running.")
    pause = paused.of(activity)
    delay = delays.get(activity.pk)
    if (wait := waits.get(activity.pk)) is not None:
        return _add_pause(_explain_budget(wait), pause)
    if delay is not None and (due_at := _time_in_force(delay)) is not None:
        return _add_pause(_explain_delay(activity, due_at, delay.cause, last_runs.get(activity.pk)), pause)
    if pause is not None:
        return Waiting("paused", f"{pause.who} is {pause.how}; nothing new starts.", holder=pause.who)
    return None


def _time_in_force(delay: Wake) -> datetime | None:
    """Return until when a wake delays its activity. None once that time has come, or its budget has released it, until it is offered."""
    if delay.due_at is None or delay.due_at <= clock.now() or delay.cause == budgets.CAUSE:
        return None
    return delay.due_at


def _expired_at(activity: Activity) -> datetime | None:
    """Return the time that ended a cancelled activity; None if somebody cancelled it."""
    if (
        activity.cancel_reason != cancellation.EXPIRED
        or activity.expires_at is None
        or activity.finished_at is None
    ):
        return None
    # A person who cancels work before this time may give the same reason.
    return activity.expires_at if activity.expires_at <= activity.finished_at else None


def _explain_cancellation(activity: Activity, actor: str = "") -> str:
    """Explain why it was cancelled and, if `actor` is known, by whom."""
    by = f" by {actor}" if actor else ""
    match activity.cancel_reason:
        case transitions.OBSOLETE:
            return f"It was cancelled{by}, because {transitions.why_obsolete(activity)}."
        case backlog.SHED:
            return f"It was cancelled{by}, because too much work of its role waited."
    return f"It was cancelled{by}{f': {activity.cancel_reason}' if activity.cancel_reason else '.'}"


def _add_pause(reason: Waiting, pause: Pause | None) -> Waiting:
    """Add a pause, which also holds the work and has no known end."""
    if pause is None:
        return reason
    return replace(
        reason,
        detail=f"{reason.detail} In addition, {pause.who[0].lower()}{pause.who[1:]} is {pause.how}.",
        estimate_seconds=None,
    )


def _explain_person(activity: Activity, claim: PersonClaim | None) -> str:
    if claim is not None:
        return f"{claim.actor} claimed it at {claim.at:%Y-%m-%d %H:%M:%S} UTC. Others can still answer it."
    is_decision = activity.is_approval_gate or activity.link_kind == LinkKind.REVIEW
    return "It waits for a decision." if is_decision else "It waits for somebody to claim it."


def _explain_delay(
    activity: Activity, due_at: datetime, cause: str, last_run: _LastRun | None = None
) -> Waiting:
    seconds = max(0.0, (due_at - clock.now()).total_seconds())
    at = f"{due_at:%Y-%m-%dT%H:%M:%SZ}"  # for programs
    text = f"{due_at:%Y-%m-%d %H:%M:%S} UTC"
    error: Mapping[str, Any] = last_run.error or {} if last_run else {}
    if cause == "retry" and error.get("code") in _HELD_BACK:
        code, sentence = _HELD_BACK[error["code"]]
        holder = str(error.get("held_by") or activity.agent_role)
        detail = sentence.format(holder=holder, at=text)
        return Waiting(code, detail, holder=holder, estimate_seconds=round(seconds, 1))
    if cause == "retry":
        ended = f"Attempt {activity.attempts} of {activity.max_attempts} failed"
        if last_run is not None and last_run.attempt > activity.attempts:
            ended = "The last run ended without using up an attempt"
        detail = f"{ended}; the next begins at {text}."
        return Waiting("retry_delay", detail, holder=at, estimate_seconds=round(seconds, 1))
    return Waiting(
        "not_before", f"It starts at {text} at the earliest.", holder=at, estimate_seconds=round(seconds, 1)
    )


def _explain_budget(wait: BudgetWait) -> Waiting:
    budget = wait.budget
    until = money.end_of(budget.period, budget.period_start) if wait.fits_in_cap else None
    seconds = None if until is None else max(0.0, round((until - clock.now()).total_seconds(), 1))
    at_end = (
        "" if until is None else f", or at {until:%Y-%m-%dT%H:%M:%SZ}, when its next {budget.period} begins"
    )
    room = "running work uses less than it has reserved" if wait.fits_in_cap else "less is needed"
    detail = (
        f"The budget {budget.name} has no room: {plain(budget.spent)} of {plain(budget.cap)} {budget.unit} spent,"
        f" {plain(budget.reserved)} reserved for running work, {plain(wait.amount)} needed for this."
        f" It continues when the cap is raised or {room}{at_end}."
    )
    holder = f"budget {budget.name} ({budget.pk})"
    return Waiting("budget", detail, holder=holder, since=wait.since, estimate_seconds=seconds)


def _person(activity: Activity) -> str:
    due = f", due {activity.due_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if activity.due_at else ""
    return f"{activity.human_role}{due}"


def explain_counterparts(activity: Activity, awaited: Sequence[Activity]) -> Waiting:
    """Explain an activity in one of the waiting statuses. `awaited` is everything that it waits for, as far as that is known.

    It continues when the last of them is done, so the holder names each of them.
    """
    status = Status(activity.status)
    approvals = [item for item in awaited if item.link_kind == LinkKind.APPROVAL]
    own = next((item for item in awaited if item.link_kind != LinkKind.APPROVAL), None)
    code, detail, holders = "human", STATUSES[status].sentence, []
    if own is not None and own.assignee_type == "agent":
        code, holders = "dependency", [f"{own.name} ({own.status})"]
    elif own is not None and status == Status.AWAITING_SUBTASK:
        detail, holders = "It waits for a subtask of a person.", [f"{own.name}: {_person(own)}"]
    elif own is not None:
        holders = [_person(own) if not approvals else f"{own.name}: {_person(own)}"]
    elif status == Status.AWAITING_SUBTASK:
        code = "dependency"
    elif approvals and status == Status.AWAITING_REVIEW:
        is_held = activity.started_at is None
        detail = "It does not start before somebody has decided." if is_held else "It waits for a decision."
    if len(awaited) > 1:
        detail = f"{detail} It continues when all {len(awaited)} open requests are done."
    holders += [f"{item.name}: {_person(item)}" for item in approvals]
    return Waiting(code, detail, holder="; ".join(holders) or None)


def _delays(activities: Sequence[Activity]) -> dict[UUID, Wake]:
    """Return the wake that delays each activity, if any. Wakes for later delay an activity only if it has no other wakes."""
    ids = [activity.pk for activity in activities if _may_start(activity)]
    if not ids:
        return {}
    tenant_id = activities[0].tenant_id
    pending = Wake.objects.for_tenant(tenant_id).filter(activity_id__in=ids, state=WakeState.PENDING)
    by_activity: dict[UUID, list[Wake]] = {}
    for wake in pending.only("activity_id", "due_at", "cause").order_by("pk"):
        by_activity.setdefault(wake.activity_id, []).append(wake)
    delays = {activity_id: _delaying(wakes) for activity_id, wakes in by_activity.items()}
    return {activity_id: wake for activity_id, wake in delays.items() if wake is not None}


def _delaying(pending: Sequence[Wake]) -> Wake | None:
    current = [wake for wake in pending if wake.cause != LATER]
    last = max((wake for wake in current if wake.due_at is not None), key=_due_at, default=None)
    if last is not None or current:
        return last
    return min(pending, key=_due_at) if all(wake.due_at is not None for wake in pending) else None


def _due_at(wake: Wake) -> datetime:
    return wake.due_at or datetime.max.replace(tzinfo=UTC)


class _LastRun(NamedTuple):
    """The last run of an activity. Its attempt is higher than that of the activity if it used up none."""

    attempt: int
    error: Mapping[str, Any] | None


def _last_runs(activities: Sequence[Activity], delays: Mapping[UUID, Wake]) -> dict[UUID, _LastRun]:
    """Return the last runs of activities that wait for a retry, by activity id."""
    ids = [
        activity.pk
        for activity in activities
        if activity.pk in delays and delays[activity.pk].cause == "retry"
    ]
    if not ids:
        return {}
    runs = ActivityRun.objects.for_tenant(activities[0].tenant_id).filter(activity_id__in=ids)
    last = runs.order_by("activity_id", "-fence").distinct("activity_id")
    return {
        activity_id: _LastRun(attempt, error)
        for activity_id, attempt, error in last.values_list("activity_id", "attempt", "error")
    }


def _first_delays(activities: Iterable[Activity]) -> dict[UUID, Wake]:
    now = clock.now()
    return {
        activity.pk: Wake(due_at=activity.not_before, cause="wake")
        for activity in activities
        if activity.version == 1 and activity.not_before is not None and activity.not_before > now
    }


_recent: TtlCache[Pauses] = TtlCache(seconds=1.0, entries=10_000)


def _recent_pauses(tenant_id: UUID, activities: Sequence[Activity]) -> Pauses:
    key = f"{tenant_id}:{','.join(sorted({activity.agent_role or '' for activity in activities}))}"
    cached = _recent.recall(key)
    return cached if cached is not None else _recent.keep(key, read_pauses(tenant_id, _roles_of(activities)))


def _roles_of(activities: Iterable[Activity]) -> set[str]:
    return {activity.agent_role or "" for activity in activities if _may_start(activity)}


def _explain_from_admission(activity: Activity) -> Waiting:
    try:
        state = admission.inspect(activity.pk)
    except admission.Closed:
        return Waiting("queued", REBUILT)
    except redis.RedisError:
        return Waiting("queued", "Redis does not answer, so the position in the queue is not known now.")
    if state["state"] == "held" and state["started"] and _is_still_called(activity, state["grant"]):
        return Waiting("queued", STILL_CALLED)
    reason = reason_of_state(_with_longest_run(activity, state), role=activity.agent_role or "")
    return _explain_closed_intake(reason, activity.agent_role or "") if reason.code == "no_worker" else reason


def _is_still_called(activity: Activity, grant: str) -> bool:
    """Return whether the slot is that of a run which has ended, but whose agent a worker still waits for."""
    with tenant_scope(activity.tenant_id):
        runs = ActivityRun.objects.for_tenant(activity.tenant_id).filter(activity_id=activity.pk, grant=grant)
        return runs.exclude(status=RunStatus.RUNNING).exists()


def _with_longest_run(activity: Activity, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise the usual duration to that of the longest current run, because a longer run predicts the wait better."""
    if "duration" not in state:
        return state
    with tenant_scope(activity.tenant_id):
        running = ActivityRun.objects.for_tenant(activity.tenant_id).filter(
            status=RunStatus.RUNNING, activity__agent_role=activity.agent_role
        )
        start = running.order_by("started_at").values_list("started_at", flat=True).first()
    if start is None:
        return state
    return {**state, "duration": max(float(state["duration"]), (clock.now() - start).total_seconds())}


def _explain_closed_intake(reason: Waiting, role: str) -> Waiting:
    """Add the reasons of workers that serve the role but take no new work."""
    closed = [
        (worker.host, worker.closed.get(ALL))
        for worker in WorkerProcess.objects.filter(ended_at=None, roles__contains=[role]).only(
            "host", "closed"
        )
    ]
    reasons = sorted({f"{host}: {text}" for host, text in closed if text})
    if not reasons:
        return reason
    detail = f"No worker of the role {role} takes new work now."
    return replace(reason, detail=detail, holder="; ".join(reasons[:5]))


def reason_of_state(state: Mapping[str, Any], *, role: str) -> Waiting:
    """Convert the state in admission (see admission/lua/inspect.lua) to a reason."""
    if state["state"] == "held":
        return Waiting(
            "queued", "It has its slot and is on its way to a worker.", position=0, estimate_seconds=0.0
        )
    if state["state"] == "closed":
        return Waiting("queued", REBUILT)
    if state["state"] != "waiting":
        return Waiting("queued", "It is about to be offered to the workers.")
    at, position = str(state["at"]), int(state["position"])
    if at.startswith("worker:") or not state["seats"]:
        return Waiting("no_worker", f"No worker serves the role {role}.", position=position)
    if at == "ready":
        estimate = _estimate(position, state["duration"], state["seats"])
        return Waiting(
            "queued", QUEUED, _describe_full_seats(state, role), position=position, estimate_seconds=estimate
        )
    if "due" in state:
        return _explain_limit(at.partition(":")[0], position, state, role)
    return _explain_cap(at, position, state, role)


def _explain_limit(kind: str, position: int, state: Mapping[str, Any], role: str) -> Waiting:
    """Explain a limit that has room again at a known time."""
    seconds = float(state["due"]) / 1000
    text = f"{clock.now() + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S} UTC"
    if kind == "rate":
        # Each activity before it takes a token first.
        estimate = seconds + (position - 1) / float(state["per_second"])
        detail = f"The rate of {role} allows its next start at {text}."
        return Waiting(
            "provider_limit", detail, holder=role, position=position, estimate_seconds=round(estimate, 1)
        )
    if kind == "starts":
        holder = f"runaway guard: {state['used']} of {state['cap']} starts within a minute for {role}"
        detail = f"The limit of starts per minute is reached; the next start is possible at {text}."
        return Waiting(
            "role_cap", detail, holder=holder, position=position, estimate_seconds=round(seconds, 1)
        )
    code, sentence = _HELD_BACK.get(str(state.get("code")), _HELD_BACK["provider_limit"])
    holder = str(state["holder"])
    detail = sentence.format(holder=holder, at=text)
    return Waiting(code, detail, holder=holder, position=position, estimate_seconds=round(seconds, 1))


def _explain_cap(scope: str, position: int, state: Mapping[str, Any], role: str) -> Waiting:
    kind, cap, used = scope.partition(":")[0], int(state.get("cap") or 0), int(state.get("used") or 0)
    if kind == "files":
        detail = "Other work uses some of its files, or waits for them before it."
        holder = f"activity {state['holder']}" if state.get("holder") else None
        return Waiting(_CAPPED[kind], detail, holder=holder, position=position)
    *_, group_role, group = scope.split(":", 3) if kind == "group" else ("", "")
    owner = {
        "group": f"{'all roles' if group_role == '*' else role} in the group {group}",
        "pair": f"{role} of this tenant",
        "tenant": "all roles of this tenant",
        "role": f"{role} over all tenants",
        "pipeline": "its pipeline",
        "schedule": "its schedule",
        "global": "all roles together",
    }[kind]
    if cap <= 0:
        return Waiting(
            "paused",
            f"The limit of concurrent runs is 0 for {owner}; nothing new starts.",
            holder=owner,
            position=position,
        )
    return Waiting(
        _CAPPED[kind], f"The limit of concurrent runs is reached for {owner}.",
        holder=f"{used} of {cap} running for {owner}", position=position,
        estimate_seconds=_estimate(position, state["duration"], cap),
    )  # fmt: skip


def _describe_full_seats(state: Mapping[str, Any], role: str) -> str | None:
    taken, seats = int(state["taken"]), int(state["seats"])
    return f"{taken} of {seats} seats taken at the workers of {role}" if taken >= seats else None


def _estimate(position: int, duration: float, concurrency: int) -> float:
    """Estimate the seconds until it starts, if `concurrency` activities run at once for `duration`, the usual time of such work."""
    return round(position * float(duration) / max(1, int(concurrency)), 1)


# Counts of held work by cause, over all waiting activities, in one statement.
#
# For headlines and lists that show no single activities. They cover the caller's scope, as `queue_stats` does. Limits (caps, rates, seats)
# are no causes here, because work that waits for its turn needs no action.

_HELD = Statement.load(Path(__file__).parent / "sql" / "standing", "held")

BUDGET, PROVIDER, PAUSED = "budget", "provider", "paused"


@dataclass(frozen=True, slots=True)
class HeldPart:
    """The work of one role that one cause holds. `until` is when the cause ends without action, if that is known."""

    cause: str
    holder: str
    role: str
    held: int
    tenants: int
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Hold:
    cause: str
    holder: str
    parts: Sequence[HeldPart]

    @property
    def held(self) -> int:
        return sum(part.held for part in self.parts)

    @property
    def until(self) -> datetime | None:
        return min((part.until for part in self.parts if part.until is not None), default=None)


def list_held_work() -> list[HeldPart]:
    """Return held work by cause, holder and role. In the caller's scope."""
    parameters = {**providers.names_by_adapter(), "refusals": sorted(HELD_BY_PROVIDERS)}
    return [
        HeldPart(row.cause, row.holder, row.agent_role, row.held, row.tenants, _until(row))
        for row in _HELD.run(parameters)
    ]


def by_holder(parts: Iterable[HeldPart]) -> list[Hold]:
    """Combine the parts over all roles, largest first."""
    groups: dict[tuple[str, str], list[HeldPart]] = {}
    for part in parts:
        groups.setdefault((part.cause, part.holder), []).append(part)
    holds = [Hold(cause, holder, parts) for (cause, holder), parts in groups.items()]
    return sorted(holds, key=lambda hold: (-hold.held, hold.cause, hold.holder))


def causes_by_role(parts: Iterable[HeldPart]) -> dict[str, str]:
    """Return for each role the cause that holds most of its work."""
    largest: dict[str, HeldPart] = {}
    for part in parts:
        if part.role not in largest or part.held > largest[part.role].held:
            largest[part.role] = part
    return {role: part.cause for role, part in largest.items()}


def _until(row: Any) -> datetime | None:
    if row.cause == BUDGET:
        end: datetime | None = money.end_of(row.period, row.period_start)
        return end
    due: datetime | None = row.due_at
    return due
