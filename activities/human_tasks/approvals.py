"""Approvals about several activities: one decision reaches every linked activity, even in several pipelines.

A linked activity waits: a ready one is held, and the one whose agent asks is suspended. A current run continues, but no further run
begins before the decision. An activity that several questions hold starts when all are answered, and receives all answers in order. A
rejection among them ends nothing by itself, and no answer closes another question. Activities that ended before the decision are listed
as skipped; after the end of the last one, the leader withdraws the approval, because nobody would receive the decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db.models import F

from activities import activity_tree, outbox, relay, rescheduling, states, suspension, transitions
from activities.admission import Exchange
from activities.decision_rules import GENERAL_ROLE, DecisionRules
from activities.models import Activity, Approval, ApprovalLink, Vote
from activities.models.decision import LinkState
from activities.signals import gates_beside_asked, revisable_work_asked
from activities.states import BANDS, MAY_RUN, WILL_RUN, LinkKind, Status
from activities.submission import NewActivity, child_of, submit
from tenants.context import tenant_scope
from tenants.identifiers import uuid7


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApproval:
    """A question to people. `rules` contain its options, due time and quorum."""

    type: str
    title: str
    description: str = ""
    human_role: str | None = None
    rules: DecisionRules = field(default_factory=DecisionRules)


def open_approval(
    tenant_id: UUID, new: NewApproval, *, actor: str, identity: str, about: Any | None = None
) -> UUID:
    """Create an approval; returns its id. `about` is the activity whose agent asks, a row of Activity. In the caller's `tenant_scope`."""
    rules = replace(new.rules, asked_by=new.rules.asked_by or identity)
    question: dict[str, Any] = {
        "id": uuid7(), "name": new.title, "description": new.description, "human_role": new.human_role or GENERAL_ROLE,
        "is_approval_gate": True, "priority": BANDS["gated"], "metadata": {"approval_type": new.type}, "decision_rules": rules.as_json(),
    }  # fmt: skip
    kind = LinkKind.APPROVAL
    item = child_of(about, kind, **question) if about else NewActivity(link_kind=kind, **question)
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


def link(tenant_id: UUID, approval_id: UUID, activities: Sequence[Activity], *, actor: str) -> None:
    """Link locked activities to an approval. They start no run before it is closed. In the caller's transaction."""
    ApprovalLink.objects.bulk_create(
        [
            ApprovalLink(tenant_id=tenant_id, approval_id=approval_id, activity_id=activity.pk)
            for activity in activities
        ],
        ignore_conflicts=True,
    )
    held = [
        activity.pk
        for activity in activities
        if activity.status == Status.CREATED and activity.assignee_type == "agent"
    ]
    running = [activity.pk for activity in activities if activity.status in states.RUNNING]
    if running:
        # Write the rows without a change: a result that waits for their locks then reads the questions again (`finish.sql`).
        Activity.objects.for_tenant(tenant_id).filter(pk__in=running).update(version=F("version"))
    moved = (
        transitions.apply_many(held, "hold", actor=actor, detail={"approval": str(approval_id)})
        if held
        else []
    )
    if moved:
        relay.after_commit(Exchange(withdrawals=[activity.id for activity in moved]))


def lock_concerned(tenant_id: UUID, activity: Activity) -> dict[UUID, Activity]:
    """Lock an activity and everything that its end may change: what it waits for or answers, and what an approval may wake."""
    return activity_tree.lock(tenant_id, _ids_concerned(tenant_id, [activity]))


def lock_concerned_by(tenant_id: UUID, ids: Iterable[UUID]) -> None:
    """Lock as `lock_concerned` does, for many activities at once and in one order."""
    activities = Activity.objects.for_tenant(tenant_id).filter(pk__in=set(ids))
    activity_tree.lock(tenant_id, _ids_concerned(tenant_id, list(activities)))


def _ids_concerned(tenant_id: UUID, activities: Sequence[Activity]) -> set[UUID | None]:
    rows = Activity.objects.for_tenant(tenant_id)
    ids: set[UUID | None] = set()
    ids.update(pk for activity in activities for pk in (activity.pk, activity.parent_id))
    gated_ids = [
        activity.parent_id
        for activity in activities
        if activity.link_kind == LinkKind.GATE and activity.parent_id
    ]
    ending = [
        *activities,
        *(rows.only("id", "parent_id", "link_kind").filter(pk__in=gated_ids) if gated_ids else ()),
    ]
    ids.update(
        activity_tree.waiting_parent_of(tenant_id, activity)
        for activity in ending
        if activity.link_kind is not None
    )
    waiting = ApprovalLink.objects.for_tenant(tenant_id).filter(state=LinkState.WAITING)
    if approvals := [activity.pk for activity in activities if activity.link_kind == LinkKind.APPROVAL]:
        ids.update(waiting.filter(approval_id__in=approvals).values_list("activity_id", flat=True))
    if agents := [activity.pk for activity in activities if activity.assignee_type == "agent"]:
        # Lock the approvals too. One closes with the last activity that waits for it, so two that end at once must see each other.
        ids.update(waiting.filter(activity_id__in=agents).values_list("approval_id", flat=True))
        ids.update(rows.filter(parent_id__in=agents, link_kind=LinkKind.GATE).values_list("pk", flat=True))
    if gates := [
        each.pk
        for each in activities
        if each.is_approval_gate and each.step and each.link_kind != LinkKind.GATE
    ]:
        answers: list[Any] = gates_beside_asked.send(Activity, tenant_id=tenant_id, activity_ids=gates)
        ids.update(*(beside for _, beside in answers))
    return ids


