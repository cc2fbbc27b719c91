"""Reports of agents about their runs: heartbeats, usage, results and failures.

A report is accepted while its run is the live one. A later report that repeats the one that ended the run gets the same answer again. Any
other late report raises `RunOver`, which tells the agent to stop.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any
from uuid import UUID

import redis
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from activities import activity_tree, budgets, keys, outputs, reassignment, sessions
from activities.budgets import UsageCount
from activities.exceptions import ActivityError, OutOfBudget, OutputUnavailable, RunSuperseded
from activities.execution import results
from activities.models import ActivityRun
from activities.run_tokens import RunToken
from activities.states import SETTLED, RunStatus, Status
from agents.contracts import Completed, Usage
from agents.exceptions import AgentError, BudgetSpent
from agents.webhook_signing import TOLERANCE_SECONDS
from tenants.context import tenant_scope
from tenants.redis import client

logger = logging.getLogger(__name__)

#: The reason that an agent receives whose run has ended in this way.
_REASONS = {
    RunStatus.CANCELLED: "The work was cancelled or reassigned.",
    RunStatus.STALLED: "The run was declared lost, and another one took over.",
    RunStatus.FAILED: "The run has failed already, or was not finished in time.",
    RunStatus.COMPLETED: "The run has been completed already.",
}
_SUPERSEDED = "Another run has taken over."
_SUSPENDED = "The agent suspended the work with {tool}. It will be started again when there is news."
_REASSIGNED = "The agent has reassigned the work. Another activity continues it."


class RunOver(ActivityError):
    """The run is no longer the live one of its activity. Its agent must stop."""

    code = "run_superseded"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.problem_members = {"stop": True, "reason": reason}


class AlreadyCompleted(ActivityError):
    """The run was completed with another result, which remains valid."""

    code = "already_completed"

    def __init__(self) -> None:
        super().__init__("This run was completed with another result before, and that one remains valid.")
        self.problem_members = {"stop": True, "reason": str(self)}


def live_run(token: RunToken) -> ActivityRun:
    """Return the run if it is live. Raises `RunOver`."""
    with tenant_scope(token.tenant_id):
        run = _run_of(token)
    if run is None or run.status != RunStatus.RUNNING:
        raise RunOver(reason_of(run))
    return run


def live_or_suspended_run(token: RunToken) -> ActivityRun:
    """Return the run if it is live, or if a tool has ended it, because that call may be repeated. Raises `RunOver`."""
    with tenant_scope(token.tenant_id):
        run = _run_of(token)
    if run is None or (run.status != RunStatus.RUNNING and not run.ended_by_tool):
        raise RunOver(reason_of(run))
    return run


def run_over(token: RunToken) -> RunOver:
    """Return the error for a report about a run that is over."""
    with tenant_scope(token.tenant_id):
        return RunOver(reason_of(_run_of(token)))


def beat(token: RunToken, *, progress: Any, usage: Usage | None, session_id: str | None = None) -> str | None:
    """Record a heartbeat. Returns None, or why the agent must stop. Raises `RunOver` if the run has ended, except by cancellation."""
    # In its own transaction, because one that has not locked the activity may write the run's row only once.
    sessions.saw(token, session_id)
    with tenant_scope(token.tenant_id):
        counted = _note_beat(token, progress, usage)
        run = None if counted.live else _run_of(token)
    if counted.live:
        return _stop_reason(token, counted.refusal)
    if run is not None and (run.status == RunStatus.CANCELLED or run.ended_by_tool):
        return reason_of(run)
    raise RunOver(reason_of(run))


def _note_beat(token: RunToken, progress: Any, usage: Usage | None) -> UsageCount:
    if usage is not None:
        return budgets.count_usage(token, usage, beat=True, progress=progress)
    changes: dict[str, Any] = {"beats": F("beats") + 1, "beat_at": Now()}
    if progress is not None:
        changes["progress"] = progress
    return UsageCount(live=bool(_runs_of(token).filter(status=RunStatus.RUNNING).update(**changes)))


def count_usage(token: RunToken, usage: Usage) -> str | None:
    """Record the usage of a run in a worker so far. Returns None, or why its agent must stop."""
    with tenant_scope(token.tenant_id):
        counted = budgets.count_usage(token, usage)
        run = None if counted.live else _run_of(token)
    return _stop_reason(token, counted.refusal) if counted.live else reason_of(run)


def _stop_reason(token: RunToken, refusal: OutOfBudget | None) -> str | None:
    """End a live run that is out of budget. Returns the reason, or None. If this fails, the next report exceeds the budget again."""
    if refusal is None:
        return None
    try:
        results.out_of_budget(token, refusal)
    except RunSuperseded:
        logger.info("Run ended otherwise", extra={"action": "run_superseded", "run": str(token.run_id)})
    return str(refusal)


def note_progress(token: RunToken, progress: Mapping[str, Any]) -> None:
    """Merge into the progress of a run in a worker, which may be over already."""
    with tenant_scope(token.tenant_id):
        run = _runs_of(token).select_for_update().only("id", "progress").first()
        if run is not None:
            before = run.progress if isinstance(run.progress, dict) else {}
            _runs_of(token).update(progress={**before, **progress})


def stop_reason(token: RunToken) -> str | None:
    """Return why the result of a run is no longer needed, or None. A run that suspended its activity may still finish its call."""
    with tenant_scope(token.tenant_id):
        run = _run_of(token)
    if run is not None and (run.status == RunStatus.RUNNING or run.ended_by_tool):
        return None
    return reason_of(run)


class Receipt(StrEnum):
    ACCEPTED = "accepted"
    REPEATED = "repeated"  # it was accepted before
    SUSPENDED = "put_aside"  # the agent has suspended its activity, so the report changes nothing


def complete(token: RunToken, result: Completed, *, actor: str) -> Receipt:
    """Accept the result. Raises `OutputTooLarge`, `RunOver`, `AlreadyCompleted`."""
    outputs.refuse_too_large(result.output)
    try:
        with tenant_scope(token.tenant_id):
            activity = activity_tree.lock_with_parent(token.tenant_id, token.activity_id)
            needs_approval = activity is not None and activity.requires_approval
            results.record_completed(token, result, needs_approval=needs_approval, actor=actor)
    except RunSuperseded as error:
        if results.note_late(token, result):
            return Receipt.SUSPENDED
        with tenant_scope(token.tenant_id):
            run = _run_of(token)
        if run is None or run.status != RunStatus.COMPLETED:
            raise RunOver(reason_of(run)) from error
        if not _is_same(token, result):
            raise AlreadyCompleted from error
        return Receipt.REPEATED
    return Receipt.ACCEPTED


def fail(token: RunToken, error: AgentError, *, actor: str) -> Receipt:
    """Record the failure. Raises `RunOver`."""
    try:
        results.record_failed(token, error, actor=actor)
    except RunSuperseded as superseded:
        with tenant_scope(token.tenant_id):
            run = _run_of(token)
        if run is not None and run.ended_by_tool:
            return Receipt.SUSPENDED
        # The stored error may say more, such as how often in a row the agent was refused.
        if (
            run is None
            or run.status != RunStatus.FAILED
            or not results.as_dict(error).items() <= (run.error or {}).items()
        ):
            raise RunOver(reason_of(run)) from superseded
        return Receipt.REPEATED
    return Receipt.ACCEPTED


def reason_of(run: Any) -> str:
    """Return why the run of `_run_of` is over."""
    if run is not None and run.ended_by_tool:
        if run.ended_by_tool == reassignment.TOOL:
            return _REASSIGNED
        if run.activity_status not in SETTLED:
            return _SUSPENDED.format(tool=run.ended_by_tool)
        return _REASONS[RunStatus.CANCELLED] if run.activity_status == Status.CANCELLED else _SUPERSEDED
    if (
        run is not None
        and run.status == RunStatus.FAILED
        and (run.error or {}).get("code") == BudgetSpent.code
    ):
        return str((run.error or {}).get("message"))
    return _SUPERSEDED if run is None else _REASONS.get(RunStatus(run.status), _SUPERSEDED)


def _run_of(token: RunToken) -> Any:
    """Return the run with the status of its activity, or None."""
    return _runs_of(token).annotate(activity_status=F("activity__status")).first()


def _runs_of(token: RunToken) -> QuerySet[Any]:
    """Return the query for the token's run, which has at most one row."""
    rows: QuerySet[Any] = ActivityRun.objects.for_tenant(token.tenant_id)
    return rows.filter(pk=token.run_id, activity_id=token.activity_id, fence=token.fence)


