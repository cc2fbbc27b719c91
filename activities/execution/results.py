"""Results: records the end of a run, and moves its activity accordingly.

Each function is one transaction. The first one that locks the activity decides. A later one for the same run raises `RunSuperseded` and
changes nothing. Slots are released after the commit, because a free slot must not belong to a live run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections
from django.db.models.functions import Coalesce, Now

from activities import (
    activity_tree,
    budgets,
    dead_letter_records,
    leases,
    outbox,
    relay,
    sessions,
    transitions,
)
from activities.admission import Exchange
from activities.admission.exchange import Hold, Release
from activities.alerts import raise_alert
from activities.exceptions import OutOfBudget, RunSuperseded
from activities.human_tasks import decisions
from activities.models import Activity, ActivityRun
from activities.models.alert import AlertKind
from activities.models.dead_letter import DeadLetterReason
from activities.retry_delays import RetryPolicy
from activities.run_tokens import RunToken
from activities.states import BANDS
from agents import configuration
from agents.contracts import Completed, Usage
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    BudgetSpent,
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from agents.outbound import client as outbound_client
from tenants import clock, outages
from tenants.context import tenant_scope

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long a result is tried again while PostgreSQL answers but locks, deadlocks or time-outs keep it from being recorded.
CONTENTION_SECONDS = 20.0


# After this time the provider is called again whatever it has said, because its settings may have changed.
HOLD_MOST_SECONDS = 60.0
# The longest time between two refusals that counts as refused: a provider that asks for a longer delay is not heeded. In more time the
# work waited for something else, such as a pause, a date, money or people.
LONGEST_GAP_SECONDS = outbound_client.LONGEST_SECONDS
# Refused work is offered this many ticks before the provider's time, because the leader looks once a tick.
EARLY_TICKS = 2


def record_completed(
    run: RunToken,
    result: Completed,
    *,
    needs_approval: bool,
    has_parent: bool = False,
    of_step: bool = False,
    actor: str = "worker",
    context: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> transitions.Moved:
    """Accept the output. The activity is done, or waits for its approval.

    `has_parent`: its end may wake another activity. `of_step`: its end may settle a step of a pipeline run, in the same statement.
    `context`: entered within the transaction around everything that follows from the result.
    """
    with tenant_scope(run.tenant_id):
        if has_parent:
            activity_tree.lock_with_parent(run.tenant_id, run.activity_id)
        finish = partial(
            transitions.finish, [_result_of(run, result)], tenant_id=run.tenant_id, needs_approval=needs_approval,
            actor=actor, of_step=of_step,
        )  # fmt: skip
        moved = finish(locked=has_parent)
        if not moved:
            # A question about it may be open. Only after this lock is an answer visible that is being recorded just now.
            activity_tree.lock_live(run)
            moved = finish(locked=True)
        if not moved:
            raise RunSuperseded(run.run_id)
        with context():
            _follow(run, result, moved[0])
    return moved[0]


class Answer(NamedTuple):
    """The answer of a run's agent. `context`: entered around everything that is done for this run."""

    run: RunToken
    result: Completed
    context: Callable[[], AbstractContextManager[None]]


def record_completed_together(
    answers: Sequence[Answer], *, actor: str = "worker", is_patient: bool = True
) -> set[UUID]:
    """As `record_completed` for several runs of one tenant in one transaction. Returns the ids of the runs whose output was accepted.

    Only for work without an approval and without a waiting parent. Leaves out activities about which a question is open.
    `is_patient`: as in `tenant_scope`.
    """
    tenant_id = answers[0].run.tenant_id
    with tenant_scope(tenant_id, is_patient=is_patient):
        results = [_result_of(answer.run, answer.result) for answer in answers]
        moved = transitions.finish(
            results, tenant_id=tenant_id, needs_approval=False, actor=actor, of_step=True
        )
        rows = {row.run_id: row for row in moved}
        for answer in answers:
            if (row := rows.get(answer.run.run_id)) is not None:
                with answer.context():
                    _follow(answer.run, answer.result, row)
    return set(rows)


def _result_of(run: RunToken, result: Completed) -> transitions.Result:
    output = result.output
    return transitions.Result(
        run.activity_id, run.run_id, run.fence, output.content, output.data, output.content_type
    )


def _follow(run: RunToken, result: Completed, moved: transitions.Moved) -> None:
    """Do everything that follows from an accepted result."""
    transitions.announce(moved)
    sessions.note_used(run, moved, result.session_id)
    _give_back(moved)
    if moved.status == "awaiting_approval":
        decisions.open_gate(moved)
    elif moved.again:
        outbox.run_again(moved)
    budgets.settle_ended_run(run, moved, result.usage)