def settle_links(item: Any) -> None:
    """Wake the activities of an approval that was decided or withdrawn, and record why others are not woken. `item` is its Activity row."""
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
        link.reason = _why_skipped(linked[activity_id])
        link.state = LinkState.SKIPPED if link.reason else LinkState.WOKEN
    # Before delivering the answer, because an activity with a waiting link is still held.
    ApprovalLink.objects.bulk_update(links.values(), ["state", "reason"])
    _raise_priority(
        [linked[activity_id] for activity_id, link in links.items() if link.state == LinkState.WOKEN]
    )
    outbox.deliver_answer(
        linked.values(),
        suspension.reason_of(item),
        payload=_describe_decision(item),
        actor=item.decided_by or "engine",
    )


def _raise_priority(activities: Sequence[Activity]) -> None:
    """Raise released activities to the band "gated", because they have waited for people already."""
    band = BANDS["gated"]
    lower = [each for each in activities if each.priority > band and rescheduling.can_reschedule(each)]
    if lower:
        rescheduling.reschedule_locked(
            lower, {"priority": band}, actor="engine", detail={"reason": "decided"}
        )
    for activity in lower:
        activity.priority = band


def _why_skipped(activity: Activity) -> str:
    """Say why an activity does not receive a decision; empty if it does."""
    if activity.assignee_type != "agent":
        return "It belongs to a person, so it does not start automatically."
    if activity.status in WILL_RUN:
        return ""
    if activity.status in MAY_RUN:
        return "It has failed. If it is retried, it starts with the answer."
    if activity.status == Status.AWAITING_APPROVAL:
        return "Its agent had finished, and the result waited for its own approval."
    return f"It was {activity.status} and did not wait for this."


def _describe_decision(item: Any) -> dict[str, Any]:
    """Return what the agents receive. The feedback includes the option, for agents that read only the feedback."""
    kind = (
        Approval.objects.for_tenant(item.tenant_id).filter(pk=item.id).values_list("type", flat=True).first()
    )
    outcome = suspension.outcome_of_review(item, approval=str(item.id), approval_type=kind, title=item.name)
    notes = (
        outcome["reviewer_feedback"],
        f"Chosen option: {item.chosen_option}" if item.chosen_option else "",
    )
    return {**outcome, "reviewer_feedback": "\n\n".join(part for part in notes if part)}


def drop_links_of(tenant_id: UUID, activity_id: UUID, *, actor: str) -> None:
    """End the waiting links of an activity that has ended, and close approvals for which nothing waits any more.

    A successor receives the answers that others gave about the work, and waits for their open questions.
    """
    rows = Activity.objects.for_tenant(tenant_id)
    successor = rows.filter(parent_id=activity_id, link_kind=LinkKind.REASSIGNED_FROM).first()
    if successor is not None:
        _deliver_answers_to(tenant_id, activity_id, successor)
    waiting = ApprovalLink.objects.for_tenant(tenant_id).filter(state=LinkState.WAITING)
    links = waiting.filter(activity_id=activity_id)
    approvals = list(links.values_list("approval_id", flat=True))
    if not approvals:
        return
    # Lock before reading the other links: two activities that end at once would each see the other as still waiting.
    questions = activity_tree.lock(tenant_id, approvals)
    links.update(state=LinkState.SKIPPED, reason="It was cancelled or reassigned.")
    for question in questions.values():
        # Questions of others about the work now concern the successor.
        if successor is not None and question.parent_id != activity_id:
            link(tenant_id, question.pk, [successor], actor=actor)
    still_needed = set(waiting.filter(approval_id__in=approvals).values_list("approval_id", flat=True))
    transitions.cancel_obsolete(sorted(set(approvals) - still_needed), actor=actor)


#: Why an approval was withdrawn by the engine.
ALL_ENDED = "obsolete, because all of its activities have ended"


