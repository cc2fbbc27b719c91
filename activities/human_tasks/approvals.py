"""What people decide: gates behind an agent's result, reviews that an agent asked for, and approvals over many activities.

Each is an activity of a person. One decision closes it; of several at once one wins, and the others learn who decided what and when.
Where several must agree, votes are counted under the item's lock until the outcome is certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings

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
from activities.human_tasks import approval_links
from activities.models import Activity, Approval, Vote
from activities.states import LinkKind, Status, WakeReason
from activities.submission import NewActivity, submit
from activities.suspension import obsolete
from tenants.context import tenant_scope

# Deciding: one decision closes an item and everything that hangs on it, in one transaction.
#
# Everything concerned is locked before anything is looked at or written, in the order of the ids. A revision's key to its parent takes a
# shared lock on it; two rejections that both had one and then wanted to move the parent would wait for each other.


#: Items that are decided with a yes or a no.
_DECIDED = (LinkKind.GATE, LinkKind.REVIEW, LinkKind.APPROVAL)
_WORDS: dict[str, str] = {Status.CANCELLED: "withdrew"}


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
        asked = item or waiting
        if asked is None:
            raise NotFound("activity", activity_id)
        if in_time:
            _refuse_stranger(asked, by)
        rules = DecisionRules.read(asked.decision_rules)
        _refuse_unknown_option(rules, chosen_option)
        open_ = asked.status in (Status.CREATED, Status.IN_PROGRESS, Status.AWAITING_APPROVAL)
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
    asked = Activity.objects.for_tenant(tenant_id).filter(pk=activity_id).first()
    if asked is None:
        return None, None
    if asked.assignee_type == "human" and not asked.is_approval_gate and asked.link_kind not in _DECIDED:
        raise TransitionRefused(
            asked.pk, "approve", asked.status, f"Activity {asked.pk} is not an approval gate."
        )
    locked = approval_links.lock_concerned(tenant_id, asked)
    if asked.assignee_type == "agent":
        gates = [
            row for row in locked.values() if row.link_kind == LinkKind.GATE and row.parent_id == asked.pk
        ]
        return locked[asked.pk], max(gates, key=lambda gate: gate.created_at, default=None)
    behind = locked.get(asked.parent_id) if asked.link_kind == LinkKind.GATE and asked.parent_id else None
    return behind, locked[asked.pk]


def _refuse_stranger(asked: Activity, by: Voter) -> None:
    if not by.may_decide(asked.human_role or None) and asked.assignee_type == "human":
        raise DecisionForbidden(
            f"This is for the human role {asked.human_role} to decide; yours are {', '.join(by.human_roles)}."
        )
    rules = DecisionRules.read(asked.decision_rules)
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
    edited: Edited | None = None,
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
    if now.cancel_reason:
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
    given = list(of_people.order_by("at", "pk"))
    return _counted(given, rules)


def _counted(given: list[Vote], rules: DecisionRules) -> Ballot | None:
    counts = Counter(vote.decision for vote in given)
    decision = rules.outcome(counts["approve"], counts["reject"])
    if decision is None:
        return None
    agreeing = [vote for vote in given if vote.decision == decision]
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
class Edited:
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


def keep_edited(waiting: Activity | None, item: Activity | None, output: Mapping[str, Any]) -> Edited:
    """Keep the edited output, in the caller's transaction. Both activities are locked and open; `waiting` is what waits behind the gate.

    Raises `SubmissionInvalid` for an empty output, and where there is no result whose place it could take.
    """
    is_empty = output.get("data") is None and not (output.get("content") or "").strip()
    fault = why_not_edit(item) or (_EMPTY if is_empty else "")
    if fault or item is None or item.input_ref is None:
        raise SubmissionInvalid([{"path": "output", "message": fault}])
    return Edited(item.input_ref, outputs.keep(item.tenant_id, (waiting or item).pk, output))


# A rejection makes a revision: the same work again, with the rejected output and the notes, as the next round.


SUFFIX = " (revision)"


def make_revision(rejected: Activity, notes: str, actor: str) -> None:
    """Create the revision before the rejection is announced, so that the pipeline sees the step go on."""
    if rejected.status != Status.AWAITING_APPROVAL:
        return  # Decided already: the transition will say so.
    if rejected.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        _escalate(rejected, notes)
    else:
        revise(rejected, notes=notes, actor=actor)


def revise(rejected: Activity, *, notes: str, actor: str, requires_approval: bool | None = None) -> UUID:
    """The same work again as the next round, told what was wrong. In the caller's transaction; idempotent per round."""
    revision = revision_of(rejected, notes=notes, requires_approval=requires_approval)
    return submit_revisions(rejected.tenant_id, [revision], actor=actor)[0]


