"""Decisions of people: gates behind an agent's result, reviews that an agent requested, and approvals about several activities.

Each is an activity of a person. One decision closes it; of several at once one wins, and the others are told who decided what and when.
If several people must agree, votes are counted under the item's lock until the outcome is certain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F

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

# Deciding: one decision closes an item and everything that depends on it, in one transaction.
#
# All affected activities are locked in the order of their ids before anything is read or written. The foreign key of a revision takes a
# shared lock on its parent; two rejections that both hold it and then update the parent would deadlock.

#: Items that people approve or reject.
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
    """Approve a gate, a review or an approval. For a gate, `activity_id` may be that of the activity that waits behind it.

    If several people must agree, this is a vote. `output`, a validated body, replaces the result that a gate is about.

    Raises `AlreadyDecided`, which names the winner, `AlreadyVoted`, `TransitionRefused` if nothing waits for a decision,
    `DecisionForbidden` if the caller may not decide, `PersonRequired`, `SubmissionInvalid` for an unknown option, a missing one
    where options are offered, or an output that replaces nothing, `NotFound`.
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
    """Reject, with notes for the agent. Raises as `approve` does."""
    return decide(
        tenant_id, activity_id, "reject", by=_voter(actor), notes=notes, chosen_option=chosen_option
    )


def _voter(actor: str | Voter) -> Voter:
    return actor if isinstance(actor, Voter) else Voter(actor)


def decide(
    tenant_id: UUID, activity_id: UUID, decision: str, *, by: Voter, notes: str = "", chosen_option: str | None = None,
    in_time: bool = True, output: Mapping[str, Any] | None = None,
) -> Activity:  # fmt: skip
    """Apply the decision `approve` or `reject`. With `in_time=False` it is the default outcome, so roles and votes are not checked."""
    with tenant_scope(tenant_id):
        waiting, item = _lock_gate(tenant_id, activity_id)
        question = item or waiting
        if question is None:
            raise NotFound("activity", activity_id)
        if in_time:
            _refuse_unauthorised(question, by)
        rules = DecisionRules.read(question.decision_rules)
        is_open = question.status in (Status.CREATED, Status.IN_PROGRESS, Status.AWAITING_APPROVAL)
        if in_time and is_open:
            _refuse_option(rules, decision, chosen_option)
        # A decision that comes too late stores no output.
        edited = store_edited(waiting, item, output) if output is not None and is_open else None
        if in_time and rules.is_voted_on and item is not None and is_open:
            result = cast_vote(item, rules, decision, by, notes=notes, chosen_option=chosen_option)
            if result is None:  # more votes are needed
                return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)
            decision, notes, chosen_option = result.decision, result.notes, result.chosen_option
        try:
            _close(waiting, item, decision, by.actor, notes, chosen_option, edited)
        except TransitionRefused as refusal:
            raise explain_refusal(tenant_id, refusal, decision) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=activity_id)


def _lock_gate(tenant_id: UUID, activity_id: UUID) -> tuple[Activity | None, Activity | None]:
    """Lock and return the activity that waits behind a gate, and the item that people decide. `activity_id` may be that of either."""
    activity = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
    if activity is None:
        return None, None
    if (
        activity.assignee_type == "human"
        and not activity.is_approval_gate
        and activity.link_kind not in _DECIDED
    ):
        raise TransitionRefused(
            activity.pk, "approve", activity.status, f"Activity {activity.pk} is not an approval gate."
        )
    locked = lock_concerned(tenant_id, activity)
    if activity.assignee_type == "agent":
        gates = [
            row for row in locked.values() if row.link_kind == LinkKind.GATE and row.parent_id == activity.pk
        ]
        return locked[activity.pk], max(gates, key=lambda gate: gate.created_at, default=None)
    behind_id = activity.parent_id if activity.link_kind == LinkKind.GATE else None
    return locked.get(behind_id) if behind_id else None, locked[activity.pk]


def may_decide(question: Activity, by: Voter) -> bool:
    """Whether this person or program may decide an item."""
    try:
        _refuse_unauthorised(question, by)
    except DecisionForbidden:
        return False
    return True