def record_failed(run: RunToken, error: AgentError, *, actor: str = "worker") -> transitions.Moved:
    """Retry later if the error allows it and attempts are left. Otherwise the activity fails."""
    with tenant_scope(run.tenant_id):
        activity = activity_tree.lock_live(run, with_parent=True)
        if error.error_code == SessionInvalid.code and sessions.was_given(run):
            return _restart_without_session(run, error, actor)
        policy = policy_of(activity)
        if not error.uses_attempt:
            return _wait(run, activity, error, policy, actor)
        if error.retryable and activity.attempts < activity.max_attempts:
            delay = policy.delay(activity.attempts)
            if error.retry_after is not None:
                delay = max(delay, timedelta(seconds=error.retry_after))
            return _retry(run, error, delay, actor)
        reason = DeadLetterReason.EXHAUSTED if error.retryable else DeadLetterReason.PERMANENT
        return _fail_for_good(run, as_dict(error), reason, actor)


def _wait(
    run: RunToken, activity: Activity, error: AgentError, policy: RetryPolicy, actor: str
) -> transitions.Moved:
    """Retry later without using up an attempt. If the provider refuses (429) for too long, people are alerted, and later the work fails."""
    refusals = Refusals.after(activity, error)
    detail = as_dict(error) | refusals.as_dict()
    if refusals.waited >= timedelta(seconds=settings.ORCHESTRATOR_RATE_LIMITED_END_SECONDS):
        return _fail_for_good(run, detail, DeadLetterReason.RATE_LIMITED, actor)
    if refusals.waited >= timedelta(seconds=settings.ORCHESTRATOR_RATE_LIMITED_ALERT_SECONDS):
        _alert_refusals(activity, refusals)
    delay = (
        timedelta(seconds=error.retry_after) if error.retry_after is not None else refusals.backoff(policy)
    )
    others_wait = _hold_back_others(activity, error)
    if others_wait is not None and delay <= others_wait:
        # It is back in the queue, in its place, before the others may start.
        delay = max(timedelta(), delay - EARLY_TICKS * timedelta(seconds=settings.ORCHESTRATOR_TICK_SECONDS))
    return _retry(run, error, delay, actor, attempts=-1, detail=detail)


def _hold_back_others(activity: Activity, error: AgentError) -> timedelta | None:
    """Hold the role's work of this tenant while the provider refuses calls, so that it is not started and refused one by one.

    Returns for how long, or None if nothing is held because the provider named no time. Refused work that is not urgent does not hold
    urgent work, for which the provider may have capacity.
    """
    role = activity.agent_role
    if role is None or error.held_by is None or error.retry_after is None or not error.room_is_timed:
        return None
    code = "breaker_open" if error.error_code == "breaker_open" else "provider_limit"
    urgent = activity.priority < BANDS["gated"]
    seconds = min(error.retry_after, HOLD_MOST_SECONDS)
    hold = Hold(activity.tenant_id, role, urgent, seconds, code, error.held_by)
    relay.after_commit(Exchange(holds=[hold]))
    return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Refusals:
    """How often in a row, and since when, the agent or its provider has refused the call (429).

    Kept in the activity's error. A success, another failure or a manual retry replaces that error, which resets the count. So does another
    provider, which the role uses since then. A call that was held before it was sent neither counts nor resets the count. Times are the
    starts of runs, by PostgreSQL's clock; `last` is that of the last run, and `idle` the time in which the work waited for something else.
    """

    in_a_row: int = 0
    since: datetime | None = None
    last: datetime | None = None
    idle: timedelta = timedelta()
    waited: timedelta = timedelta()

    @classmethod
    def after(cls, activity: Activity, error: AgentError) -> Refusals:
        """Return the count including this error of the live run of `activity`, a locked row."""
        stored = activity.error or {}
        if isinstance(error, AgentRateLimited) and error.held_by != stored.get("held_by"):
            stored = {}  # The role used another provider before.
        since, last = _read_time(stored.get("since")), _read_time(stored.get("last"))
        in_a_row, idle = stored.get("in_a_row", 0), timedelta(seconds=stored.get("idle_seconds", 0))
        began = activity.started_at or activity.assigned_at
        if began and last:
            longest = max(LONGEST_GAP_SECONDS, settings.ORCHESTRATOR_RATE_LIMITED_BACKOFF_SECONDS)
            idle += max(timedelta(), began - last - timedelta(seconds=longest))
        if error.nothing_sent or not isinstance(error, AgentRateLimited):
            return cls(in_a_row, since, began, idle)
        since = since or began
        return cls(in_a_row + 1, since, began, idle, began - since - idle if began and since else timedelta())

    def as_dict(self) -> dict[str, Any]:
        if self.since is None:
            return {}
        last = self.last.isoformat() if self.last else None
        return {
            "in_a_row": self.in_a_row, "since": self.since.isoformat(), "last": last, "idle_seconds": self.idle.total_seconds()
        }  # fmt: skip

    def backoff(self, policy: RetryPolicy) -> timedelta:
        """Return the delay if the provider names none: about the policy's first delay, doubled by every further refusal."""
        most = settings.ORCHESTRATOR_RATE_LIMITED_BACKOFF_SECONDS
        doubling = replace(
            policy, strategy="exponential", base_seconds=max(1.0, policy.base_seconds),
            multiplier=max(2.0, policy.multiplier), max_seconds=most, jitter=max(0.1, policy.jitter),
        )  # fmt: skip
        return doubling.delay(self.in_a_row)


