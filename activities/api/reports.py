"""What agents report about their runs, turned into what the engine does; repeated reports are recognised.

A report counts while its run is the live one. What comes later is either a repetition of the report that ended the run, which gets
the first outcome again, or it is refused with `RunOver`, which tells the agent to stop.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Any

import orjson
from django.conf import settings
from django.db.models import F, QuerySet

from activities import conversations, families, outputs, results
from activities.exceptions import ActivityError, OutputUnavailable, RunSuperseded
from activities.models import ActivityRun
from activities.run_tokens import RunToken
from activities.states import RunStatus
from agents.contracts import Completed, Usage
from agents.exceptions import AgentError
from tenants.context import tenant_scope

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
    changes: dict[str, Any] = {"beats": F("beats") + 1}
    if progress is not None:
        changes["progress"] = progress
    if usage is not None:
        changes["usage"] = as_dict(usage)
    with tenant_scope(token.tenant_id):
        conversations.saw(token, session_id)
        if _runs_of(token).filter(status=RunStatus.RUNNING).update(**changes):
            return None
        run = _runs_of(token).first()
    if run is not None and (run.status == RunStatus.CANCELLED or run.ended_by_tool):
        return reason_of(run)
    raise RunOver(reason_of(run))


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
            activity = families.lock_with_parent(token.tenant_id, token.activity_id)
            needs_approval = activity is not None and activity.requires_approval
            results.completed(token, result, needs_approval=needs_approval, actor=actor)
    except RunSuperseded as error:
        if results.note_after_putting_aside(token, result):
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
        results.failed(token, fault, actor=actor)
    except RunSuperseded as error:
        with tenant_scope(token.tenant_id):
            run = _runs_of(token).first()
        if run is not None and run.ended_by_tool:
            return Receipt.PUT_ASIDE
        if run is None or run.status != RunStatus.FAILED or run.error != results.as_dict(fault):
            raise RunOver(reason_of(run)) from error
        return Receipt.REPEATED
    return Receipt.ACCEPTED


def as_dict(usage: Usage) -> dict[str, Any]:
    return {**asdict(usage), "cost_usd": None if usage.cost_usd is None else str(usage.cost_usd)}


def reason_of(run: ActivityRun | None) -> str:
    if run is not None and run.ended_by_tool:
        return _PUT_ASIDE.format(tool=run.ended_by_tool)
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
    given = result.output
    return stored is not None and (stored.content, stored.data, stored.content_type) == (
        given.content, given.data, given.content_type
    )  # fmt: skip


def _refuse_too_large(result: Completed) -> None:
    size = len((result.output.content or "").encode()) + len(orjson.dumps(result.output.data))
    if size > settings.ORCHESTRATOR_MAX_OUTPUT_BYTES:
        raise OutputTooLarge(
            f"The output has {size} bytes; {settings.ORCHESTRATOR_MAX_OUTPUT_BYTES} are allowed."
        )
