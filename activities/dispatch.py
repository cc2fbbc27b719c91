"""Dispatch: one granted activity is claimed, run by its agent, and its result recorded.

A message is a hint. Whether there is work is decided by the grant (its slots must still be held) and by the claim (a compare-and-set in
PostgreSQL); a duplicate, late or forged message finds one of them refused and does nothing. No transaction is open while the agent works.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.db import connections

from activities import provider_batches
from activities.admission import CLAIM_SECONDS, Closed, Exchange, Grant
from activities.admission.exchange import Offer, Release
from activities.exceptions import OutOfBudget, OutputUnavailable, RunSuperseded
from activities.execution import request as execution_request
from activities.execution import results
from activities.execution import sessions as execution_sessions
from activities.execution.request import Attempt, Material
from activities.execution.run_links import LinkOfRun
from activities.load_shedding import PROTECTION
from activities.models import Activity, ActivityRun, Wake
from activities.run_tokens import RunToken
from agents import configuration, runner, sessions, skills
from agents.contracts import Accepted, AgentRequest, AgentResult, Parked
from agents.exceptions import AgentError, InputUnavailable, PermanentAgentError, ServerAway
from agents.routing import queue_of
from agents.skills import Knowledge
from tenants import clock, outages, request_context, tracing
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

from . import admission, budgets, leases, relay, transitions

logger = logging.getLogger(__name__)

# What a message from the broker may say, and what is written down when one says something else.
#
# Whoever can write to Redis can push any message. None is believed: what it names must be of the right form, then the grant must be held
# and the claim must succeed. A refused one changes nothing; it is logged, so that somebody who tries is seen.


LONGEST_GRANT = 100  # characters; ours have a quarter of that
LONGEST_ROLE = 63


class MalformedMessage(ValueError):
    """The arguments are not those of a message of ours."""


def read_message(*, tenant: object, activity: object, grant: object, role: object) -> Grant:
    """The grant that a message tells of. Raises `MalformedMessage`."""
    if not isinstance(grant, str) or not 0 < len(grant) <= LONGEST_GRANT:
        raise MalformedMessage("grant")
    if not isinstance(role, str) or not 0 < len(role) <= LONGEST_ROLE:
        raise MalformedMessage("role")
    return Grant(_id("activity", activity), _id("tenant", tenant), role, grant, started=False)


def refuse_message(why: str, grant: Grant | None = None) -> None:
    """Write down a message that none of our processes has sent."""
    named = {"tenant": str(grant.tenant_id), "activity": str(grant.activity_id)} if grant else {}
    logger.warning("Message refused", extra={"action": "message_refused", "reason": why, **named})


def note_stale_message(grant: Grant) -> None:
    """A second delivery, one of long ago, or one that was made up: from here they look the same, and nothing follows."""
    logger.info(
        "Message without a grant",
        extra={
            "action": "message_stale",
            "tenant": str(grant.tenant_id),
            "activity": str(grant.activity_id),
        },
    )


def _id(name: str, value: object) -> UUID:
    if not isinstance(value, str) or len(value) != 36:
        raise MalformedMessage(name)
    try:
        return UUID(value)
    except ValueError as error:
        raise MalformedMessage(name) from error


def receive(**told: object) -> None:
    """Do what a message tells of, if it tells of a grant at all."""
    try:
        grant = read_message(**told)
    except MalformedMessage as fault:
        refuse_message(f"malformed {fault}")
    else:
        work(grant)


def work(grant: Grant) -> None:
    """Run the granted activity, and go on with what is granted next as long as the message is young.

    Going on saves a message; a long agent call is always the last of its message, so messages stay true to the work.
    """
    _replace_broken_connections()
    lease, began = leases.current(), time.monotonic()
    asked = began  # when it was last certain that no answer of admission about `following` had come yet
    if grant.role not in lease.roles:
        # On the queue of another role, where publishing never puts it. What was granted is published again on its own.
        refuse_message("role_not_served", grant)
        return
    if not _still_granted(grant):
        note_stale_message(grant)
        return
    following: Grant | None = grant
    while following is not None:
        with relay.collecting() as gathered:
            superseded = _run(following, lease, asked)
        asked = time.monotonic()
        go_on = asked - began < settings.ORCHESTRATOR_CONTINUE_SECONDS and not lease.draining.is_set()
        before, following = (
            following,
            relay.release_and_acquire(gathered, roles=lease.open_roles(), go_on=go_on),
        )
        if superseded:
            _offer_if_woken(before)


def _replace_broken_connections() -> None:
    """Only those that failed: asking each one whether it still works would cost a round trip per message."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()


