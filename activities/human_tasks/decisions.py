"""Decisions of people: gates behind an agent's result, reviews that an agent requested, and approvals about several activities.

Each is an activity of a person. One decision closes it; of several at once one wins, and the others are told who decided what and when.
If several people must agree, votes are counted under the item's lock until the outcome is certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from activities import activity_tree, outputs, states, transitions
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
from activities.human_tasks import approvals, revisions
from activities.models import Activity, Approval, Vote
from activities.states import LinkKind, Status
from activities.submission import child_of, submit
from activities.suspension import obsolete
from tenants.context import tenant_scope

# Deciding: one decision closes an item and everything that depends on it, in one transaction.
#
# All affected activities are locked in the order of their ids before anything is read or written. The foreign key of a revision takes a
# shared lock on its parent; two rejections that both hold it and then update the parent would deadlock.

#: Items that people approve or reject.
_DECIDED = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
_WORDS: dict[str, str] = {Status.CANCELLED: "withdrew", Status.DONE: "completed"}


def approve(tenant_id: UUID, activity_id: UUID, *, actor: str | Voter, **answer: Any) -> Activity:
    return decide(tenant_id, activity_id, "approve", by=_voter(actor), **answer)


def reject(tenant_id: UUID, activity_id: UUID, *, actor: str | Voter, notes: str) -> Activity:
    """Reject, with notes for the agent."""
    return decide(tenant_id, activity_id, "reject", by=_voter(actor), notes=notes)


def _voter(actor: str | Voter) -> Voter:
    return actor if isinstance(actor, Voter) else Voter(actor)


def decide(
    tenant_id: UUID, activity_id: UUID, decision: str, *, by: Voter, notes: str = "", chosen_option: str | None = None,
    in_time: bool = True, output: Mapping[str, Any] | None = None,
) -> Activity:  # fmt: skip
    """Approve or reject a gate, a review or an approval. For a gate, `activity_id` may be that of the activity that waits behind it.

    If several people must agree, this is a vote. `output`, a validated body, replaces the result that a gate is about. With
    `in_time=False` it is the default outcome, so roles and votes are not checked.

    Raises `AlreadyDecided`, which names the winner, `AlreadyVoted`, `TransitionRefused` if nothing waits for a decision,
    `DecisionForbidden` if the caller may not decide, `PersonRequired`, `SubmissionInvalid` for an unknown option, a missing one
    where options are offered, or an output that replaces nothing, `NotFound`.
    """
    with tenant_scope(tenant_id):
        waiting, item = _lock_gate(tenant_id, activity_id)
        question = item or waiting
        if question is None:
            raise NotFound("activity", activity_id)
        rules = DecisionRules.read(question.decision_rules)
        is_open = question.status in (Status.CREATED, Status.IN_PROGRESS, Status.AWAITING_APPROVAL)
        if in_time and is_open:
            _refuse_unauthorised(question, by)
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
    locked = approvals.lock_concerned(tenant_id, activity)
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


def refuse_hastening(tenant_id: UUID, activity_id: UUID, due_at: datetime | None, by: Voter) -> None:
    """Refuse an earlier due time of a question that is then approved or rejected, unless the caller may decide it.

    Otherwise a requester who must not decide could let the default outcome decide. Raises `DecisionForbidden`, `PersonRequired`.
    """
    rows = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id, assignee_type="human")
    question = rows.filter(status__in=activity_tree.OPEN).first()
    if question is None or due_at is None or (question.due_at is not None and due_at >= question.due_at):
        return
    if DecisionRules.read(question.decision_rules).on_timeout in ("approve", "reject"):
        _refuse_unauthorised(question, by)


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
        revision = revisions.revise_or_escalate(waiting, notes, actor) if decision == "reject" else None
        transitions.apply(waiting.id, decision, actor=actor, detail=detail, **decided)
        if revision is not None and waiting.dedup_key:
            # Only now, because two live activities may not share it.
            rows = Activity.objects.for_tenant(waiting.tenant_id).filter(pk=revision)
            rows.update(dedup_key=waiting.dedup_key)
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
    gate = child_of(
        activity,
        LinkKind.GATE,
        name=f"Approve: {activity.name}"[:200],
        human_role=(activity.metadata or {}).get("approver_role") or GENERAL_ROLE,
        is_approval_gate=True,
        priority=states.BANDS["gated"],
        input_ref=activity.output_ref,
        template=activity.template,
        step=activity.step,
        branch=activity.branch,
        round=activity.round,
        decision_rules=activity.decision_rules,
    )
    submit([gate], actor="engine")


# Votes: if several people must agree, each has one vote, with any of their tokens and sessions.
#
# Votes are counted under the lock of the item, so that two last votes at once see each other.


@dataclass(frozen=True, slots=True)
class VoteResult:
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


# Withdrawing: the requester cancels an approval. Activities that wait for it wake, and their agents are notified.

WITHDRAW = "withdraw"


def withdraw(tenant_id: UUID, approval_id: UUID, *, by: Voter, reason: str = "") -> Activity:
    """Withdraw an open approval. Allowed for the requester, and for those who may decide everything.

    Raises `AlreadyDecided`, which names who was first, `TransitionRefused`, `DecisionForbidden`, `NotFound`.
    """
    with tenant_scope(tenant_id):
        approval = Approval.objects.for_tenant(tenant_id).get_or_raise(NotFound, "approval", approval_id)
        if not by.decides_all and approval.requested_identity != by.identity:
            raise DecisionForbidden(f"{approval.requested_by} requested this approval and may withdraw it.")
        approvals.lock_concerned_by(tenant_id, [approval_id])
        try:
            transitions.apply(
                approval_id, "cancel", actor=by.actor, detail={"reason": reason}, cancel_reason=reason or None,
                decided_by=by.actor, decided_at=transitions.NOW,
            )  # fmt: skip
        except TransitionRefused as refusal:
            raise explain_refusal(tenant_id, refusal, WITHDRAW) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=approval_id)
