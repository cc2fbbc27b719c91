"""Dispatch: one granted activity is claimed, run by its agent, and its result recorded.

A message is a hint. Whether there is work is decided by the grant (its slots must still be held) and by the claim (a compare-and-set in
PostgreSQL); a duplicate, late or forged message finds one of them refused and does nothing. No transaction is open while the agent works.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.db import InterfaceError, OperationalError, connections
from django.db.models import Q

from activities import admission, leases, outputs, pacing, prompt, relay, results, run_tokens, transitions
from activities.admission import Closed, Exchange, Grant
from activities.admission.exchange import Offer, Release
from activities.exceptions import OutputUnavailable, RunSuperseded
from activities.models import Activity, ActivityRun
from activities.run_tokens import RunToken
from agents import configuration, runner, sessions
from agents.contracts import Accepted, AgentRequest, AgentResult
from agents.exceptions import AgentError, InputUnavailable, PermanentAgentError
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

logger = logging.getLogger(__name__)


def work(grant: Grant) -> None:
    """Run the granted activity, and go on with what is granted next as long as the message is young.

    Going on saves a message; a long agent call is always the last of its message, so messages stay true to the work.
    """
    _replace_broken_connections()
    if not _still_granted(grant):
        return
    lease, began = leases.current(), time.monotonic()
    following: Grant | None = grant
    while following is not None:
        with relay.collecting() as gathered:
            _run(following, lease)
        go_on = (
            time.monotonic() - began < settings.ORCHESTRATOR_CONTINUE_SECONDS and not lease.draining.is_set()
        )
        following = relay.turn_over(gathered, roles=lease.roles, go_on=go_on)


def _replace_broken_connections() -> None:
    """Only those that failed: asking each one whether it still works would cost a round trip per message."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()


def _still_granted(grant: Grant) -> bool:
    try:
        return grant.started or admission.start(grant.activity_id, grant.grant)
    except (Closed, redis.RedisError):
        # Without slots nothing may start. Recovery offers the activity again when admission is back.
        return False


def _run(grant: Grant, lease: leases.Lease) -> None:
    """One activity from claim to result. Slots are given back by what ends the run."""
    run_id = uuid7()
    with lease.holding(run_id):
        try:
            claimed = None
            if pacing.may_start(grant):
                claimed = results.persistently(lambda: _claim(grant, lease, run_id))
        except AgentError as error:
            logger.warning(
                "Role cannot run", extra={"action": "claim_failed", "role": grant.role, "reason": str(error)}
            )
            claimed = None
        if claimed is None:
            _give_back_unless_held(grant)
            return
        run = RunToken(grant.tenant_id, claimed.row.id, claimed.run_id, claimed.row.fence)
        try:
            _call(run, claimed)
        except RunSuperseded:
            # Somebody else ended this run; our slots were given back with it, or are now.
            logger.info(
                "Result of a superseded run refused",
                extra={"action": "run_superseded", "run": str(run.run_id)},
            )
            relay.hand_over(_turned_over(grant))


def _turned_over(grant: Grant) -> Exchange:
    """The slot of a run that was over before its call was. An activity that was woken meanwhile could not be granted again until now."""
    with tenant_scope(grant.tenant_id):
        ActivityRun.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, grant=grant.grant
        ).exclude(status="running").update(worker_id=None)
        woken = Activity.objects.for_tenant(grant.tenant_id).filter(
            pk=grant.activity_id, status="created", wakes__state="pending", wakes__due_at=None
        )
        offers = [Offer.of(activity) for activity in woken.distinct()]
    return Exchange(releases=[Release(grant.activity_id, grant.grant)], offers=offers)


def _give_back_unless_held(grant: Grant) -> None:
    """There was nothing to claim. Perhaps because another delivery of this message was first: then the slots are its."""
    with tenant_scope(grant.tenant_id):
        runs = ActivityRun.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, grant=grant.grant
        )
        held = runs.filter(status="running").exists()
    if not held:
        relay.hand_over(Exchange(releases=[Release(grant.activity_id, grant.grant)]))


@dataclass(slots=True)
class _Claimed:
    """A claimed activity and what its request is built from."""

    row: Any
    run_id: UUID
    role: configuration.RoleSettings
    grant: Grant
    session_id: str | None = None
    input: dict[str, Any] | None = None


def _claim(grant: Grant, lease: leases.Lease, run_id: UUID) -> _Claimed | None:
    with tenant_scope(grant.tenant_id):
        role = configuration.settings_for(grant.tenant_id, grant.role)
        row = transitions.claim(
            tenant_id=grant.tenant_id, activity_id=grant.activity_id, role=grant.role, run_id=run_id, grant=grant.grant,
            worker_id=lease.worker_id, timeout_seconds=role.timeout_seconds, version=role.adapter.version or "",
        )  # fmt: skip
        if row is None:
            return None
        session_id = sessions.find(row.tenant_id, row.deliverable_id, row.agent_role)
    return _Claimed(row, run_id, role, grant, session_id, _input_at_hand(row))


