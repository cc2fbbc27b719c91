"""What people decide: gates behind an agent's result, reviews that an agent asked for, and approvals over many activities.

Each is an activity of a person. One decision closes it; of several at once one wins, and the others learn who decided what and when.
Where several must agree, votes are counted under the item's lock until the outcome is certain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.conf import settings

from activities import activity_tree, outbox, outputs, relay, rescheduling, states, suspension, transitions
from activities.admission import Exchange
from activities.decision_rules import GENERAL_ROLE, DecisionRules, Voter
from activities.exceptions import (
    AlreadyDecided,
    AlreadyVoted,
    DecisionForbidden,
    NotFound,
    PersonRequired,
    SubmissionInvalid,
    TransitionRefused,
)
from activities.models import Activity, Approval, ApprovalLink, Vote
from activities.models.decision import LinkState
from activities.states import BANDS, MAY_RUN, WILL_RUN, LinkKind, Status, WakeReason
from activities.submission import NewActivity, child_of, submit
from activities.suspension import obsolete
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

# Deciding: one decision closes an item and everything that hangs on it, in one transaction.
#
# Everything concerned is locked before anything is looked at or written, in the order of the ids. A revision's key to its parent takes a
# shared lock on it; two rejections that both had one and then wanted to move the parent would wait for each other.


#: Items that are decided with a yes or a no.
_DECIDED = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
_WORDS: dict[str, str] = {Status.CANCELLED: "withdrew", Status.DONE: "completed"}


def approve(
    tenant_id: UUID,
    activity_id: UUID,
    *,
    actor: str | Voter,
    notes: str = "",
    chosen_option: str | None = None,
    output: Mapping[str, Any] | None = None,
) -> Activity:
    """Say yes to a gate, a review or an approval; for a gate, `activity_id` may be that of the activity which waits behind it.

    Where several must agree it is a vote. `output`, a validated body, is approved in the place of the result that a gate asks about.

    Raises `AlreadyDecided` naming the winner, `AlreadyVoted`, `TransitionRefused` when nothing waits for a decision, `DecisionForbidden`
    when it is not the caller's to decide, `PersonRequired`, `SubmissionInvalid` for an option that was not offered and for an
    output that there is nothing to put in the place of, `NotFound`.
    """
    return decide(
        tenant_id,
        activity_id,
        "approve",
        by=_voter(actor),
        notes=notes,
        chosen_option=chosen_option,
        output=output,
    )


def reject(
    tenant_id: UUID, activity_id: UUID, *, actor: str | Voter, notes: str, chosen_option: str | None = None
) -> Activity:
    """Say no, with notes for the agent. Raises as `approve` does."""
    return decide(
        tenant_id, activity_id, "reject", by=_voter(actor), notes=notes, chosen_option=chosen_option
    )


def _voter(actor: str | Voter) -> Voter:
    return actor if isinstance(actor, Voter) else Voter(actor)


def decide(
    tenant_id: UUID, activity_id: UUID, decision: str, *, by: Voter, notes: str = "", chosen_option: str | None = None,
    in_time: bool = True, output: Mapping[str, Any] | None = None,
) -> Activity:  # fmt: skip
    """`approve` or `reject`. With `in_time` False nobody decided by the due time, so that neither roles nor votes count."""
    with tenant_scope(tenant_id):
        waiting, item = _pair(tenant_id, activity_id)
        question = item or waiting
        if question is None:
            raise NotFound("activity", activity_id)
        if in_time:
            _refuse_stranger(question, by)
        rules = DecisionRules.read(question.decision_rules)
        _refuse_unknown_option(rules, chosen_option)
        open_ = question.status in (Status.CREATED, Status.IN_PROGRESS, Status.AWAITING_APPROVAL)
        # Nothing is kept for a decision that comes too late.
        edited = keep_edited(waiting, item, output) if output is not None and open_ else None
        if in_time and rules.is_voted_on and item is not None and open_:
            ballot = cast_vote(item, rules, decision, by, notes=notes, chosen_option=chosen_option)
            if ballot is None:  # more must vote
                return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)
            decision, notes, chosen_option = ballot.decision, ballot.notes, ballot.chosen_option
        try:
            _close(waiting, item, decision, by.actor, notes, chosen_option, edited)
        except TransitionRefused as refusal:
            raise who_was_first(tenant_id, refusal, decision) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _pair(tenant_id: UUID, activity_id: UUID) -> tuple[Activity | None, Activity | None]:
    """The activity that waits behind a gate, and the item that people decide, whichever of them was asked for; locked."""
    found = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
    if found is None:
        return None, None
    if found.assignee_type == "human" and not found.is_approval_gate and found.link_kind not in _DECIDED:
        raise TransitionRefused(
            found.pk, "approve", found.status, f"Activity {found.pk} is not an approval gate."
        )
    locked = lock_concerned(tenant_id, found)
    if found.assignee_type == "agent":
        gates = [
            row for row in locked.values() if row.link_kind == LinkKind.GATE and row.parent_id == found.pk
        ]
        return locked[found.pk], max(gates, key=lambda gate: gate.created_at, default=None)
    behind = locked.get(found.parent_id) if found.link_kind == LinkKind.GATE and found.parent_id else None
    return behind, locked[found.pk]


def _refuse_stranger(question: Activity, by: Voter) -> None:
    if not by.may_decide(question.human_role or None) and question.assignee_type == "human":
        raise DecisionForbidden(
            f"This is for the human role {question.human_role} to decide; yours are {', '.join(by.human_roles)}."
        )
    rules = DecisionRules.read(question.decision_rules)
    if not rules.may_vote(by.identity):
        raise DecisionForbidden("You asked for this decision, so somebody else must make it.")
    if rules.needs_people and not by.is_person:
        raise PersonRequired(
            "People decide this, and nobody stands behind this token. Sign in, or use a token of your own: make one in the console, or "
            "with `manage.py create_token --user NAME`."
        )


def _refuse_unknown_option(rules: DecisionRules, chosen_option: str | None) -> None:
    if chosen_option is not None and rules.options and chosen_option not in rules.options:
        offered = ", ".join(repr(option) for option in rules.options)
        raise SubmissionInvalid([{"path": "chosen_option", "message": f"is none of the options: {offered}"}])


def _close(
    waiting: Activity | None, item: Activity | None, decision: str, actor: str, notes: str, chosen_option: str | None,
    edited: EditedOutput | None = None,
) -> None:  # fmt: skip
    decided: dict[str, Any] = {
        "decided_by": actor, "decided_at": transitions.NOW, "reviewer_notes": notes or None, "chosen_option": chosen_option
    }  # fmt: skip
    detail: dict[str, Any] = {"notes": notes, "chosen_option": chosen_option}
    if edited is not None:
        decided |= edited.changes
        detail |= edited.detail
    if waiting is not None:
        if decision == "reject":
            make_revision(waiting, notes, actor)
        transitions.apply(waiting.id, decision, actor=actor, detail=detail, **decided)
    if item is not None:
        transitions.apply(item.id, f"{decision}_gate", actor=actor, detail=detail, **decided)


def who_was_first(tenant_id: UUID, refusal: TransitionRefused, decision: str) -> TransitionRefused:
    """The refusal with the facts: who decided what and when, or why nothing waits for a decision."""
    now = Activity.objects.for_tenant(tenant_id).get(pk=refusal.activity_id)
    if now.decided_by and now.decided_at:
        return AlreadyDecided(
            refusal.activity_id,
            decision,
            now.status,
            f"{now.decided_by} {_WORDS.get(now.status, now.status)} this at {now.decided_at:%Y-%m-%dT%H:%M:%SZ}.",
        )
    if now.status == Status.CANCELLED:
        return TransitionRefused(refusal.activity_id, decision, now.status, obsolete(now))
    return TransitionRefused(
        refusal.activity_id,
        decision,
        now.status,
        f"Activity {refusal.activity_id} is {now.status}; nothing waits for a decision there.",
    )


# Approval gates: an agent's result waits for a person, who approves it or sends it back.
#
# The gate is an activity of its own, the inbox item; the agent's activity waits in `awaiting_approval` until it closes.


def open_gate(activity: Any) -> None:
    """Put a gate into the inbox for an activity that has just begun to wait. In the caller's transaction."""
    submit(
        [
            NewActivity(
                name=f"Approve: {activity.name}"[:200],
                human_role=(activity.metadata or {}).get("approver_role") or GENERAL_ROLE,
                is_approval_gate=True,
                priority=states.BANDS["gated"],
                input_ref=activity.output_ref,
                parent_id=activity.id,
                link_kind=LinkKind.GATE,
                deliverable_id=activity.deliverable_id,
                mailbox_id=activity.mailbox_id,
                pipeline_run_id=activity.pipeline_run_id,
                pipeline_id=activity.pipeline_id,
                period_id=activity.period_id,
                template=activity.template,
                step=activity.step,
                branch=activity.branch,
                round=activity.round,
                decision_rules=activity.decision_rules,
            )
        ],
        actor="engine",
    )