def _read_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _alert_refusals(activity: Activity, refusals: Refusals) -> None:
    """Raise an alert once a day for each role, because a provider that refuses one activity mostly refuses all."""
    since = refusals.since or clock.now()
    raise_alert(
        activity.tenant_id,
        AlertKind.RATE_LIMITED,
        f"{activity.agent_role} is rate limited again and again",
        body=f"{activity.name} was refused (429) {refusals.in_a_row} times in a row since {since:%Y-%m-%d %H:%M} UTC. Refusals use up no "
        "attempts, and the work is retried at growing intervals. Lower the role's rate, or ask its provider for a higher limit.",
        activity_id=activity.pk,
        facts={"role": activity.agent_role, "in_a_row": refusals.in_a_row, "since": since},
        dedup_key=f"rate_limited:{activity.agent_role}:{activity.started_at:%Y-%m-%d}",
    )


def record_stalled(run: RunToken, *, beats_seen: int | None = None, counts: bool = True) -> transitions.Moved:
    """Requeue the work of a lost worker or a silent agent. After too many stalls the work fails instead.

    `beats_seen`: the number of heartbeats when the agent was found silent; if it has sent another one, the run continues. `counts`: False
    if the worker was lost to an outage, which says nothing about the work. Raises `RunSuperseded`.
    """
    lost = "The worker that ran this was lost."
    if beats_seen is not None:
        lost = f"The agent has sent no heartbeat for {settings.ORCHESTRATOR_AGENT_SILENT_SECONDS:g} s."
    elif not counts:
        lost = "The worker that ran this could not reach PostgreSQL for longer than its lease."
    error = {"code": "stalled", "message": lost, "retryable": True}
    with tenant_scope(run.tenant_id):
        activity = activity_tree.lock_live(run, with_parent=True)
        if beats_seen is not None:
            seen = ActivityRun.objects.for_tenant(run.tenant_id).filter(pk=run.run_id, beats=beats_seen)
            if not seen.exists():
                raise RunSuperseded(run.run_id)
        if counts and activity.stalls >= settings.ORCHESTRATOR_MAX_STALLS:
            return _fail_for_good(run, error, DeadLetterReason.STALLED, "recovery")
        moved = transitions.requeue(
            run, run_status="stalled",
            error=error, cause="stall", attempts=-1, stalls=int(counts), actor="recovery",
        )  # fmt: skip
        _give_back(moved)
        outbox.run_again(moved)
        budgets.settle_ended_run(run, moved)
    return moved


def out_of_budget(run: RunToken, refusal: OutOfBudget) -> None:
    """Stop a run that has exceeded a budget. Its work waits for money. Raises `RunSuperseded`.

    If a worker is still waiting for the agent's answer, the slot is released with that answer.
    """
    with tenant_scope(run.tenant_id):
        activity_tree.lock_live(run)
        moved = transitions.requeue(
            run, run_status="failed",
            error=as_dict(BudgetSpent(str(refusal))), cause=budgets.CAUSE, due_at=budgets.NEVER, attempts=-1, actor="engine",
        )  # fmt: skip
        outbox.run_again(moved, later=True)
        if moved.accepted_at is not None:
            _give_back(moved)
        budgets.settle_ended_run(run, moved)
        budgets.note_wait(moved, refusal)


def record_accepted(run: RunToken) -> None:
    """Record that the agent accepted the work (202) and will call back, so no worker waits for it. Idempotent. Raises `RunSuperseded`."""
    with tenant_scope(run.tenant_id):
        moved = ActivityRun.objects.for_tenant(run.tenant_id).filter(
            pk=run.run_id, fence=run.fence, status="running"
        )
        if not moved.update(accepted_at=Coalesce("accepted_at", Now()), worker_id=None):
            # The callback may have arrived before the 202.
            raise RunSuperseded(run.run_id)