def _refuse_unauthorised(question: Activity, by: Voter) -> None:
    if not by.may_decide(question.human_role or None) and question.assignee_type == "human":
        raise DecisionForbidden(
            f"The human role {question.human_role} must decide this; your roles are {', '.join(by.human_roles)}."
        )
    rules = DecisionRules.read(question.decision_rules)
    if not rules.may_vote(by.identity):
        raise DecisionForbidden("You requested this decision, so somebody else must make it.")
    if rules.needs_people and not by.is_person:
        raise PersonRequired(
            "A person must decide this, and this token belongs to no person. Sign in, or use a token of your own: create one in the "
            "console, or with `manage.py create_token --user NAME`."
        )


def _refuse_option(rules: DecisionRules, decision: str, chosen_option: str | None) -> None:
    """Raise `SubmissionInvalid` for an unknown option, and for an approval without one: the agents work by what was chosen."""
    is_missing = chosen_option is None and decision == "approve"
    if rules.options and (is_missing or chosen_option not in (None, *rules.options)):
        offered = ", ".join(repr(option) for option in rules.options)
        raise SubmissionInvalid(
            [{"path": "chosen_option", "message": f"must be one of the options: {offered}"}]
        )


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
            revise_or_escalate(waiting, notes, actor)
        transitions.apply(waiting.id, decision, actor=actor, detail=detail, **decided)
    if item is not None:
        transitions.apply(item.id, f"{decision}_gate", actor=actor, detail=detail, **decided)


def explain_refusal(tenant_id: UUID, refusal: TransitionRefused, decision: str) -> TransitionRefused:
    """Return the refusal with the facts: who decided what and when, or why nothing waits for a decision."""
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


# Approval gates: an agent's result waits for a person, who approves it or requests changes.
#
# The gate is a separate activity, the inbox item; the agent's activity stays in `awaiting_approval` until the gate closes.


def open_gate(activity: Any) -> None:
    """Create the gate of an activity that has just moved to `awaiting_approval`. In the caller's transaction."""
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


# Votes: if several people must agree, each has one vote, with any of their tokens and sessions.
#
# Votes are counted under the lock of the item, so that two last votes at once see each other.


@dataclass(frozen=True, slots=True)
class VoteResult:
    """The outcome of the votes."""

    decision: str
    notes: str
    chosen_option: str | None


def cast_vote(
    item: Activity, rules: DecisionRules, decision: str, by: Voter, *, notes: str, chosen_option: str | None
) -> VoteResult | None:
    """Record a person's vote on a locked item; returns the outcome once it is certain. Raises `AlreadyVoted` for a second vote."""
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
    result = _count_votes(votes, rules)
    if result is None:
        detail = {"decision": decision, "notes": notes, "chosen_option": chosen_option}
        transitions.remark({item.pk: detail}, "vote", actor=by.actor)
    return result


def _count_votes(votes: list[Vote], rules: DecisionRules) -> VoteResult | None:
    counts = Counter(vote.decision for vote in votes)
    decision = rules.outcome(counts["approve"], counts["reject"])
    if decision is None:
        return None
    agreeing = [vote for vote in votes if vote.decision == decision]
    chosen = Counter(vote.chosen_option for vote in agreeing if vote.chosen_option)
    # The option with the most votes; on a tie, the one that was voted for first.
    option = chosen.most_common(1)[0][0] if chosen else None
    notes = "\n\n".join(f"{vote.actor}: {vote.notes}" for vote in agreeing if vote.notes)
    return VoteResult(decision, notes, option)


# Editing: a person edits the result that a gate is about, and approves the edited version in the same step.
#
# The edited output is stored separately. After the decision it is the output of the gate and of the agent's activity behind it, so later
# steps use it. The agent's own output remains that of its run, and the gate's `input_ref`. The history names both.

_SEVERAL_DECIDE = "is not possible if several people decide: nobody would know what the others have agreed to"
_NO_RESULT = "is not possible here: there is no single result that it could replace"
_TAKEN_OVER = "is not possible here: this work is yours to do; complete it with your output instead"
_EMPTY = "needs content or data"


@dataclass(frozen=True, slots=True)
class EditedOutput:
    """The ids of an output and of the edited one that replaces it."""

    before: UUID
    after: UUID

    @property
    def changes(self) -> dict[str, Any]:
        """Changed columns of the approved activities."""
        return {"output_ref": self.after}

    @property
    def detail(self) -> dict[str, Any]:
        """Detail for the history."""
        return {"edited": {"from": str(self.before), "to": str(self.after)}}