# Votes, where several people must agree: one each, whatever they come with.
#
# Counted under the lock of the item, so two last votes at once see each other.


@dataclass(frozen=True, slots=True)
class Ballot:
    """What the votes have come to."""

    decision: str
    notes: str
    chosen_option: str | None


def cast_vote(
    item: Activity, rules: DecisionRules, decision: str, by: Voter, *, notes: str, chosen_option: str | None
) -> Ballot | None:
    """Count a person's vote about a locked item; the outcome once it is certain. Raises `AlreadyVoted` for a second vote."""
    vote, is_new = Vote.objects.get_or_create(
        tenant_id=item.tenant_id, activity_id=item.pk, voter=by.identity,
        defaults={"actor": by.actor, "decision": decision, "chosen_option": chosen_option, "notes": notes},
    )  # fmt: skip
    if not is_new:
        raise AlreadyVoted(item.pk, decision, item.status, vote)
    if item.status == Status.CREATED:
        transitions.apply(item.pk, "take_up", actor=by.actor, started_at=transitions.NOW)
    of_people = Vote.objects.for_tenant(item.tenant_id).filter(activity_id=item.pk, voter__startswith="user:")
    votes = list(of_people.order_by("at", "pk"))
    return _count_votes(votes, rules)


def _count_votes(votes: list[Vote], rules: DecisionRules) -> Ballot | None:
    counts = Counter(vote.decision for vote in votes)
    decision = rules.outcome(counts["approve"], counts["reject"])
    if decision is None:
        return None
    agreeing = [vote for vote in votes if vote.decision == decision]
    chosen = Counter(vote.chosen_option for vote in agreeing if vote.chosen_option)
    # The option with the most votes; of equal ones the first that was voted for.
    option = chosen.most_common(1)[0][0] if chosen else None
    notes = "\n\n".join(f"{vote.actor}: {vote.notes}" for vote in agreeing if vote.notes)
    return Ballot(decision, notes, option)