def persistently(action: Callable[[], T]) -> T:
    """Call `action`, and retry it during an outage for as long as this process holds its lease. Then the error is raised.

    The work of an agent must not be lost to an outage. `action` may have taken effect although its answer was lost, so it must be
    idempotent: changes of a run carry its fencing number and have no effect the second time.
    """
    began, pause = time.monotonic(), 0.2
    while True:
        try:
            return action()
        except Exception as error:
            if not outages.may_pass(error):
                raise
            contended = not outages.is_away(error) and time.monotonic() - began > CONTENTION_SECONDS
            if contended or leases.is_over():
                raise
            facts = {"action": "persist_waits", "reason": type(error.__cause__ or error).__name__}
            logger.warning("A server is away, result kept", extra=facts)
            time.sleep(pause)
            close_old_connections()
            pause = min(pause * 2, 2.0)


def internal_error(error: Exception, run: RunToken) -> AgentError:
    """Return the error of a run that a bug of ours ends, or an answer that the database refuses.

    People see a failed activity, while an open run would only repeat the error.
    """
    logger.error(
        "Run broke inside the engine", exc_info=error, extra={"action": "run_broke", "run": str(run.run_id)}
    )
    return PermanentAgentError(f"Internal error: {type(error).__name__}", code="internal_error")


def overdue(timeout_seconds: int) -> AgentError:
    """Return the error of an agent that did not finish in time."""
    return RetryableAgentError(
        f"The agent did not finish the work within {timeout_seconds} s.", code="agent_timeout"
    )


def policy_of(activity: Any) -> RetryPolicy:
    """Return the retry settings: the activity's own, else those of its role, else the defaults.

    The default delay of work for a mailbox, such as that of a subagent, is that of mailbox items.
    """
    of_role = configuration.retry_of(activity.tenant_id, activity.agent_role)
    usual = {"base_seconds": settings.ORCHESTRATOR_MAILBOX_RETRY_SECONDS} if activity.mailbox_id else {}
    return RetryPolicy.of(usual, of_role, activity.retry, {"max_attempts": activity.max_attempts})


def as_dict(error: AgentError) -> dict[str, Any]:
    members = {"code": error.error_code, "message": str(error)[:2000], "retryable": error.retryable}
    return members | ({"held_by": error.held_by} if error.held_by else {})


def _retry(
    run: RunToken,
    error: AgentError,
    delay: timedelta,
    actor: str,
    attempts: int = 0,
    detail: Mapping[str, Any] | None = None,
) -> transitions.Moved:
    moved = transitions.requeue(
        run, run_status="failed",
        error=dict(detail or as_dict(error)), cause="retry", due_at=clock.now() + delay, attempts=attempts, actor=actor,
    )  # fmt: skip
    outbox.run_again(moved, later=True)
    _give_back(moved)
    budgets.settle_ended_run(run, moved)
    return moved


def _restart_without_session(run: RunToken, error: AgentError, actor: str) -> transitions.Moved:
    """Requeue work whose agent does not know the session that it should continue. It starts a new one; this uses up no attempt."""
    moved = transitions.requeue(
        run, run_status="failed",
        error=as_dict(error), cause="session", attempts=-1, actor=actor,
    )  # fmt: skip
    sessions.disown(run, moved)
    _give_back(moved)
    outbox.run_again(moved)
    budgets.settle_ended_run(run, moved)
    return moved


def _fail_for_good(
    run: RunToken, error: Mapping[str, Any], reason: DeadLetterReason, actor: str
) -> transitions.Moved:
    moved = transitions.apply(
        run.activity_id,
        "fail",
        actor=actor,
        run_id=run.run_id,
        detail={"error": dict(error)},
        error=dict(error),
    )
    run_status = "stalled" if reason == DeadLetterReason.STALLED else "failed"
    ended = transitions.end_run(
        tenant_id=run.tenant_id, activity_id=run.activity_id, run_status=run_status, error=error
    )
    if ended:
        relay.after_commit(Exchange(releases=[Release(run.activity_id, ended.grant)]))
    dead_letter_records.record_dead_letter(moved, reason=reason, run_id=run.run_id, error=error)
    if ended:
        budgets.settle_ended_run(run, ended)
    return moved


def note_late(run: RunToken, result: Completed) -> bool:
    """Record the usage that an agent reports after the end of its run and, if it has suspended its activity itself, the session.

    The output is discarded. Returns whether the agent suspended the activity.
    """
    with tenant_scope(run.tenant_id):
        runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(pk=run.run_id, fence=run.fence)
        suspended = runs.exclude(ended_by_tool="").select_related("activity").first()
        if suspended is not None:
            sessions.note_used(run, suspended.activity, result.session_id)
        if result.usage is not None:
            budgets.count_usage(run, result.usage)
    return suspended is not None


def note_usage(run: RunToken, usage: Usage) -> None:
    """Record the usage in an answer that could not be accepted, because the money is spent."""
    with tenant_scope(run.tenant_id):
        budgets.count_usage(run, usage)


def _give_back(moved: transitions.Moved) -> None:
    relay.after_commit(Exchange(releases=[Release(moved.id, moved.grant)]))
