"""Approvals over many activities: one decision reaches every linked activity, perhaps in several pipelines.

Linking makes waiting: an activity that is ready is held, the one whose agent asks is put aside. A run that is under way goes on; none
begins after it before the decision. What several questions hold starts when all are answered, and hears all answers, in their order, at
once; a no among them is one of the answers, and ends nothing by itself. No answer closes another question. What has ended by the time of
the decision is listed as skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from activities import activity_tree, outbox, relay, rescheduling, states, suspension, transitions
from activities.admission import Exchange
from activities.decision_rules import GENERAL_ROLE, DecisionRules
from activities.models import Activity, Approval, ApprovalLink, Vote
from activities.models.decision import LinkState
from activities.states import BANDS, MAY_RUN, WILL_RUN, LinkKind, Status
from activities.submission import NewActivity, submit
from tenants.identifiers import uuid7

OBSOLETE = "obsolete"


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
        mailbox_id=about.mailbox_id if about else None,
        pipeline_run_id=about.pipeline_run_id if about else None,
        period_id=about.period_id if about else None,
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
    """Link locked activities to an approval: no run of those of `may_hold` begins from now on before it is closed.

    The others are listed, and nothing more: they neither wait nor hear of it. In the caller's transaction.
    """
    allowed = set(may_hold)
    ApprovalLink.objects.bulk_create(
        [
            ApprovalLink(tenant_id=tenant_id, approval_id=approval_id, activity_id=activity.pk)
            if activity.pk in allowed
            else ApprovalLink(
                tenant_id=tenant_id, approval_id=approval_id, activity_id=activity.pk,
                state=LinkState.SKIPPED, reason="It is not for who asks to have it wait.",
            )
            for activity in activities
        ],
        ignore_conflicts=True,
    )  # fmt: skip
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
    return activity_tree.lock(tenant_id, _concerned(tenant_id, [asked]))


def lock_concerned_by(tenant_id: UUID, ids: Iterable[UUID]) -> None:
    """`lock_concerned` for many at once, all in one order."""
    asked = Activity.objects.for_tenant(tenant_id).filter(pk__in=set(ids))
    activity_tree.lock(tenant_id, _concerned(tenant_id, list(asked)))


def _concerned(tenant_id: UUID, asked: Sequence[Activity]) -> set[UUID | None]:
    rows = Activity.objects.for_tenant(tenant_id)
    ids: set[UUID | None] = set()
    ids.update(known for activity in asked for known in (activity.pk, activity.parent_id))
    behind = [
        activity.parent_id for activity in asked if activity.link_kind == LinkKind.GATE and activity.parent_id
    ]
    ending = [*asked, *(rows.only("id", "parent_id", "link_kind").filter(pk__in=behind) if behind else ())]
    ids.update(
        activity_tree.waiting_parent_of(tenant_id, activity)
        for activity in ending
        if activity.link_kind is not None
    )
    waiting = ApprovalLink.objects.for_tenant(tenant_id).filter(state=LinkState.WAITING)
    if approvals := [activity.pk for activity in asked if activity.link_kind == LinkKind.APPROVAL]:
        linked = set(waiting.filter(approval_id__in=approvals).values_list("activity_id", flat=True))
        ids |= linked
    if agents := [activity.pk for activity in asked if activity.assignee_type == "agent"]:
        # An approval is closed with the last activity that waits for it: of two that go at once, one must see the other.
        ids.update(waiting.filter(activity_id__in=agents).values_list("approval_id", flat=True))
        ids.update(rows.filter(parent_id__in=agents, link_kind=LinkKind.GATE).values_list("pk", flat=True))
    return ids


def settle_links(item: Any) -> None:
    """The approval, a row of Activity, has been decided or withdrawn: tell all that it is about, note what will not hear of it."""
    links = {
        link.activity_id: link
        for link in ApprovalLink.objects.for_tenant(item.tenant_id).filter(
            approval_id=item.id, state=LinkState.WAITING
        )
    }
    if not links:
        return
    linked = activity_tree.lock(item.tenant_id, links)
    for activity_id, link in links.items():
        link.reason = _why_not_told(linked[activity_id])
        link.state = LinkState.SKIPPED if link.reason else LinkState.WOKEN
    # First, so that what only this question has held is held no more.
    ApprovalLink.objects.bulk_update(links.values(), ["state", "reason"])
    _lift([linked[activity_id] for activity_id, link in links.items() if link.state == LinkState.WOKEN])
    outbox.tell(
        linked.values(), suspension.reason_of(item), payload=_told(item), actor=item.decided_by or "engine"
    )


def _lift(waiting: Sequence[Activity]) -> None:
    """What a decision lets go has waited for people already, so it comes before work that nobody had to decide about."""
    band = BANDS["gated"]
    late = [
        each for each in waiting if each.priority > band and each.status in states.REMARKS[rescheduling.VERB]
    ]
    if late:
        rescheduling.reschedule_locked(late, {"priority": band}, actor="engine", detail={"reason": "decided"})
    for activity in late:
        activity.priority = band


def _why_not_told(activity: Activity) -> str:
    """What keeps an activity from hearing of a decision by itself; empty when nothing does."""
    if activity.assignee_type != "agent":
        return "It is for a person, and nothing starts by itself."
    if activity.status in WILL_RUN:
        return ""
    if activity.status in MAY_RUN:
        return "It has failed. If it is tried again, it starts with the answer."
    if activity.status == Status.AWAITING_APPROVAL:
        return "Its agent was done, and the result waited for an approval of its own."
    return f"It was {activity.status} and did not wait for this."


def _told(item: Any) -> dict[str, Any]:
    """What the agents learn. The feedback names the option, for those that read nothing else."""
    kind = (
        Approval.objects.for_tenant(item.tenant_id).filter(pk=item.id).values_list("type", flat=True).first()
    )
    told = suspension.outcome_of_review(item, approval=str(item.id), approval_type=kind, title=item.name)
    said = (told["reviewer_feedback"], f"Chosen option: {item.chosen_option}" if item.chosen_option else "")
    return {**told, "reviewer_feedback": "\n\n".join(part for part in said if part)}


def drop_links_of(tenant_id: UUID, activity_id: UUID, *, actor: str) -> None:
    """The activity waits for nothing any more. An approval that nothing waits for is closed: nobody shall be asked in vain.

    Who has taken its place is told what others have decided about the work, and waits for what they have not.
    """
    rows = Activity.objects.for_tenant(tenant_id)
    heir = rows.filter(parent_id=activity_id, link_kind=LinkKind.REASSIGNED_FROM).first()
    if heir is not None:
        _tell_heir(tenant_id, activity_id, heir)
    waiting = ApprovalLink.objects.for_tenant(tenant_id).filter(state=LinkState.WAITING)
    links = waiting.filter(activity_id=activity_id)
    approvals = list(links.values_list("approval_id", flat=True))
    if not approvals:
        return
    # Before looking at the others: two activities that end at once would each take the other for one that still waits.
    questions = activity_tree.lock(tenant_id, approvals)
    links.update(state=LinkState.SKIPPED, reason="It was cancelled or handed on.")
    for question in questions.values():
        # What others asked about the work is asked about the successor's work.
        if heir is not None and question.parent_id != activity_id:
            link(tenant_id, question.pk, [heir], actor=actor, may_hold=[heir.pk])
    waited_for = set(waiting.filter(approval_id__in=approvals).values_list("approval_id", flat=True))
    vain = sorted(set(approvals) - waited_for)
    transitions.apply_many(vain, "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE)


def ask_about_revisions(tenant_id: UUID, revisions: Mapping[UUID, UUID], *, actor: str) -> None:
    """What people are still asked about rejected work (the keys), they are asked about its revision, which waits for the answer.

    In the transaction that has made the revisions, under the locks of what was rejected.
    """
    waiting = ApprovalLink.objects.for_tenant(tenant_id).filter(
        state=LinkState.WAITING, activity_id__in=revisions
    )
    asked: dict[UUID, list[UUID]] = defaultdict(list)
    for approval_id, activity_id in waiting.order_by("approval_id").values_list("approval_id", "activity_id"):
        asked[approval_id].append(revisions[activity_id])
    if not asked:
        return
    waiting.update(state=LinkState.SKIPPED, reason="A revision has taken its place.")
    rows = Activity.objects.for_tenant(tenant_id).in_bulk(list(revisions.values()))
    for approval_id, ids in asked.items():
        link(tenant_id, approval_id, [rows[id] for id in ids], actor=actor, may_hold=ids)


def _tell_heir(tenant_id: UUID, activity_id: UUID, heir: Activity) -> None:
    """The heir begins anew, so it hears what people have decided about the work; not what the first agent has asked for itself."""
    if heir.assignee_type != "agent":
        return
    woken = ApprovalLink.objects.for_tenant(tenant_id).filter(activity_id=activity_id, state=LinkState.WOKEN)
    answered = Activity.objects.for_tenant(tenant_id).filter(pk__in=woken.values("approval_id"))
    for item in answered.exclude(parent_id=activity_id).order_by("decided_at", "pk"):
        ApprovalLink.objects.create(
            tenant_id=tenant_id, approval_id=item.pk, activity_id=heir.pk, state=LinkState.WOKEN
        )
        outbox.tell(
            [heir], suspension.reason_of(item), payload=_told(item), actor=item.decided_by or "engine"
        )


# Approvals as people see them: the question, who must answer by when, what was said so far, and what hangs on it. Reads only.


PENDING, APPROVED, REJECTED, WITHDRAWN = "pending", "approved", "rejected", "withdrawn"

#: What an approval's own activity is called, as a state of the approval.
STATUSES: Mapping[str, tuple[Status, ...]] = {
    PENDING: (Status.CREATED, Status.IN_PROGRESS),
    APPROVED: (Status.APPROVED,),
    REJECTED: (Status.REJECTED,),
    WITHDRAWN: (Status.CANCELLED,),
}
_NAMES = {status.value: name for name, statuses in STATUSES.items() for status in statuses}


@dataclass(frozen=True, slots=True)
class Linked:
    """An activity that the approval is about. `state` is waiting, woken or skipped, and `reason` says why it was skipped."""

    activity: UUID
    name: str
    status: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Question:
    """An approval with all that belongs to it."""

    approval: Approval
    item: Activity
    rules: DecisionRules
    links: Sequence[Linked]
    votes: Sequence[Vote]

    @property
    def status(self) -> str:
        return _NAMES[self.item.status]

    @property
    def version(self) -> int:
        """Raised by whatever happens to the question, votes included."""
        return int(self.item.version) + len(self.votes)


def questions(tenant_id: UUID, approvals: Sequence[Approval]) -> list[Question]:
    """The approvals in their order, in three statements whatever their number. In the caller's `tenant_scope`."""
    ids = [approval.pk for approval in approvals]
    items = Activity.objects.for_tenant(tenant_id).in_bulk(ids)
    links, votes = _links(tenant_id, ids), _votes(tenant_id, ids)
    return [
        Question(
            approval,
            items[approval.pk],
            DecisionRules.read(items[approval.pk].decision_rules),
            links[approval.pk],
            votes[approval.pk],
        )
        for approval in approvals
    ]


def _links(tenant_id: UUID, ids: Sequence[UUID]) -> Mapping[UUID, list[Linked]]:
    rows = ApprovalLink.objects.for_tenant(tenant_id).filter(approval_id__in=ids).order_by("activity_id")
    found: dict[UUID, list[Linked]] = defaultdict(list)
    named = ("approval_id", "activity_id", "activity__name", "activity__status", "state", "reason")
    for approval_id, *linked in rows.values_list(*named):
        found[approval_id].append(Linked(*linked))
    return found


def _votes(tenant_id: UUID, ids: Sequence[UUID]) -> Mapping[UUID, list[Any]]:
    found: dict[UUID, list[Any]] = defaultdict(list)
    for vote in Vote.objects.for_tenant(tenant_id).filter(activity_id__in=ids).order_by("at", "pk"):
        found[vote.activity_id].append(vote)
    return found