def why_not_edit(item: Activity | None) -> str:
    """Say why the result of an item cannot be edited with the approval; empty if it can."""
    if item is None or item.input_ref is None or not item.is_approval_gate:
        return _NO_RESULT
    if item.link_kind in (LinkKind.REVIEW, LinkKind.APPROVAL):
        return _NO_RESULT
    if activity_tree.was_taken_over(item):
        return _TAKEN_OVER
    return _SEVERAL_DECIDE if DecisionRules.read(item.decision_rules).is_voted_on else ""


def store_edited(waiting: Activity | None, item: Activity | None, output: Mapping[str, Any]) -> EditedOutput:
    """Store the edited output, in the caller's transaction. Both activities are locked and open; `waiting` is the one behind the gate.

    Raises `SubmissionInvalid` for an empty output, and if there is no result that it can replace.
    """
    is_empty = output.get("data") is None and not (output.get("content") or "").strip()
    error = why_not_edit(item) or (_EMPTY if is_empty else "")
    if error or item is None or item.input_ref is None:
        raise SubmissionInvalid([{"path": "output", "message": error}])
    return EditedOutput(item.input_ref, outputs.store(item.tenant_id, (waiting or item).pk, output))


# Revisions: a rejection creates the same work again as the next round, with the rejected output and the notes.

SUFFIX = " (revision)"


def revise_or_escalate(rejected: Activity, notes: str, actor: str) -> None:
    """Submit the revision, or ask people after too many rounds.

    Call it before the rejection is announced, so that the pipeline sees that the step continues.
    """
    if rejected.status != Status.AWAITING_APPROVAL:
        return  # It was decided already; the transition will be refused.
    if rejected.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        _escalate(rejected, notes)
    else:
        submit_revision(rejected, notes=notes, actor=actor)


def submit_revision(rejected: Activity, *, notes: str, actor: str) -> UUID:
    """Submit the same work again as the next round, with the reviewer's notes. In the caller's transaction; idempotent per round."""
    return submit_revisions(rejected.tenant_id, [build_revision(rejected, notes=notes)], actor=actor)[0]


def submit_revisions(tenant_id: UUID, revisions: Sequence[NewActivity], *, actor: str) -> list[UUID]:
    """Submit revisions; returns their ids in order. Each waits for the open questions about the work that it replaces."""
    ids = [submitted.id for submitted in submit(revisions, actor=actor, bounded=False)]
    pairs = zip(revisions, ids, strict=True)
    revision_ids = {revision.parent_id: id for revision, id in pairs if revision.parent_id}
    move_questions(tenant_id, revision_ids, actor=actor)
    return ids


#: The fields that a successor inherits from the activity that it replaces.
_WORK = ("name", "description", "agent_role", "human_role", "params", "metadata", "input", "input_ref")
_PLACE = ("template", "step", "branch", "round", "group_key", "group_scope", "files", "priority")
_RULES = ("requires_approval", "timeout_seconds", "retry", "max_attempts", "agent_options", "decision_rules")


def successor_of(activity: Activity, kind: str, **changes: Any) -> NewActivity:
    """Return the same work in the same place with these changes, for submission."""
    inherited = {name: getattr(activity, name) for name in (*_WORK, *_PLACE, *_RULES)}
    return child_of(activity, kind, **{**inherited, **changes})


def build_revision(rejected: Activity, *, notes: str) -> NewActivity:
    """Return the next round of the same work, for submission. A person may have taken over the work."""
    name = (
        rejected.name if rejected.name.endswith(SUFFIX) else f"{rejected.name[: 200 - len(SUFFIX)]}{SUFFIX}"
    )
    return successor_of(
        rejected,
        LinkKind.REVISION_OF,
        name=name,
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
            child_of(
                rejected,
                LinkKind.ESCALATION,
                name=f"Rejected {rejected.round} times: {rejected.name}"[:200],
                description="No further revision is created automatically. Change the work, its agent or its instructions.",
                human_role=GENERAL_ROLE,
                priority=states.BANDS["urgent"],
                reviewer_notes=notes,
            )
        ],
        actor="engine",
    )


# Withdrawing: the requester cancels an approval. Activities that wait for it wake, and their agents are notified.