# Approving as edited: a person edits the result that a gate asks about, and approves the edited one in the same step.
#
# The edited output is an output of its own. From the decision on it is that of the gate, and of the agent's activity that waits behind
# the gate, so whatever follows works with it. The agent's own stays on record: it is its run's, and the gate's `input_ref`. The history
# says what took whose place.


_OF_SEVERAL = "cannot be given where several people decide: nobody would know what the others have agreed to"
_NOTHING = "cannot be given here: there is no single result that it could take the place of"
_TAKEN_OVER = "cannot be given here: this work is yours to do; complete it with your output instead"
_EMPTY = "needs content or data"


@dataclass(frozen=True, slots=True)
class EditedOutput:
    """The output that takes the place of another."""

    before: UUID
    after: UUID

    @property
    def changes(self) -> dict[str, Any]:
        """Of the columns of what is approved."""
        return {"output_ref": self.after}

    @property
    def detail(self) -> dict[str, Any]:
        """For the history."""
        return {"edited": {"from": str(self.before), "to": str(self.after)}}


def why_not_edit(item: Activity | None) -> str:
    """What keeps the result that an item asks about from being edited with the approval; empty when nothing does."""
    if item is None or item.input_ref is None or not item.is_approval_gate:
        return _NOTHING
    if item.link_kind in (LinkKind.REVIEW, LinkKind.APPROVAL):
        return _NOTHING
    if activity_tree.was_taken_over(item):
        return _TAKEN_OVER
    return _OF_SEVERAL if DecisionRules.read(item.decision_rules).is_voted_on else ""


