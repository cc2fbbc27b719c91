"""Approvals over many activities: one decision wakes every linked activity that still waits, perhaps in several pipelines.

Linking makes waiting: an activity that has not started is held, the one whose agent asks is put aside. One that runs goes on; if it
does not wait for an answer by the time of the decision, it is listed as skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from activities import families, relay, reviews, transitions, wakes
from activities.admission import Exchange
from activities.decision_rules import GENERAL_ROLE, DecisionRules
from activities.models import Activity, Approval, ApprovalLink
from activities.models.decision import LinkState
from activities.states import BANDS, FINAL, LinkKind, Status
from activities.submission import NewActivity, submit
from tenants.identifiers import uuid7


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApproval:
    """A question to people. `rules` hold its options, due time and quorum."""

    type: str
    title: str
    description: str = ""
    human_role: str | None = None
    rules: DecisionRules = field(default_factory=DecisionRules)
    priority: int = BANDS["gated"]


def open_approval(
    tenant_id: UUID, new: NewApproval, *, actor: str, identity: str, about: Any | None = None
) -> UUID:
    """Ask people. `about` is the activity whose agent asks, a row of Activity. In the caller's `tenant_scope`; the approval's id."""
    rules = replace(new.rules, asked_by=new.rules.asked_by or identity)
    item = NewActivity(
        id=uuid7(),
        name=new.title,
        description=new.description,
        human_role=new.human_role or GENERAL_ROLE,
        is_approval_gate=True,
        link_kind=LinkKind.APPROVAL,
        priority=new.priority,
        parent_id=about.id if about else None,
        deliverable_id=about.deliverable_id if about else None,
        pipeline_run_id=about.pipeline_run_id if about else None,
        metadata={"approval_type": new.type},
        decision_rules=rules.stored(),
    )
    submit([item], actor=actor)
    Approval.objects.create(
        id=item.id,
        tenant_id=tenant_id,
        type=new.type,
        options=list(new.rules.options),
        requested_by=actor,
        requested_identity=identity,
    )
    return item.id


def link(
    tenant_id: UUID,
    approval_id: UUID,
    activities: Sequence[Activity],
    *,
    actor: str,
    may_hold: Iterable[UUID],
) -> None:
    """Link locked activities to an approval; those of `may_hold` that have not started wait from now on. In the caller's transaction."""
    ApprovalLink.objects.bulk_create(
        [
            ApprovalLink(tenant_id=tenant_id, approval_id=approval_id, activity_id=activity.pk)
            for activity in activities
        ],
        ignore_conflicts=True,
    )
    allowed = set(may_hold)
    held = [
        activity.pk
        for activity in activities
        if activity.pk in allowed and activity.status == Status.CREATED and activity.assignee_type == "agent"
    ]
    moved = (
        transitions.apply_many(held, "hold", actor=actor, detail={"approval": str(approval_id)})
        if held
        else []
    )
    if moved:
        relay.after_commit(Exchange(withdrawals=[activity.id for activity in moved]))


def lock_concerned(tenant_id: UUID, asked: Activity) -> dict[UUID, Activity]:
    """Lock an activity with everything that its end may move: what it waits for or answers, and what an approval may wake."""
    return families.lock(tenant_id, _concerned(tenant_id, asked))


def lock_concerned_by(tenant_id: UUID, ids: Iterable[UUID]) -> None:
    """`lock_concerned` for many at once, all in one order."""
    asked = Activity.objects.for_tenant(tenant_id).filter(pk__in=set(ids))
    families.lock(
        tenant_id, {concerned for activity in asked for concerned in _concerned(tenant_id, activity)}
    )


def _concerned(tenant_id: UUID, asked: Activity) -> set[UUID | None]:
    ids: set[UUID | None] = {asked.pk, asked.parent_id}
    if asked.link_kind == LinkKind.APPROVAL:
        ids |= _woken_by(asked)
    elif asked.link_kind in families.SUCCESSORS:
        ids.add(families.origin_of(tenant_id, asked)[0])
    if asked.assignee_type == "agent":
        gates = Activity.objects.for_tenant(tenant_id).filter(parent_id=asked.pk, link_kind=LinkKind.GATE)
        ids |= set(gates.values_list("pk", flat=True))
    return ids


def _woken_by(item: Activity) -> set[UUID]:
    """What waits for an approval, and the reviews that its decision makes superfluous."""
    waiting = ApprovalLink.objects.for_tenant(item.tenant_id).filter(
        approval_id=item.pk, state=LinkState.WAITING
    )
    linked = set(waiting.values_list("activity_id", flat=True))
    asked = Activity.objects.for_tenant(item.tenant_id).filter(
        parent_id__in=linked, link_kind=LinkKind.REVIEW
    )
    return linked | set(asked.exclude(status__in=FINAL).values_list("pk", flat=True))


def settle_links(item: Any) -> None:
    """The approval, a row of Activity, has been decided or withdrawn: wake what waits for it, note what did not any more."""
    links = {
        link.activity_id: link
        for link in ApprovalLink.objects.for_tenant(item.tenant_id).filter(
            approval_id=item.id, state=LinkState.WAITING
        )
    }
    kind = (
        Approval.objects.for_tenant(item.tenant_id).filter(pk=item.id).values_list("type", flat=True).first()
    )
    payload = reviews.told(item, approval=str(item.id), approval_type=kind, title=item.name)
    for activity_id, activity in families.lock(item.tenant_id, links).items():
        status = activity.status
        woken = wakes.wake(
            activity, reviews.reason_of(item), payload=payload, actor=item.decided_by or "engine"
        )
        if woken:
            _drop_reviews(activity, f"Decided by approval {item.id}.")
        links[activity_id].state = LinkState.WOKEN if woken else LinkState.SKIPPED
        links[activity_id].reason = "" if woken else f"It was {status} and did not wait for this."
    ApprovalLink.objects.bulk_update(links.values(), ["state", "reason"])


def _drop_reviews(activity: Activity, why: str) -> None:
    """An approval has answered what the activity had asked for in reviews of its own."""
    for review in families.open_children(activity.tenant_id, activity.pk, [LinkKind.REVIEW]):
        transitions.apply(review.pk, "cancel", actor="engine", detail={"reason": why}, cancel_reason=why)


def drop_links_of(tenant_id: UUID, activity_id: UUID, *, actor: str) -> None:
    """The activity waits for nothing any more. An approval that nothing waits for is closed: nobody shall be asked in vain."""
    links = ApprovalLink.objects.for_tenant(tenant_id).filter(
        activity_id=activity_id, state=LinkState.WAITING
    )
    approvals = list(links.values_list("approval_id", flat=True))
    if not approvals:
        return
    links.update(state=LinkState.SKIPPED, reason="It was cancelled or handed on.")
    waited_for = set(
        ApprovalLink.objects.for_tenant(tenant_id)
        .filter(approval_id__in=approvals, state=LinkState.WAITING)
        .values_list("approval_id", flat=True)
    )
    vain = sorted(set(approvals) - waited_for)
    transitions.apply_many(
        vain, "cancel", actor=actor, detail={"reason": "obsolete"}, cancel_reason="obsolete"
    )