def _is_same(token: RunToken, result: Completed) -> bool:
    try:
        stored = outputs.read(token.tenant_id, token.run_id)
    except OutputUnavailable:
        return True  # It cannot be compared now, and a repetition is by far the more likely case.
    output = result.output
    return stored is not None and (stored.content, stored.data, stored.content_type) == (
        output.content, output.data, output.content_type
    )  # fmt: skip


# The replay cache of signed reports, in Redis. It is only a cache: losing it loses no report.


#: A message is valid from five minutes before its timestamp to five minutes after it.
REMEMBERED_SECONDS = 2 * TOLERANCE_SECONDS + 60


def first_report_with(tenant_id: UUID, role: str, message_id: str, digest: str) -> str | None:
    """Return the digest of the first report with this id, or None if this is the first, which is stored. Raises `RedisError`."""
    key = _key(tenant_id, role, message_id)
    connection = client()
    if connection.set(key, digest, nx=True, ex=REMEMBERED_SECONDS):
        return None
    digest_before = connection.get(key)
    # It may have expired between the two commands. Then its timestamp is too old to be accepted again anyway.
    return digest_before.decode() if isinstance(digest_before, bytes) else digest


def forget_report(tenant_id: UUID, role: str, message_id: str) -> None:
    """Forget a report that had no effect. Without Redis, a repetition that only this memory recognises has no effect either."""
    with suppress(redis.RedisError):
        client().delete(_key(tenant_id, role, message_id))


def _key(tenant_id: UUID, role: str, message_id: str) -> str:
    # The sender chooses the id. Its hash has a fixed length and no special characters.
    hashed = hashlib.sha256(message_id.encode()).hexdigest()
    return keys.report(tenant_id, role, hashed)