def _still_granted(grant: Grant) -> bool:
    return grant.started or _slot_is_held(grant)


def _slot_is_held(grant: Grant) -> bool:
    try:
        return admission.start(grant.activity_id, grant.grant)
    except (Closed, redis.RedisError):
        # Without slots nothing may start. Recovery offers the activity again when admission is back.
        return False


def _run(grant: Grant, lease: leases.Lease, asked: float) -> bool:
    """One activity from claim to result; whether its run was over before its call. Slots are given back by what ends the run."""
    run_id, began = uuid7(), time.time_ns()
    with lease.holding(run_id), PROTECTION.turn(lease, grant.role) as door_open:
        claimed = None
        if not door_open:
            # The door has closed on it. It is offered again, to workers whose doors are open.
            _give_back_unless_used(grant)
            return True
        try:
            claimed = results.persistently(lambda: _claim(grant, lease, run_id, asked))
        except _SlotWithdrawn:
            note_stale_message(grant)
        except AgentError as error:
            logger.warning(
                "Role cannot run", extra={"action": "claim_failed", "role": grant.role, "reason": str(error)}
            )
        except OutOfBudget as error:
            # The claim was undone with its transaction.
            refusal = error
            results.persistently(lambda: budgets.postpone(grant.tenant_id, grant.activity_id, refusal))
        if claimed is None:
            results.persistently(lambda: _give_back_unless_used(grant, run_id))
            return False
        try:
            with run_of(claimed.row, run_id, began=began):
                _call(claimed)
        except RunSuperseded:
            # Somebody else ended this run; our slots were given back with it, or are now.
            logger.info(
                "Result of a superseded run refused",
                extra={"action": "run_superseded", "run": str(run_id)},
            )
            relay.hand_over(_turned_over(grant))
            return True
    return False


def _turned_over(grant: Grant) -> Exchange:
    """The slot of a run that was over before its call was: now it is free in truth."""
    with tenant_scope(grant.tenant_id):
        ActivityRun.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, grant=grant.grant
        ).exclude(status="running").update(worker_id=None)
    return Exchange(releases=[Release(grant.activity_id, grant.grant)])


def _offer_if_woken(grant: Grant) -> None:
    """Offer an activity that was woken during the call: before its slot was free, its offers changed nothing.

    Looked at after the slot was given back. Who wakes it later than this look offers it to a slot that is free.
    """
    with tenant_scope(grant.tenant_id):
        # Each by its key alone: joined, or asked for what is due or created, PostgreSQL may read all that waits.
        wakes = Wake.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, state="pending"
        )
        found = Activity.objects.for_tenant(grant.tenant_id).filter(pk=grant.activity_id)
        is_due = None in wakes.values_list("due_at", flat=True)
        offers = [Offer.of(activity) for activity in found if is_due and activity.status == "created"]
    relay.hand_over(Exchange(offers=offers))