def keep_edited(waiting: Activity | None, item: Activity | None, output: Mapping[str, Any]) -> EditedOutput:
    """Keep the edited output, in the caller's transaction. Both activities are locked and open; `waiting` is what waits behind the gate.

    Raises `SubmissionInvalid` for an empty output, and where there is no result whose place it could take.
    """
    is_empty = output.get("data") is None and not (output.get("content") or "").strip()
    error = why_not_edit(item) or (_EMPTY if is_empty else "")
    if error or item is None or item.input_ref is None:
        raise SubmissionInvalid([{"path": "output", "message": error}])
    return EditedOutput(item.input_ref, outputs.keep(item.tenant_id, (waiting or item).pk, output))


# A rejection makes a revision: the same work again, with the rejected output and the notes, as the next round.


SUFFIX = " (revision)"


def make_revision(rejected: Activity, notes: str, actor: str) -> None:
    """Create the revision before the rejection is announced, so that the pipeline sees that the step continues."""
    if rejected.status != Status.AWAITING_APPROVAL:
        return  # Decided already: the transition will say so.
    if rejected.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        _escalate(rejected, notes)
    else:
        revise(rejected, notes=notes, actor=actor)


def revise(rejected: Activity, *, notes: str, actor: str) -> UUID:
    """Submit the same work again as the next round, told what was wrong. In the caller's transaction; idempotent per round."""
    return submit_revisions(rejected.tenant_id, [revision_of(rejected, notes=notes)], actor=actor)[0]


def submit_revisions(tenant_id: UUID, revisions: Sequence[NewActivity], *, actor: str) -> list[UUID]:
    """Their ids, in order. Each waits for what people are still asked about the work that it takes the place of."""
    ids = [submitted.id for submitted in submit(revisions, actor=actor, bounded=False)]
    pairs = zip(revisions, ids, strict=True)
    places = {revision.parent_id: id for revision, id in pairs if revision.parent_id}
    ask_about_revisions(tenant_id, places, actor=actor)
    return ids


#: What a successor has of the activity whose place it takes.
_WORK = ("name", "description", "agent_role", "human_role", "params", "metadata", "input", "input_ref")
_PLACE = ("template", "step", "branch", "round", "group_key", "group_scope", "files", "priority")
_RULES = ("requires_approval", "timeout_seconds", "retry", "max_attempts", "agent_options", "decision_rules")


def successor_of(activity: Activity, kind: str, **changes: Any) -> NewActivity:
    """The same work in the same place, to be submitted with these changes."""
    inherited = {name: getattr(activity, name) for name in (*_WORK, *_PLACE, *_RULES)}
    return child_of(activity, kind, **{**inherited, **changes})


def revision_of(rejected: Activity, *, notes: str, requires_approval: bool | None = None) -> NewActivity:
    """The next round of the same work, to be submitted. A person may have taken the work over."""
    name = (
        rejected.name if rejected.name.endswith(SUFFIX) else f"{rejected.name[: 200 - len(SUFFIX)]}{SUFFIX}"
    )
    return successor_of(
        rejected,
        LinkKind.REVISION_OF,
        name=name,
        requires_approval=rejected.requires_approval if requires_approval is None else requires_approval,
        priority=min(rejected.priority, states.BANDS["gated"]),
        round=rejected.round + 1,
        reviewer_notes=notes,
        wake_reason=WakeReason.REJECTION,
        wake_payload={
            "rejection_ref": str(rejected.output_ref) if rejected.output_ref else None,
            "reviewer_notes": notes,
        },
    )