def _input_at_hand(row: Any) -> dict[str, Any] | None:
    if row.input_ref is not None:
        return {"ref": str(row.input_ref), "content": row.input_content, "data": row.input_data}
    return _inline_input(row)


def _inline_input(row: Any) -> dict[str, Any] | None:
    if not row.input:
        return None
    return {"ref": None, "content": row.input.get("content"), "data": row.input.get("data")}


def _call(run: RunToken, claimed: _Claimed) -> None:
    """Call the agent and record what comes of it. Raises `RunSuperseded` when that no longer counts."""
    try:
        _answered(
            run, claimed, runner.run_agent(_request(run, claimed), cancelled=lambda: _is_cancelled(run))
        )
    except AgentError as error:
        fault = error
    except (OperationalError, InterfaceError, RunSuperseded):
        raise
    except Exception as error:
        # A mistake of ours, or an answer that the database refuses. Failing the activity shows it to people; leaving
        # the run open would only repeat it.
        logger.exception("Run broke inside the engine", extra={"action": "run_broke", "run": str(run.run_id)})
        fault = PermanentAgentError(f"Internal error: {type(error).__name__}", code="internal_error")
    else:
        return
    results.persistently(lambda: results.failed(run, fault))


def _answered(run: RunToken, claimed: _Claimed, result: AgentResult) -> None:
    if isinstance(result, Accepted):
        results.persistently(lambda: results.accepted(run))
        _leave_seat(claimed.grant)
        return
    try:
        results.persistently(
            lambda: results.completed(run, result, needs_approval=claimed.row.requires_approval)
        )
    except RunSuperseded:
        results.persistently(lambda: results.note_after_putting_aside(run, result))
        raise


def _leave_seat(grant: Grant) -> None:
    try:
        admission.accept(grant.activity_id, grant.grant)
    except (Closed, redis.RedisError):
        # The audit of slots finds the seat: an accepted run has no worker.
        logger.warning("Seat not given back yet", extra={"action": "accept_waits"})


def _request(run: RunToken, claimed: _Claimed) -> AgentRequest:
    row, context = claimed.row, dict(claimed.row.wakes[-1]["payload"])
    if not row.started:
        _fetch_input(claimed, context)
        with tenant_scope(row.tenant_id):
            transitions.start(
                tenant_id=row.tenant_id, activity_id=row.id, run_id=claimed.run_id, fence=row.fence
            )
    timeout = row.timeout_seconds or claimed.role.timeout_seconds
    given = claimed.input or {}
    return AgentRequest(
        tenant_id=row.tenant_id, activity_id=row.id, run_id=claimed.run_id, idempotency_key=row.wakes[0]["id"],
        agent_role=row.agent_role, attempt=row.attempts,
        prompt=prompt.build(
            reason=row.reason, name=row.name, description=row.description, params=row.params,
            input_content=given.get("content"), context=context,
        ),
        settings=claimed.role.adapter, callback=run_tokens.issue(run), timeout_seconds=timeout,
        deadline=datetime.now(UTC) + timedelta(seconds=timeout), name=row.name, deliverable_id=row.deliverable_id,
        pipeline_step=row.step, priority=row.priority, params=row.params, input=claimed.input,
        wakes=tuple({"reason": wake["reason"], **wake["payload"]} for wake in row.wakes), wake_reason=row.reason,
        wake_context=context, session_id=claimed.session_id,
    )  # fmt: skip


def _fetch_input(claimed: _Claimed, context: dict[str, Any]) -> None:
    """Read outputs that are not in the spool any more. Between the two transactions, since MongoDB may take its time."""
    row = claimed.row
    try:
        claimed.input = _read_input(row.tenant_id, row.input_ref) if row.input_ref else _inline_input(row)
        if refs := (row.input or {}).get("refs"):
            steps = {step: _read_input(row.tenant_id, ref) for step, ref in refs.items()}
            claimed.input = {
                **(claimed.input or {"ref": None, "content": None, "data": None}),
                "steps": steps,
            }
        if reference := context.get("rejection_ref"):
            rejected = outputs.read(row.tenant_id, UUID(reference))
            context["rejected_output"] = rejected.content if rejected else None
    except OutputUnavailable as error:
        raise InputUnavailable(str(error), code=error.code) from error


def _read_input(tenant_id: Any, reference: Any) -> dict[str, Any]:
    found = outputs.read(tenant_id, reference)
    if found is None:
        raise PermanentAgentError(
            f"The output {reference} that this works on does not exist.", code="input_missing"
        )
    return {"ref": str(reference), "content": found.content, "data": found.data}


def _is_cancelled(run: RunToken) -> bool:
    """Whether nobody wants the answer any more. An agent that put its work aside may still end its call in its own time."""
    with tenant_scope(run.tenant_id):
        runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(pk=run.run_id)
        return not runs.filter(Q(status="running") | ~Q(ended_by_tool="")).exists()
