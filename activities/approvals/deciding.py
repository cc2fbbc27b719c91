"""Deciding: one decision closes an item and everything that hangs on it, in one transaction.

Everything concerned is locked before anything is looked at or written, in the order of the ids. A revision's key to its parent takes a
shared lock on it; two rejections that both had one and then wanted to move the parent would wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from activities import transitions
from activities.approvals import editing, linking, revisions, votes
from activities.approvals.editing import Edited
from activities.blockers import obsolete
from activities.decision_rules import DecisionRules, Voter
from activities.exceptions import (
    ActivityNotFound,
    AlreadyDecided,
    DecisionForbidden,
    PersonRequired,
    SubmissionInvalid,
    TransitionRefused,
)
from activities.models import Activity
from activities.states import LinkKind, Status
from tenants.context import tenant_scope

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
    output that there is nothing to put in the place of, `ActivityNotFound`.
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
            raise ActivityNotFound(f"There is no activity {activity_id}.")
        if in_time:
            _refuse_stranger(asked, by)
        rules = DecisionRules.read(asked.decision_rules)
        _refuse_unknown_option(rules, chosen_option)
        open_ = asked.status in (Status.CREATED, Status.IN_PROGRESS, Status.AWAITING_APPROVAL)
        # Nothing is kept for a decision that comes too late.
        edited = editing.keep(waiting, item, output) if output is not None and open_ else None
        if in_time and rules.is_voted_on and item is not None and open_:
            ballot = votes.cast(item, rules, decision, by, notes=notes, chosen_option=chosen_option)
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
    locked = linking.lock_concerned(tenant_id, asked)
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
            revisions.make_anew(waiting, notes, actor)
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
