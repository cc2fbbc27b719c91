"""What a person may do about an item now: the buttons of its page, and the same answer again when one of them is pressed.

What an activity allows is the API's to say, and who may decide is the engine's. Here both become words, and a reason where there is no
button.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from activities.api.operations import voter_of
from activities.api.serializers import list_allowed_actions
from activities.decision_rules import DecisionRules
from activities.human_tasks import approvals
from activities.states import LinkKind
from console.labels import kind_of
from tenants.models import Role
from tenants.principals import Principal

#: The statuses in which an item can be answered.
OPEN = ("created", "in_progress")
#: Kinds that are answered with a yes or a no.
DECIDED = frozenset({"gate", "approval", "review"})


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `tone` is its looks: good, bad, main or quiet."""

    name: str
    label: str
    done: str
    tone: str = "main"
    needs_note: str = ""  # what to say when the note is missing; empty: it may be


APPROVE = Action("approve", "Approve", "Approved", "good")
APPROVE_EDITED = Action("approve_edited", "Approve as edited", "Approved as edited", "good")
REJECT = Action(
    "reject", "Send back", "Sent back", "bad", "Say what is to be done differently: the agent works by it."
)
ASK_FOR_CHANGES = replace(REJECT, label="Ask for changes", done="Changes asked for")
SAY_NO = replace(REJECT, label="Reject", done="Rejected")
RESOLVE = Action(
    "resolve", "Resolved", "Resolved", "good", "Say how the blocker went away: the agent works by it."
)
COMPLETE = Action("complete", "Complete", "Completed", "good")
TAKE_UP = Action("start", "Take it up", "Taken up", "quiet")
RETRY = Action("retry", "Try again", "Started again", "good")
CANCEL = Action("cancel", "Cancel the work", "Cancelled", "bad")
CLOSE = Action("complete", "Close", "Closed", "quiet")
WITHDRAW = Action("withdraw", "Withdraw", "Withdrawn", "quiet")
#: The names of what says yes.
YES = frozenset({APPROVE.name, APPROVE_EDITED.name})
NOT_EDITED = "Several people decide about this, so nobody can edit the text: all must agree to the same one."


@dataclass(frozen=True, slots=True)
class Offer:
    """What is offered. `why_not` says why something that one would expect is not."""

    actions: tuple[Action, ...] = ()
    why_not: str = ""
    options: tuple[str, ...] = ()
    note: str = ""  # what the note is for; empty: none is asked for
    takes_output: bool = False
    editing: Action | None = None  # what approves an edited text, where the result can be edited
    why_not_edit: str = ""

    def named(self, name: str) -> Action | None:
        every = (*self.actions, self.editing) if self.editing else self.actions
        return next((action for action in every if action.name == name), None)


def offered(principal: Principal, item: Any, *, approval: Any | None, voted: bool) -> Offer:
    """For an item with its parent. `approval` is its row of Approval, if it is one; `voted` whether this person has voted about it."""
    kind = kind_of(item.link_kind, is_approval_gate=item.is_approval_gate)
    allowed = set(list_allowed_actions(item))
    if not allowed:
        return Offer()
    if not principal.role.includes(Role.REVIEWER):
        return Offer(why_not=_looking(principal))
    if kind == "escalation":
        return _about_a_failure(principal, item)
    if kind in DECIDED:
        return _about_a_decision(principal, item, allowed, approval, voted)
    if "resolve" in allowed:
        return Offer((RESOLVE, *_take_up(allowed)), note="How did the blocker go away?")
    return Offer((COMPLETE, *_take_up(allowed)), note="Note", takes_output=True)


def why_not_decide(principal: Principal, item: Any, rules: DecisionRules) -> str:
    """Why a yes or a no is not this person's to say; empty when it is."""
    voter = voter_of(principal)
    if not principal.role.includes(Role.REVIEWER):
        return _looking(principal)
    if not voter.may_decide(item.human_role or None):
        own = ", ".join(voter.human_roles)
        return f"This is for the human role {item.human_role} to decide; yours: {own}."
    if not rules.may_vote(voter.identity):
        return "You asked for this decision, so somebody else must make it."
    return ""


def _looking(principal: Principal) -> str:
    return f"You may look, but not decide: your role here is {principal.role}."


def _take_up(allowed: set[str]) -> tuple[Action, ...]:
    return (TAKE_UP,) if "start" in allowed else ()


def _about_a_decision(
    principal: Principal, item: Any, allowed: set[str], approval: Any | None, voted: bool
) -> Offer:
    rules = DecisionRules.read(item.decision_rules)
    why_not = why_not_decide(principal, item, rules) or ("You have voted." if voted else "")
    actions = [] if why_not else [APPROVE, _NO.get(item.link_kind, REJECT)]
    takes_output = (
        "complete" in allowed
    )  # the work of an agent that this person took over: decide it, or do it
    if takes_output:
        actions.append(COMPLETE)
    if approval is not None and "cancel" in allowed and _may_withdraw(principal, approval):
        actions.append(WITHDRAW)
    return Offer(
        tuple(actions),
        why_not=why_not,
        options=() if why_not else tuple(rules.options),
        note=_NOTES_FOR.get(kind_of(item.link_kind, is_approval_gate=True), "") if actions else "",
        takes_output=takes_output,
        editing=APPROVE_EDITED if actions and not why_not and not approvals.why_not_edit(item) else None,
        why_not_edit=NOT_EDITED
        if rules.is_voted_on and item.link_kind == LinkKind.GATE and not why_not
        else "",
    )


_NOTES_FOR = {
    "gate": "Notes, needed to send it back",
    "review": "Feedback, needed to ask for changes",
    "approval": "Notes, needed to reject",
}
_NO: Mapping[str | None, Action] = {LinkKind.REVIEW: ASK_FOR_CHANGES, LinkKind.APPROVAL: SAY_NO}


def _may_withdraw(principal: Principal, approval: Any) -> bool:
    return principal.role.includes(Role.OPERATOR) or approval.requested_identity == principal.identity


def _about_a_failure(principal: Principal, item: Any) -> Offer:
    """The failed work is the item's parent. Trying it again and cancelling it is for operators."""
    possible = set(list_allowed_actions(item.parent)) if item.parent else set()
    actions = [action for action in (RETRY, CANCEL) if action.name in possible]
    if not principal.role.includes(Role.OPERATOR):
        why_not = "Trying again and cancelling are for operators." if actions else ""
        return Offer((CLOSE,), why_not=why_not, note="Note")
    return Offer((*actions, CLOSE), note="Reason or note")
