"""Claims: turn granted activities into runs of this worker, or give their slots back.

A message is only a hint. The grant (its slots must still be held) and the claim (a compare-and-set in PostgreSQL) decide whether there is
work. A duplicate, late or forged message fails one of the two checks and has no effect.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import redis

from activities import admission, budgets, leases, relay, sessions, transitions
from activities.admission import CLAIM_SECONDS, Closed, Exchange, Grant
from activities.admission.exchange import Release
from activities.combining import Combining
from activities.exceptions import OutOfBudget, RunSuperseded
from activities.execution import results
from activities.models import Activity, ActivityRun
from activities.quick_work import HeldGrant
from activities.run_tokens import RunToken
from activities.submission import Reservation
from agents import configuration
from agents.exceptions import AgentError, ServerAway
from agents.skills import Knowledge
from tenants import clock, tracing
from tenants.context import tenant_scope
from tenants.sql import Rows

logger = logging.getLogger(__name__)


def refuse_message(why: str, grant: Grant | None = None) -> None:
    """Log a message that no process of ours has sent."""
    ids = {"tenant": str(grant.tenant_id), "activity": str(grant.activity_id)} if grant else {}
    logger.warning("Message refused", extra={"action": "message_refused", "reason": why, **ids})


def note_stale_message(grant: Grant) -> None:
    """Log a message whose grant is not held: a duplicate, a late or a forged one, which cannot be told apart here."""
    logger.info(
        "Message without a grant",
        extra={
            "action": "message_stale",
            "tenant": str(grant.tenant_id),
            "activity": str(grant.activity_id),
        },
    )


def is_granted(grant: Grant) -> bool:
    return grant.started or slot_is_held(grant)


def slot_is_held(grant: Grant) -> bool:
    try:
        return admission.start(grant.activity_id, grant.grant)
    except (Closed, redis.RedisError):
        # Nothing may start without a slot. Recovery offers the activity again when admission answers.
        return False


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A claimed activity with everything that its request is built from."""

    row: Any
    run: RunToken
    role: configuration.RoleSettings
    knowledge: Knowledge
    grant: Grant


def claim_or_give_back(held: Sequence[HeldGrant]) -> list[ClaimedRun]:
    """Claim the granted activities. Releases the slots of those that could not be claimed."""
    is_shared = len(held) == 1 and not tracing.is_on()
    claimed = CLAIMING.do(held[0].kind, held[0]) if is_shared else _claim_persistently(held)
    run_ids = {run.run.run_id for run in claimed}
    for each in held:
        if each.run_id not in run_ids:
            results.persistently(partial(give_back_unless_used, each.grant, each.run_id))
    return claimed


def _claim_shared(held: Sequence[HeldGrant]) -> list[list[ClaimedRun]]:
    claimed = {run.run.run_id: [run] for run in _claim(held, is_patient=False)}
    return [claimed.get(each.run_id, []) for each in held]


def _claim_persistently(held: Sequence[HeldGrant]) -> list[ClaimedRun]:
    try:
        return results.persistently(lambda: _claim(held))
    except AgentError as error:
        facts = {"action": "claim_failed", "role": held[0].grant.role, "reason": str(error)}
        logger.warning("Role cannot run", extra=facts)
    except OutOfBudget as error:
        # The whole transaction was rolled back, so each is claimed again alone.
        if len(held) > 1:
            return [claimed for each in held for claimed in _claim_persistently([each])]
        grant, refusal = held[0].grant, error
        results.persistently(lambda: budgets.postpone(grant.tenant_id, grant.activity_id, refusal))
    return []


