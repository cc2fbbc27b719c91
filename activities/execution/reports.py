"""What agents report about their runs, turned into what the engine does; repeated reports are recognised.

A report counts while its run is the live one. What comes later is either a repetition of the report that ended the run, which gets
the first outcome again, or it is refused with `RunOver`, which tells the agent to stop.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from activities import activity_tree, budgets, keys, outputs
from activities.budgets import UsageCount
from activities.exceptions import ActivityError, OutOfBudget, OutputUnavailable, RunSuperseded
from activities.execution import results, sessions
from activities.models import ActivityRun
from activities.run_tokens import RunToken
from activities.states import RunStatus
from agents.contracts import Completed, Usage
from agents.exceptions import AgentError, BudgetSpent
from agents.webhook_signing import TOLERANCE_SECONDS
from tenants.context import tenant_scope
from tenants.redis import client

logger = logging.getLogger(__name__)

#: What to tell an agent whose run has ended in this way.
_REASONS = {
    RunStatus.CANCELLED: "The work was cancelled.",
    RunStatus.STALLED: "The run was given up for lost, and another one took over.",
    RunStatus.FAILED: "The run has failed already, or was not finished in time.",
    RunStatus.COMPLETED: "The run has been completed already.",
}
_SUPERSEDED = "Another run has taken over."
_PUT_ASIDE = "The agent put the work aside with {tool}; it will be started again when there is something new."


class RunOver(ActivityError):
    """The run is not the live one of its activity any more; its agent shall stop."""

    code = "run_superseded"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.problem_members = {"stop": True, "reason": reason}


class AlreadyCompleted(ActivityError):
    """The run was completed with another result, which stands."""

    code = "already_completed"

    def __init__(self) -> None:
        super().__init__("This run was completed with another result before, and that one stands.")
        self.problem_members = {"stop": True, "reason": str(self)}


class OutputTooLarge(ActivityError):
    """The output has more bytes than one may have."""

    code = "output_too_large"
    status = 413


def live_run(token: RunToken) -> ActivityRun:
    """The run, if it is live. Raises `RunOver`."""
    with tenant_scope(token.tenant_id):
        run = _runs_of(token).first()
    if run is None or run.status != RunStatus.RUNNING:
        raise RunOver(reason_of(run))
    return run


def refuse_if_over(token: RunToken) -> None:
    """Raise `RunOver` unless the run is live, or was ended by a tool whose call may come again."""
    with tenant_scope(token.tenant_id):
        run = _runs_of(token).first()
    if run is None or (run.status != RunStatus.RUNNING and not run.ended_by_tool):
        raise RunOver(reason_of(run))


def run_over(token: RunToken) -> RunOver:
    """The refusal of a report about a run that is over."""
    with tenant_scope(token.tenant_id):
        return RunOver(reason_of(_runs_of(token).first()))


def beat(token: RunToken, *, progress: Any, usage: Usage | None, session_id: str | None = None) -> str | None:
    """Note a sign of life; None, or why the agent shall stop. Raises `RunOver` when the run has ended otherwise than by being
    cancelled."""
    # By itself: the run's row may be written once in a transaction that did not lock its activity before.
    sessions.saw(token, session_id)
    with tenant_scope(token.tenant_id):
        counted = _note_beat(token, progress, usage)
        run = None if counted.live else _runs_of(token).first()
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
    """Note what a run in a worker has consumed so far; None, or why its agent shall stop."""
    with tenant_scope(token.tenant_id):
        counted = budgets.count_usage(token, usage)
        run = None if counted.live else _runs_of(token).first()
    return _stop_reason(token, counted.refusal) if counted.live else reason_of(run)


def _stop_reason(token: RunToken, refusal: OutOfBudget | None) -> str | None:
    """Why a live run shall stop, and is ended here, or None. If this is lost, its next report is one too many as well."""
    if refusal is None:
        return None
    try:
        results.out_of_budget(token, refusal)
    except RunSuperseded:
        logger.info("Run ended otherwise", extra={"action": "run_superseded", "run": str(token.run_id)})
    return str(refusal)


def note_progress(token: RunToken, progress: Mapping[str, Any]) -> None:
    """Add to the progress that was noted for a run in a worker. A run that is over may still report what it has used."""
    with tenant_scope(token.tenant_id):
        run = _runs_of(token).select_for_update().only("id", "progress").first()
        if run is not None:
            before = run.progress if isinstance(run.progress, dict) else {}
            _runs_of(token).update(progress={**before, **progress})


def stop_reason(token: RunToken) -> str | None:
    """Why the result of a run is not wanted any more, or None. A run that suspended its activity may still finish its call."""
    with tenant_scope(token.tenant_id):
        run = _runs_of(token).first()
    if run is not None and (run.status == RunStatus.RUNNING or run.ended_by_tool):
        return None
    return reason_of(run)


class Receipt(StrEnum):
    """What became of a report."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"  # it was accepted before
    PUT_ASIDE = "put_aside"  # the agent had put its work aside, so that the report changes nothing