def _give_back_unless_used(grant: Grant, run_id: UUID | None = None) -> None:
    """There was nothing to claim. Perhaps because another delivery of this message was first: then the slots are its to give back.

    Or because our own claim, `run_id`, has happened, and its answer was lost with the connection or came when the slot was gone: then
    nobody works on it, and it goes back.
    """
    with tenant_scope(grant.tenant_id):
        runs = ActivityRun.objects.for_tenant(grant.tenant_id)
        used = runs.filter(activity_id=grant.activity_id, grant=grant.grant).first()
        if used is not None and used.pk == run_id:
            lost = ServerAway("The answer to the claim was lost, or came too late.", retry_after=0.0)
            with suppress(RunSuperseded):
                results.failed(RunToken(grant.tenant_id, grant.activity_id, run_id, used.fence), lost)
            return
        named = Activity.objects.for_tenant(grant.tenant_id).filter(
            pk=grant.activity_id, agent_role=grant.role
        )
        forged = used is None and not named.exists()
    if forged:
        # The slot is that of somebody else's message, which is still to come.
        refuse_message("forged", grant)
    elif used is None:
        relay.hand_over(Exchange(releases=[Release(grant.activity_id, grant.grant, unused=True)]))


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A claimed activity and what its request is built from."""

    row: Any
    run: RunToken
    role: configuration.RoleSettings
    knowledge: Knowledge
    grant: Grant


class _SlotWithdrawn(Exception):
    """The slot went to others while the claim waited for PostgreSQL. What was claimed is handed back, if anything was."""


def _claim(grant: Grant, lease: leases.Lease, run_id: UUID, asked: float) -> _Claimed | None:
    """`asked` is the moment before admission said that the slot is held, by the monotonic clock.

    A slot without a run is taken back by the audit of slots, and is none of a generation that was rebuilt, both at the earliest
    `SETTLE_SECONDS` later. A claim that took `CLAIM_SECONDS`, behind a locked row or a server that was away, asks for its slot again
    before anything is called.
    """
    with tenant_scope(grant.tenant_id):
        role = configuration.settings_for(grant.tenant_id, grant.role)
        knowledge = execution_request.knowledge_of(grant.tenant_id, grant.role, role)
        briefing = sessions.briefing_with(role.briefing, knowledge.versions)
        _refuse_late(grant, asked)
        found = transitions.claim(
            tenant_id=grant.tenant_id, activity_id=grant.activity_id, role=grant.role, run_id=run_id, grant=grant.grant,
            worker_id=lease.worker_id, timeout_seconds=role.timeout_seconds, version=role.adapter.version or "", briefing=briefing,
            day=clock.today(),
        )  # fmt: skip
        if role.budgeted and (row := found.first()) is not None:
            budgets.reserve(row, run_id, execution_request.role_for(role, row.agent_options))
    row = found.first()
    if row is None:
        return None
    _refuse_late(grant, asked)
    role = execution_request.role_for(role, row.agent_options)
    signs = grant.role if role.adapter.options.get("signed_callbacks") is True else ""
    run = RunToken(
        grant.tenant_id, row.id, run_id, row.fence, briefing, execution_sessions.continued(row), signs
    )
    return _Claimed(row, run, role, knowledge, grant)


def _refuse_late(grant: Grant, asked: float) -> None:
    """Raises `_SlotWithdrawn` when it took so long that the slot may have gone to others, and it has."""
    if time.monotonic() - asked > CLAIM_SECONDS and not _slot_is_held(grant):
        raise _SlotWithdrawn


def _call(claimed: _Claimed) -> None:
    """Call the agent and record what comes of it. Raises `RunSuperseded` when that no longer counts."""
    run = claimed.run
    try:
        with skills.laid_out(_request(claimed), claimed.knowledge) as request:
            result = runner.run_agent(request, link=LinkOfRun(run))
        _answered(claimed, result)
    except AgentError as error:
        fault = error
    except RunSuperseded:
        raise
    except Exception as error:
        if outages.is_away(error):
            # Nobody's fault: the run is handed back as soon as that can be recorded.
            fault = ServerAway("A server that the run needs went away.")
        elif outages.may_pass(error):
            raise  # The run has no thread now, is found as such, and handed back.
        else:
            # A mistake of ours, or an answer that the database refuses. Failing the activity shows it to people; leaving
            # the run open would only repeat it.
            facts = {"action": "run_broke", "run": str(run.run_id)}
            logger.exception("Run broke inside the engine", extra=facts)
            fault = PermanentAgentError(f"Internal error: {type(error).__name__}", code="internal_error")
    else:
        return
    tracing.fail(fault.error_code)
    results.persistently(lambda: results.failed(run, fault))


def _answered(claimed: _Claimed, result: AgentResult) -> None:
    run, needs_approval = claimed.run, claimed.row.requires_approval
    if isinstance(result, Parked):
        results.persistently(lambda: provider_batches.park(run, result, claimed.row))
        if claimed.row.group_key or claimed.row.files:
            _leave_seat(claimed.grant)  # The other slots it keeps, since its group or its files wait for it.
        return
    if isinstance(result, Accepted):
        results.persistently(lambda: execution_sessions.saw(run, result.session_id))
        results.persistently(lambda: results.accepted(run))
        _leave_seat(claimed.grant)
        return
    try:
        results.persistently(
            lambda: results.completed(
                run,
                result,
                needs_approval=needs_approval,
                has_parent=claimed.row.link_kind is not None,
                of_step=claimed.row.step is not None,
            )
        )
    except RunSuperseded:
        results.persistently(lambda: results.note_late(run, result))
        raise


def _leave_seat(grant: Grant) -> None:
    try:
        admission.accept(grant.activity_id, grant.grant)
    except (Closed, redis.RedisError):
        # The audit of slots finds the seat: an accepted run has no worker.
        logger.warning("Seat not given back yet", extra={"action": "accept_waits"})


def _request(claimed: _Claimed) -> AgentRequest:
    row, role = claimed.row, claimed.role
    material = execution_request.at_hand(row) if row.started else _fetched(claimed)
    timeout = row.timeout_seconds or role.timeout_seconds
    attempt = Attempt(
        token=claimed.run, number=row.attempts, wakes=row.wakes, role=role, knowledge=claimed.knowledge, timeout_seconds=timeout,
        deadline=clock.now() + timedelta(seconds=timeout),
    )  # fmt: skip
    return provider_batches.with_history(execution_request.build(row, attempt, material), row)


def _fetched(claimed: _Claimed) -> Material:
    """Read outputs that are not in the spool any more. Between the two transactions, since MongoDB may take its time."""
    row, run = claimed.row, claimed.run
    try:
        material = execution_request.fetch(row, row.wakes)
    except OutputUnavailable as error:
        raise InputUnavailable(str(error), code=error.code) from error
    for reference in material.missing:
        raise PermanentAgentError(
            f"The output {reference} that this works on does not exist.", code="input_missing"
        )
    with tenant_scope(row.tenant_id):
        transitions.start(tenant_id=row.tenant_id, activity_id=row.id, run_id=run.run_id, fence=row.fence)
    return material


# What surrounds a run in a worker: ids on the log lines of all that happens in it, and the span of its trace.


@contextmanager
def run_of(row: Any, run_id: UUID, *, began: int) -> Iterator[None]:
    """`row` is the claimed activity, `began` when its claim did, in nanoseconds of the epoch.

    The run continues the trace of whatever woke it last, if that is young; everything else that woke it is linked, and so is the message.
    """
    causes = [wake["provenance"] for wake in row.wakes if wake["provenance"]]
    ids = {"tenant": str(row.tenant_id), "activity": str(row.id), "run": str(run_id), "role": row.agent_role}
    with request_context.of_work(causes, **ids), tracing.span(
        f"run {row.agent_role}", tracing.CONSUMER,
        attributes=_attributes(row, ids) if tracing.is_on() else None,
        causes=causes[-1:], links=[*causes[:-1], *tracing.arrival()], began=began,
    ):  # fmt: skip
        yield


def _attributes(row: Any, ids: dict[str, str]) -> dict[str, Any]:
    return {
        **{f"orchestrator.{name}": value for name, value in ids.items()},
        "orchestrator.attempt": row.attempts,
        "orchestrator.wake_reason": row.reason,
        "orchestrator.request_id": request_context.current().get(request_context.REQUEST, ""),
        "messaging.system": "celery",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue_of(row.agent_role),
    }