def submit_revisions(tenant_id: UUID, revisions: Sequence[NewActivity], *, actor: str) -> list[UUID]:
    """Their ids, in order. Each waits for what people are still asked about the work that it takes the place of."""
    ids = [made.id for made in submit(revisions, actor=actor, bounded=False)]
    pairs = zip(revisions, ids, strict=True)
    places = {revision.parent_id: id for revision, id in pairs if revision.parent_id}
    approval_links.ask_about_revisions(tenant_id, places, actor=actor)
    return ids


def revision_of(rejected: Activity, *, notes: str, requires_approval: bool | None = None) -> NewActivity:
    """The next round of the same work, to be submitted."""
    name = (
        rejected.name if rejected.name.endswith(SUFFIX) else f"{rejected.name[: 200 - len(SUFFIX)]}{SUFFIX}"
    )
    return NewActivity(
        name=name,
        description=rejected.description,
        agent_role=rejected.agent_role,
        human_role=rejected.human_role,  # a person may have taken the work over
        requires_approval=rejected.requires_approval if requires_approval is None else requires_approval,
        priority=min(rejected.priority, states.BANDS["gated"]),
        params=rejected.params,
        metadata=rejected.metadata,
        input=rejected.input,
        input_ref=rejected.input_ref,
        parent_id=rejected.id,
        link_kind=LinkKind.REVISION_OF,
        deliverable_id=rejected.deliverable_id,
        mailbox_id=rejected.mailbox_id,
        pipeline_run_id=rejected.pipeline_run_id,
        pipeline_id=rejected.pipeline_id,
        period_id=rejected.period_id,
        template=rejected.template,
        step=rejected.step,
        branch=rejected.branch,
        round=rejected.round + 1,
        schedule_id=rejected.schedule_id,
        group_key=rejected.group_key,
        group_scope=rejected.group_scope,
        files=rejected.files,
        timeout_seconds=rejected.timeout_seconds,
        retry=rejected.retry,
        max_attempts=rejected.max_attempts,
        agent_options=rejected.agent_options,
        decision_rules=rejected.decision_rules,
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


# Withdrawing: whoever asked takes an approval back. What waits for it wakes and learns so.


WITHDRAW = "withdraw"


def withdraw(tenant_id: UUID, approval_id: UUID, *, by: Voter, reason: str = "") -> Activity:
    """Take an open approval back; for whoever asked, and for those who decide everything.

    Raises `AlreadyDecided` naming who was first, `TransitionRefused`, `DecisionForbidden`, `NotFound`.
    """
    with tenant_scope(tenant_id):
        approval = Approval.objects.for_tenant(tenant_id).filter(pk=approval_id).first()
        if approval is None:
            raise NotFound("approval", approval_id)
        if not by.decides_all and approval.requested_identity != by.identity:
            raise DecisionForbidden(f"{approval.requested_by} has asked this, and may take it back.")
        approval_links.lock_concerned_by(tenant_id, [approval_id])
        try:
            transitions.apply(
                approval_id, "cancel", actor=by.actor, detail={"reason": reason}, cancel_reason=reason or None,
                decided_by=by.actor, decided_at=transitions.NOW,
            )  # fmt: skip
        except TransitionRefused as refusal:
            raise who_was_first(tenant_id, refusal, WITHDRAW) from refusal
        return Activity.objects.for_tenant(tenant_id).get(pk=approval_id)