def complete(token: RunToken, result: Completed, *, actor: str) -> Receipt:
    """Accept the result. Raises `OutputTooLarge`, `RunOver`, `AlreadyCompleted`."""
    _refuse_too_large(result)
    try:
        with tenant_scope(token.tenant_id):
            activity = activity_tree.lock_with_parent(token.tenant_id, token.activity_id)
            needs_approval = activity is not None and activity.requires_approval
            results.record_completed(token, result, needs_approval=needs_approval, actor=actor)
    except RunSuperseded as error:
        if results.note_late(token, result):
            return Receipt.PUT_ASIDE
        with tenant_scope(token.tenant_id):
            run = _runs_of(token).first()
        if run is None or run.status != RunStatus.COMPLETED:
            raise RunOver(reason_of(run)) from error
        if not _is_same(token, result):
            raise AlreadyCompleted from error
        return Receipt.REPEATED
    return Receipt.ACCEPTED


def fail(token: RunToken, fault: AgentError, *, actor: str) -> Receipt:
    """Record the failure. Raises `RunOver`."""
    try:
        results.record_failed(token, fault, actor=actor)
    except RunSuperseded as error:
        with tenant_scope(token.tenant_id):
            run = _runs_of(token).first()
        if run is not None and run.ended_by_tool:
            return Receipt.PUT_ASIDE
        if run is None or run.status != RunStatus.FAILED or run.error != results.as_dict(fault):
            raise RunOver(reason_of(run)) from error
        return Receipt.REPEATED
    return Receipt.ACCEPTED


def reason_of(run: ActivityRun | None) -> str:
    if run is not None and run.ended_by_tool:
        return _PUT_ASIDE.format(tool=run.ended_by_tool)
    if (
        run is not None
        and run.status == RunStatus.FAILED
        and (run.error or {}).get("code") == BudgetSpent.code
    ):
        return str((run.error or {}).get("message"))
    return _SUPERSEDED if run is None else _REASONS.get(RunStatus(run.status), _SUPERSEDED)


def _runs_of(token: RunToken) -> QuerySet[Any]:
    """The run that the token is about, as a query of one row at most."""
    rows: QuerySet[Any] = ActivityRun.objects.for_tenant(token.tenant_id)
    return rows.filter(pk=token.run_id, activity_id=token.activity_id, fence=token.fence)


def _is_same(token: RunToken, result: Completed) -> bool:
    try:
        stored = outputs.read(token.tenant_id, token.run_id)
    except OutputUnavailable:
        return True  # It cannot be compared now. A repetition is by far the likelier.
    output = result.output
    return stored is not None and (stored.content, stored.data, stored.content_type) == (
        output.content, output.data, output.content_type
    )  # fmt: skip


def _refuse_too_large(result: Completed) -> None:
    size = len((result.output.content or "").encode()) + len(orjson.dumps(result.output.data))
    if size > settings.ORCHESTRATOR_MAX_OUTPUT_BYTES:
        raise OutputTooLarge(
            f"The output has {size} bytes; {settings.ORCHESTRATOR_MAX_OUTPUT_BYTES} are allowed."
        )


# What signed reports have come, so that one that comes again is known. In Redis, for a while, and never the truth.


#: A message counts from five minutes before its time to five minutes after it.
REMEMBERED_SECONDS = 2 * TOLERANCE_SECONDS + 60


def first_report_with(tenant_id: UUID, role: str, message_id: str, digest: str) -> str | None:
    """The digest of the report that came first under this id; None when this is the first, which is remembered. Raises `RedisError`."""
    key = _key(tenant_id, role, message_id)
    connection = client()
    if connection.set(key, digest, nx=True, ex=REMEMBERED_SECONDS):
        return None
    digest_before = connection.get(key)
    # It may have been forgotten between the two questions; then it is too old to count again anyway.
    return digest_before.decode() if isinstance(digest_before, bytes) else digest


def _key(tenant_id: UUID, role: str, message_id: str) -> str:
    # The id is the sender's choice; hashed, it is of one length and says nothing else to Redis.
    hashed = hashlib.sha256(message_id.encode()).hexdigest()
    return keys.report(tenant_id, role, hashed)