WITHDRAW = "withdraw"


def withdraw(tenant_id: UUID, approval_id: UUID, *, by: Voter, reason: str = "") -> Activity:
    """Withdraw an open approval. Allowed for the requester, and for those who may decide everything.

    Raises `AlreadyDecided`, which names who was first, `TransitionRefused`, `DecisionForbidden`, `NotFound`.
    """
    with tenant_scope(tenant_id):
        approval = Approval.objects.for_tenant(tenant_id).filter(pk=approval_id).first()
        if approval is None:
            raise NotFound("approval", approval_id)
        if not by.decides_all and approval.requested_identity != by.identity:
            raise DecisionForbidden(f"{approval.requested_by} requested this approval and may withdraw it.")
        lock_concerned_by(tenant_id, [approval_id])
        try:
            transitions.apply(
                approval_id, "cancel", actor=by.actor, detail={"reason": reason}, cancel_reason=reason or None,
                decided_by=by.actor, decided_at=transitions.NOW,
            )  # fmt: skip
        except TransitionRefused as refusal:
            raise explain_refusal(tenant_id, refusal, WITHDRAW) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=approval_id)


# Approvals about several activities: one decision reaches every linked activity, even in several pipelines.
#
# A linked activity waits: a ready one is held, and the one whose agent asks is suspended. A current run continues, but no further run
# begins before the decision. An activity that several questions hold starts when all are answered, and receives all answers in order. A
# rejection among them ends nothing by itself, and no answer closes another question. Activities that ended before the decision are listed
# as skipped; after the end of the last one, the leader withdraws the approval, because nobody would receive the decision.

OBSOLETE = "obsolete"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApproval:
    """A question to people. `rules` contain its options, due time and quorum."""

    type: str
    title: str
    description: str = ""
    human_role: str | None = None
    rules: DecisionRules = field(default_factory=DecisionRules)
    priority: int = BANDS["gated"]


def open_approval(
    tenant_id: UUID, new: NewApproval, *, actor: str, identity: str, about: Any | None = None
) -> UUID:
    """Create an approval; returns its id. `about` is the activity whose agent asks, a row of Activity. In the caller's `tenant_scope`."""
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
    """Link locked activities to an approval. Those in `may_hold` start no run before it is closed.

    The others are only listed: they neither wait nor receive the answer. In the caller's transaction.
    """
    allowed = set(may_hold)
    ApprovalLink.objects.bulk_create(
        [
            ApprovalLink(tenant_id=tenant_id, approval_id=approval_id, activity_id=activity.pk)
            if activity.pk in allowed
            else ApprovalLink(
                tenant_id=tenant_id, approval_id=approval_id, activity_id=activity.pk,
                state=LinkState.SKIPPED, reason="The requester may not make it wait.",
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
    running = [
        activity.pk for activity in activities if activity.pk in allowed and activity.status in states.RUNNING
    ]
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
            link(tenant_id, question.pk, [successor], actor=actor, may_hold=[successor.pk])
    still_needed = set(waiting.filter(approval_id__in=approvals).values_list("approval_id", flat=True))
    unneeded = sorted(set(approvals) - still_needed)
    transitions.apply_many(
        unneeded, "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE
    )


#: Why an approval was withdrawn by the engine.
ALL_ENDED = "obsolete, because all of its activities have ended"


def withdraw_obsolete(tenant_id: UUID, approval_id: UUID) -> bool:
    """Withdraw an open approval if all activities that wait for it have ended. Its links say how each has ended.

    Returns False if somebody has decided it meanwhile, or if an activity waits for it after all, such as a revision.
    """
    with tenant_scope(tenant_id):
        lock_concerned_by(tenant_id, [approval_id])
        links = ApprovalLink.objects.for_tenant(tenant_id).filter(
            approval_id=approval_id, state=LinkState.WAITING
        )
        if links.exclude(activity__status__in=activity_tree.ENDED).exists():
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
        link(tenant_id, approval_id, [rows[id] for id in ids], actor=actor, may_hold=ids)


def _deliver_answers_to(tenant_id: UUID, activity_id: UUID, successor: Activity) -> None:
    """Deliver what people decided about the work to a successor, because it starts from the beginning.

    Excludes the answers to questions of the first agent itself.
    """
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