def _claim(held: Sequence[HeldGrant], *, is_patient: bool = True) -> list[ClaimedRun]:
    """Claim in one transaction, and return the claimed runs whose slots are still held. Raises `OutOfBudget`."""
    with tenant_scope(held[0].grant.tenant_id, is_patient=is_patient):
        if not (held := with_slots(held)):
            return []
        claims = begin_claims(held)
        if claims.role.budgeted:
            for row in claims.rows.fetch():
                budgets.reserve(row, row.run, claims.role.with_options(row.agent_options))
    return claims.fetch()


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims whose statement is sent together with the next one of the transaction, at the latest with its commit."""

    held: Sequence[HeldGrant]
    role: configuration.RoleSettings
    knowledge: Knowledge
    briefing: str
    rows: Rows

    def fetch(self) -> list[ClaimedRun]:
        """Return the claimed runs whose slots are still held. Call it after the commit."""
        rows = {row.run: row for row in self.rows.fetch()}
        held = with_slots([each for each in self.held if each.run_id in rows])
        return [self._run_of(rows[each.run_id], each.grant) for each in held]

    def _run_of(self, row: Any, grant: Grant) -> ClaimedRun:
        signs = grant.role if self.role.adapter.options.get("signed_callbacks") is True else ""
        session = sessions.resume(row)
        return ClaimedRun(
            row=row,
            run=RunToken(row.tenant_id, row.id, row.run, row.fence, self.briefing, session, signs),
            role=self.role.with_options(row.agent_options),
            knowledge=self.knowledge,
            grant=grant,
        )


def begin_claims(held: Sequence[HeldGrant], created: Reservation | None = None) -> Claims:
    """Add the claims to the caller's `tenant_scope`. Raises `AgentError` if the role cannot run.

    `created`: holds the only activity, which this transaction creates.
    """
    tenant_id, agent_role = held[0].kind
    role = configuration.settings_for(tenant_id, agent_role)
    knowledge = role.read_knowledge(tenant_id, agent_role)
    briefing = configuration.briefing_with(role.briefing, knowledge.versions)
    by = transitions.Claimant(
        role=agent_role, worker_id=leases.current().worker_id, timeout_seconds=role.timeout_seconds,
        version=role.adapter.version or "", briefing=briefing, day=clock.today(),
    )  # fmt: skip
    rows = (
        created.claim({"run": held[0].run_id, "grant": held[0].grant.grant, **by.parameters()})
        if created
        else None
    )
    if rows is None:
        claims = [transitions.Claim(each.grant.activity_id, each.run_id, each.grant.grant) for each in held]
        rows = transitions.claim(claims, tenant_id=tenant_id, by=by)
    return Claims(held, role, knowledge, briefing, rows)


def is_to_confirm(confirmed_at: float) -> bool:
    """Whether a slot that was confirmed then, by the monotonic clock, may have been withdrawn since."""
    return time.monotonic() - confirmed_at > CLAIM_SECONDS


def with_slots(held: Sequence[HeldGrant]) -> list[HeldGrant]:
    """Return the grants whose slots are still held.

    Admission may withdraw a slot without a run `SETTLE_SECONDS` after it has confirmed it, and a rebuild may lose it. So a claim that
    took `CLAIM_SECONDS`, because of a locked row or an outage, confirms its slot again before any agent is called.
    """
    still_held = []
    for each in held:
        if not is_to_confirm(each.confirmed_at) or slot_is_held(each.grant):
            still_held.append(each)
        else:
            note_stale_message(each.grant)
    return still_held


def give_back_unless_used(grant: Grant, run_id: UUID | None = None, *, is_passed: bool = False) -> None:
    """Release the slot of a grant that could not be claimed. `is_passed`: the slot was passed on and not named by any message.

    If another delivery of the same message was first, its run releases the slot. If our own claim (`run_id`) succeeded but its answer was
    lost or late, nobody works on that run, so it is requeued.
    """
    with tenant_scope(grant.tenant_id):
        runs = ActivityRun.objects.for_tenant(grant.tenant_id)
        used = runs.filter(activity_id=grant.activity_id, grant=grant.grant).first()
        if used is not None and used.pk == run_id:
            lost = ServerAway("The answer to the claim was lost, or came too late.", retry_after=0.0)
            with suppress(RunSuperseded):
                results.record_failed(RunToken(grant.tenant_id, grant.activity_id, run_id, used.fence), lost)
            return
        activity = Activity.objects.for_tenant(grant.tenant_id).filter(
            pk=grant.activity_id, agent_role=grant.role
        )
        forged = not is_passed and not activity.exists()
    if forged:
        # The slot belongs to the real message, which is still to come.
        refuse_message("forged", grant)
    elif used is None:
        relay.hand_over(Exchange(releases=[Release(grant.activity_id, grant.grant, unused=True)]))


#: Threads with one run each share claims: one statement for several.
CLAIMING = Combining(together=_claim_shared, alone=lambda held: _claim_persistently([held]))