def _escalate(rejected: Activity, notes: str) -> None:
    submit(
        [
            NewActivity(
                name=f"Rejected {rejected.round} times: {rejected.name}"[:200],
                description="No further revision is made by itself. Change the work, its agent or its instructions.",
                human_role=GENERAL_ROLE,
                priority=states.BANDS["urgent"],
                parent_id=rejected.id,
                link_kind=LinkKind.ESCALATION,
                deliverable_id=rejected.deliverable_id,
                mailbox_id=rejected.mailbox_id,
                reviewer_notes=notes,
            )
        ],
        actor="engine",
    )


# Withdrawing: anyone who asked takes an approval back. What waits for it wakes and learns so.


WITHDRAW = "withdraw"


def withdraw(tenant_id: UUID, approval_id: UUID, *, by: Voter, reason: str = "") -> Activity:
    """Withdraw an open approval. Allowed for the person who asked, and for those who may decide everything.

    Raises `AlreadyDecided` naming who was first, `TransitionRefused`, `DecisionForbidden`, `NotFound`.
    """
    with tenant_scope(tenant_id):
        approval = Approval.objects.for_tenant(tenant_id).filter(pk=approval_id).first()
        if approval is None:
            raise NotFound("approval", approval_id)
        if not by.decides_all and approval.requested_identity != by.identity:
            raise DecisionForbidden(f"{approval.requested_by} has asked this, and may take it back.")
        lock_concerned_by(tenant_id, [approval_id])
        try:
            transitions.apply(
                approval_id, "cancel", actor=by.actor, detail={"reason": reason}, cancel_reason=reason or None,
                decided_by=by.actor, decided_at=transitions.NOW,
            )  # fmt: skip
        except TransitionRefused as refusal:
            raise who_was_first(tenant_id, refusal, WITHDRAW) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=approval_id)


# Approvals over many activities: one decision reaches every linked activity, perhaps in several pipelines.
#
# Linking makes waiting: an activity that is ready is held, the one whose agent asks is put aside. A run that is under way goes on; none
# begins after it before the decision. What several questions hold starts when all are answered, and hears all answers, in their order, at
# once; a no among them is one of the answers, and ends nothing by itself. No answer closes another question. What has ended by the time of
# the decision is listed as skipped.

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
        decision_rules=rules.as_json(),
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


def lock_concerned(tenant_id: UUID, activity: Activity) -> dict[UUID, Activity]:
    """Lock an activity and every activity that its end may change: what it waits for or answers, and what an approval may wake."""
    return activity_tree.lock(tenant_id, _ids_concerned(tenant_id, [activity]))


def lock_concerned_by(tenant_id: UUID, ids: Iterable[UUID]) -> None:
    """`lock_concerned` for many at once, all in one order."""
    activities = Activity.objects.for_tenant(tenant_id).filter(pk__in=set(ids))
    activity_tree.lock(tenant_id, _ids_concerned(tenant_id, list(activities)))


def _ids_concerned(tenant_id: UUID, activities: Sequence[Activity]) -> set[UUID | None]:
    rows = Activity.objects.for_tenant(tenant_id)
    ids: set[UUID | None] = set()
    ids.update(known for activity in activities for known in (activity.pk, activity.parent_id))
    behind = [
        activity.parent_id
        for activity in activities
        if activity.link_kind == LinkKind.GATE and activity.parent_id
    ]
    ending = [
        *activities,
        *(rows.only("id", "parent_id", "link_kind").filter(pk__in=behind) if behind else ()),
    ]
    ids.update(
        activity_tree.waiting_parent_of(tenant_id, activity)
        for activity in ending
        if activity.link_kind is not None
    )
    waiting = ApprovalLink.objects.for_tenant(tenant_id).filter(state=LinkState.WAITING)
    if approvals := [activity.pk for activity in activities if activity.link_kind == LinkKind.APPROVAL]:
        linked = set(waiting.filter(approval_id__in=approvals).values_list("activity_id", flat=True))
        ids |= linked
    if agents := [activity.pk for activity in activities if activity.assignee_type == "agent"]:
        # An approval is closed with the last activity that waits for it: of two that go at once, one must see the other.
        ids.update(waiting.filter(activity_id__in=agents).values_list("approval_id", flat=True))
        ids.update(rows.filter(parent_id__in=agents, link_kind=LinkKind.GATE).values_list("pk", flat=True))
    return ids