def withdraw_obsolete(tenant_id: UUID, approval_id: UUID) -> bool:
    """Withdraw an open approval if all activities that wait for it have ended. Its links say how each has ended.

    Returns False if somebody has decided it meanwhile, if an activity waits for it after all, such as a revision, or if a gate may still
    request changes: then the revision waits for the approval.
    """
    with tenant_scope(tenant_id):
        lock_concerned_by(tenant_id, [approval_id])
        links = ApprovalLink.objects.for_tenant(tenant_id).filter(
            approval_id=approval_id, state=LinkState.WAITING
        )
        if links.exclude(activity__status__in=activity_tree.ENDED).exists():
            return False
        ended = list(links.values_list("activity_id", flat=True))
        answers = revisable_work_asked.send(Activity, tenant_id=tenant_id, activity_ids=ended)
        if any(ids for _, ids in answers):
            return False
        return bool(
            transitions.apply_many(
                [approval_id], "cancel", actor="engine", detail={"reason": ALL_ENDED}, cancel_reason=ALL_ENDED
            )
        )


def move_questions(tenant_id: UUID, revisions: Mapping[UUID, UUID], *, actor: str) -> None:
    """Move open questions from rejected activities (the keys) to their revisions, which wait for the answers.

    In the transaction that has created the revisions, while it holds the locks of the rejected activities.
    """
    waiting = ApprovalLink.objects.for_tenant(tenant_id).filter(
        state=LinkState.WAITING, activity_id__in=revisions
    )
    by_approval: dict[UUID, list[UUID]] = defaultdict(list)
    for approval_id, activity_id in waiting.order_by("approval_id").values_list("approval_id", "activity_id"):
        by_approval[approval_id].append(revisions[activity_id])
    if not by_approval:
        return
    waiting.update(state=LinkState.SKIPPED, reason="A revision has taken its place.")
    rows = Activity.objects.for_tenant(tenant_id).in_bulk(list(revisions.values()))
    for approval_id, ids in by_approval.items():
        link(tenant_id, approval_id, [rows[id] for id in ids], actor=actor)


def _deliver_answers_to(tenant_id: UUID, activity_id: UUID, successor: Activity) -> None:
    """Deliver what people decided about the work to a successor, because it starts from the beginning.

    A person has only the link, which an agent that gets the work later inherits. Excludes answers to questions of the first agent itself.
    """
    links = ApprovalLink.objects.for_tenant(tenant_id)
    ended = links.filter(activity_id=activity_id).exclude(state=LinkState.WAITING)
    answered = Activity.objects.for_tenant(tenant_id).filter(
        pk__in=ended.values("approval_id"), status__in=activity_tree.ENDED
    )
    for item in answered.exclude(parent_id=activity_id).order_by("decided_at", "pk"):
        links.create(tenant_id=tenant_id, approval_id=item.pk, activity_id=successor.pk)
        settle_links(item)


# Reading approvals, for pages and the API.

PENDING, APPROVED, REJECTED, WITHDRAWN = "pending", "approved", "rejected", "withdrawn"

#: The states of an approval, and the statuses of its own activity.
STATUSES: Mapping[str, tuple[Status, ...]] = {
    PENDING: (Status.CREATED, Status.IN_PROGRESS),
    APPROVED: (Status.APPROVED,),
    REJECTED: (Status.REJECTED,),
    WITHDRAWN: (Status.CANCELLED,),
}
_NAMES = {status.value: name for name, statuses in STATUSES.items() for status in statuses}


@dataclass(frozen=True, slots=True)
class LinkedActivity:
    """An activity that the approval is about. `state` is waiting, woken or skipped; `reason` says why it was skipped."""

    activity: UUID
    name: str
    status: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Question:
    """An approval with its item, rules, links and votes."""

    approval: Approval
    item: Activity
    rules: DecisionRules
    links: Sequence[LinkedActivity]
    votes: Sequence[Vote]

    @property
    def status(self) -> str:
        return _NAMES[self.item.status]

    @property
    def version(self) -> int:
        """Rises with every change of the question, including votes and ends of its links."""
        ended = sum(link.state != LinkState.WAITING for link in self.links)
        return int(self.item.version) + len(self.votes) + ended


def questions(tenant_id: UUID, approvals: Sequence[Approval]) -> list[Question]:
    """Load these approvals in order, with three statements for any number. In the caller's `tenant_scope`."""
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


def _links(tenant_id: UUID, ids: Sequence[UUID]) -> Mapping[UUID, list[LinkedActivity]]:
    rows = ApprovalLink.objects.for_tenant(tenant_id).filter(approval_id__in=ids).order_by("activity_id")
    links: dict[UUID, list[LinkedActivity]] = defaultdict(list)
    columns = ("approval_id", "activity_id", "activity__name", "activity__status", "state", "reason")
    for approval_id, *values in rows.values_list(*columns):
        links[approval_id].append(LinkedActivity(*values))
    return links


def _votes(tenant_id: UUID, ids: Sequence[UUID]) -> Mapping[UUID, list[Any]]:
    votes: dict[UUID, list[Any]] = defaultdict(list)
    for vote in Vote.objects.for_tenant(tenant_id).filter(activity_id__in=ids).order_by("at", "pk"):
        votes[vote.activity_id].append(vote)
    return votes
