"""Cancelling, and trying again: what operators do.

A cancellation is a fact in PostgreSQL. A waiting activity never starts; a worker or agent that has it learns at its next heartbeat, and
whatever it still delivers is refused.
"""

from __future__ import annotations

from uuid import UUID

from activities import relay, transitions, wakes
from activities.admission import Exchange
from activities.admission.exchange import Release
from activities.exceptions import TransitionRefused
from activities.models import Activity, Wake
from activities.signals import activity_reopened
from activities.states import LinkKind, Status, WakeReason
from tenants.context import tenant_scope


def cancel(tenant_id: UUID, activity_id: UUID, *, actor: str, reason: str = "") -> Activity:
    """Raises `TransitionRefused` when it has ended already, `ActivityNotFound`."""
    with tenant_scope(tenant_id):
        _refuse_gate(tenant_id, activity_id)
        transitions.apply(
            activity_id, "cancel", actor=actor, detail={"reason": reason}, cancel_reason=reason or None
        )
        _let_go(tenant_id, activity_id)
        _close_open_gates(tenant_id, activity_id, actor)
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _refuse_gate(tenant_id: UUID, activity_id: UUID) -> None:
    """Without its gate, what waits behind it could never be decided."""
    gate = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id, link_kind=LinkKind.GATE).first()
    if gate is not None and gate.status in (Status.CREATED, Status.IN_PROGRESS):
        raise TransitionRefused(
            activity_id,
            "cancel",
            gate.status,
            f"Decide this gate, or cancel activity {gate.parent_id}, which waits behind it.",
        )


def _let_go(tenant_id: UUID, activity_id: UUID) -> None:
    run = transitions.end_run(tenant_id=tenant_id, activity_id=activity_id, run_status="cancelled")
    freed = Exchange(withdrawals=[activity_id])
    if run and run.accepted_at:
        freed.releases.append(Release(activity_id, run.grant))
    # A worker that is still waiting for the agent keeps its slots until the call has ended: they are in use.
    relay.after_commit(freed)


def _close_open_gates(tenant_id: UUID, activity_id: UUID, actor: str) -> None:
    """Nobody shall be asked about what is no longer wanted."""
    gates = Activity.objects.for_tenant(tenant_id).filter(
        parent_id=activity_id, link_kind=LinkKind.GATE, status__in=(Status.CREATED, Status.IN_PROGRESS)
    )
    for gate in gates.order_by("pk"):
        transitions.apply(
            gate.pk, "cancel", actor=actor, detail={"reason": "obsolete"}, cancel_reason="obsolete"
        )


def retry(tenant_id: UUID, activity_id: UUID, *, actor: str) -> Activity:
    """Start a failed activity anew, for the reason it ran last, with all its attempts."""
    with tenant_scope(tenant_id):
        moved = transitions.apply(activity_id, "retry", actor=actor, attempts=0, stalls=0, error=None)
        last = Wake.objects.for_tenant(tenant_id).filter(activity_id=activity_id).order_by("-id").first()
        wakes.record(
            moved,
            last.reason if last else WakeReason.NEW_TASK,
            payload=last.payload if last else None,
            cause="replay",
        )
        activity_reopened.send(sender=Activity, activity=moved)
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)