def settle_links(item: Any) -> None:
    """The approval, a row of Activity, has been decided or withdrawn: wake the activities that it is about, and note which are not woken
    and why.
    """
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
    outbox.deliver_answer(
        linked.values(),
        suspension.reason_of(item),
        payload=_describe_decision(item),
        actor=item.decided_by or "engine",
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


def _describe_decision(item: Any) -> dict[str, Any]:
    """What the agents learn. The feedback names the option, for those that read nothing else."""
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
    """The activity waits for nothing any more. An approval that nothing waits for is closed: nobody shall be asked in vain.

    Who has taken its place is told what others have decided about the work, and waits for what they have not.
    """
    rows = Activity.objects.for_tenant(tenant_id)
    successor = rows.filter(parent_id=activity_id, link_kind=LinkKind.REASSIGNED_FROM).first()
    if successor is not None:
        _tell_successor(tenant_id, activity_id, successor)
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
        if successor is not None and question.parent_id != activity_id:
            link(tenant_id, question.pk, [successor], actor=actor, may_hold=[successor.pk])
    waited_for = set(waiting.filter(approval_id__in=approvals).values_list("approval_id", flat=True))
    vain = sorted(set(approvals) - waited_for)
    transitions.apply_many(vain, "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE)


def ask_about_revisions(tenant_id: UUID, revisions: Mapping[UUID, UUID], *, actor: str) -> None:
    """Move open questions from rejected activities (the keys) to their revisions, which wait for the answers.

    In the transaction that has made the revisions, under the locks of what was rejected.
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
        link(tenant_id, approval_id, [rows[id] for id in ids], actor=actor, may_hold=ids)


def _tell_successor(tenant_id: UUID, activity_id: UUID, successor: Activity) -> None:
    """The successor begins again, so it is told what people decided about the work, but not what the first agent asked for itself."""
    if successor.assignee_type != "agent":
        return
    woken = ApprovalLink.objects.for_tenant(tenant_id).filter(activity_id=activity_id, state=LinkState.WOKEN)
    answered = Activity.objects.for_tenant(tenant_id).filter(pk__in=woken.values("approval_id"))
    for item in answered.exclude(parent_id=activity_id).order_by("decided_at", "pk"):
        ApprovalLink.objects.create(
            tenant_id=tenant_id, approval_id=item.pk, activity_id=successor.pk, state=LinkState.WOKEN
        )
        outbox.deliver_answer(
            [successor],
            suspension.reason_of(item),
            payload=_describe_decision(item),
            actor=item.decided_by or "engine",
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
class LinkedActivity:
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
    links: Sequence[LinkedActivity]
    votes: Sequence[Vote]

    @property
    def status(self) -> str:
        return _NAMES[self.item.status]

    @property
    def version(self) -> int:
        """Every change of the question raises it, votes included."""
        return int(self.item.version) + len(self.votes)


def questions(tenant_id: UUID, approvals: Sequence[Approval]) -> list[Question]:
    """The approvals in their order, with three statements however many there are. In the caller's `tenant_scope`."""
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
    found: dict[UUID, list[LinkedActivity]] = defaultdict(list)
    named = ("approval_id", "activity_id", "activity__name", "activity__status", "state", "reason")
    for approval_id, *linked in rows.values_list(*named):
        found[approval_id].append(LinkedActivity(*linked))
    return found


def _votes(tenant_id: UUID, ids: Sequence[UUID]) -> Mapping[UUID, list[Any]]:
    found: dict[UUID, list[Any]] = defaultdict(list)
    for vote in Vote.objects.for_tenant(tenant_id).filter(activity_id__in=ids).order_by("at", "pk"):
        found[vote.activity_id].append(vote)
    return found
