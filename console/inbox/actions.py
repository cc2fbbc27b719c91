"""Answers that people give on the inbox page. Each goes through the same functions as the API's, and binds to what the page showed.

The form names the version that the item had when it was shown. Everything concerned is locked before the two are compared, so nobody
decides about something that has changed under their eyes: then nothing is done, and the page shows what has become of it.

What a person may do about an item now is offered as the buttons of its page, with a reason where there is none, and is looked up again
when a button is pressed. The API says what an activity allows, and the engine who may decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.db import transaction
from django.http import Http404

from activities import cancellation, outputs
from activities.api import decisions as api
from activities.api.serializers import list_allowed_actions
from activities.decision_rules import DecisionRules
from activities.exceptions import ActivityError, OutputUnavailable
from activities.human_tasks import approvals, human_work
from activities.models import Activity, ActivityEvent, Approval, Vote
from activities.outputs import StoredOutput
from activities.states import LinkKind
from console.labels import kind_of, name_actor, outcome
from console.page import Refused, refuse_when_busy
from tenants.context import APP, tenant_scope
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

    def find_action(self, name: str) -> Action | None:
        every = (*self.actions, self.editing) if self.editing else self.actions
        return next((action for action in every if action.name == name), None)


def offer_actions(principal: Principal, item: Any, *, approval: Any | None, voted: bool) -> Offer:
    """For an item with its parent. `approval` is its row of Approval, if it is one; `voted` whether this person has voted about it."""
    kind = kind_of(item.link_kind, is_approval_gate=item.is_approval_gate)
    allowed = set(list_allowed_actions(item))
    if not allowed:
        return Offer()
    if not principal.role.includes(Role.REVIEWER):
        return Offer(why_not=_explain_viewer(principal))
    if kind == "escalation":
        return _offer_for_failure(principal, item)
    if kind in DECIDED:
        return _offer_for_decision(principal, item, allowed, approval, voted)
    take_up = (TAKE_UP,) if "start" in allowed else ()
    if "resolve" in allowed:
        return Offer((RESOLVE, *take_up), note="How did the blocker go away?")
    return Offer((COMPLETE, *take_up), note="Note", takes_output=True)


def why_not_decide(principal: Principal, item: Any, rules: DecisionRules) -> str:
    """Why a yes or a no is not this person's to say; empty when it is."""
    voter = api.voter_of(principal)
    if not principal.role.includes(Role.REVIEWER):
        return _explain_viewer(principal)
    if not voter.may_decide(item.human_role or None):
        own = ", ".join(voter.human_roles)
        return f"This is for the human role {item.human_role} to decide; yours: {own}."
    if not rules.may_vote(voter.identity):
        return "You asked for this decision, so somebody else must make it."
    return ""


def _explain_viewer(principal: Principal) -> str:
    return f"You may look, but not decide: your role here is {principal.role}."


def _offer_for_decision(
    principal: Principal, item: Any, allowed: set[str], approval: Any | None, voted: bool
) -> Offer:
    rules = DecisionRules.read(item.decision_rules)
    why_not = why_not_decide(principal, item, rules) or ("You have voted." if voted else "")
    actions = [] if why_not else [APPROVE, _NO.get(item.link_kind, REJECT)]
    # The work of an agent that this person took over: they may decide it, or do it.
    takes_output = "complete" in allowed
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


def _offer_for_failure(principal: Principal, item: Any) -> Offer:
    """The failed work is the item's parent. Trying it again and cancelling it is for operators."""
    possible = set(list_allowed_actions(item.parent)) if item.parent else set()
    actions = [action for action in (RETRY, CANCEL) if action.name in possible]
    if not principal.role.includes(Role.OPERATOR):
        why_not = "Trying again and cancelling are for operators." if actions else ""
        return Offer((CLOSE,), why_not=why_not, note="Note")
    return Offer((*actions, CLOSE), note="Reason or note")


# An answer: read from the form, checked against what is offered, and done.


MOST_AT_ONCE = 100
NOT_OFFERED = "This item does not offer that."
NO_SUCH_ITEM = "There is no such item."
NO_OPTION = "Choose one of the options."
VOTED = "Your vote counts; more must agree"
MOST_CHARACTERS = 200_000  # of a text that can be edited


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an answer to one item."""

    id: UUID
    name: str
    ok: bool
    words: str


def act(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> Result:
    """Do what the form says, or raise `Refused`. Raises `Http404` for what is no item of this tenant."""
    shown, answer = prepare(principal, item_id, sent)
    with refuse_when_busy(), tenant_scope(principal.tenant_id):
        return perform(principal, item_id, shown, answer)


def prepare(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> tuple[int, Answer]:
    """What `perform` needs, read before anything is locked: a result may lie in MongoDB. Raises `Refused`."""
    shown, answer = read(sent)
    if answer.edited:
        answer = replace(answer, rest=rest_of(principal.tenant_id, item_id))
    return shown, answer


def perform(principal: Principal, item_id: UUID, shown: int, answer: Answer) -> Result:
    """In the caller's `tenant_scope`. Raises `Refused` and `Http404`."""
    lock(principal.tenant_id, {item_id})
    item = item_as_shown(principal.tenant_id, item_id, shown)
    return Result(item_id, item.name, True, _do(principal, item, answer))


def read(sent: Mapping[str, Any]) -> tuple[int, Answer]:
    """The version of the item that the form was shown with, and what it says. Raises `Refused`."""
    form = AnswerForm(sent)
    if not form.is_valid():
        field, errors = next(iter(form.errors.items()))
        raise Refused(" ".join(str(error) for error in errors), status=400, field=str(field))
    values = dict(form.cleaned_data)
    return values.pop("shown"), Answer(**values)


def approve_together(principal: Principal, chosen: Sequence[str]) -> list[Result]:
    """Say yes to several items, each `id:version`. One that cannot be approved says why, and hinders no other. Raises `Refused`."""
    versions = parse_chosen(chosen)
    with refuse_when_busy(), tenant_scope(principal.tenant_id):
        # All locks first and in one order: people who approve overlapping items would else wait for each other.
        lock(principal.tenant_id, set(versions))
        rows = Activity.objects.for_tenant(principal.tenant_id).filter(pk__in=versions)
        known = {pk: (name, run) for pk, name, run in rows.values_list("pk", "name", "pipeline_run_id")}
        results: dict[UUID, Result] = {}
        for item_id in sorted(versions, key=lambda pk: (str(known.get(pk, ("", ""))[1]), pk)):
            name = known.get(item_id, ("", None))[0]
            results[item_id] = _approve_one(principal, item_id, versions[item_id], name)
    return [results[item_id] for item_id in versions]


def _approve_one(principal: Principal, item_id: UUID, version: int, name: str) -> Result:
    try:
        with transaction.atomic(using=APP):
            item = item_as_shown(principal.tenant_id, item_id, version)
            return Result(item_id, name, True, _do(principal, item, Answer("approve")))
    except Http404:
        return Result(item_id, name, False, NO_SUCH_ITEM)
    except Refused as refusal:
        return Result(item_id, name, False, refusal.reason)


def parse_chosen(chosen: Sequence[str]) -> dict[UUID, int]:
    """Items with the versions that were shown, each chosen as `id:version`. Raises `Refused`."""
    if not 0 < len(chosen) <= MOST_AT_ONCE:
        raise Refused(f"Choose 1 to {MOST_AT_ONCE} items.", status=400)
    try:
        pairs = [one.split(":", 1) for one in chosen]
        return {UUID(item_id): int(version) for item_id, version in pairs}
    except ValueError as error:
        raise Refused("This is no choice that the page offers.", status=400) from error


def check_action(principal: Principal, item: Activity, answer: Answer) -> Action:
    """What is to be done, if this person is offered to do it and has said all that it needs. Raises `Refused`."""
    offer = offer_actions(principal, item, approval=_approval(item), voted=_has_voted(principal, item))
    action = offer.find_action(answer.deed)
    if action is None:
        raise Refused(offer.why_not or NOT_OFFERED, status=403 if offer.why_not else 409)
    if action.needs_note and not answer.notes.strip():
        raise Refused(action.needs_note, status=400, field="notes")
    if action.name in YES and offer.options and answer.option not in offer.options:
        raise Refused(NO_OPTION, status=400, field="option")
    return action


def _do(principal: Principal, item: Activity, answer: Answer) -> str:
    """Do it; what was done, in words. Raises `Refused`."""
    action = check_action(principal, item, answer)
    try:
        done = PERFORM[action.name](principal, item, answer)
    except ActivityError as error:
        raise Refused(f"{error} Nothing was done.", status=error.status) from error
    return _words(action, done)


def _words(action: Action, done: Activity) -> str:
    return VOTED if action.name in ("approve", "reject") and done.status == "in_progress" else action.done


def _approval(item: Activity) -> Approval | None:
    found: Approval | None = Approval.objects.for_tenant(item.tenant_id).filter(pk=item.pk).first()
    return found


def _has_voted(principal: Principal, item: Activity) -> bool:
    votes = Vote.objects.for_tenant(item.tenant_id).filter(activity_id=item.pk)
    return votes.filter(voter=principal.identity).exists()


# What each action of the page does, by the functions that the API calls.


def _approve(by: Principal, item: Activity, answer: Answer) -> Activity:
    body: dict[str, Any] = {"notes": answer.notes, "chosen_option": answer.option or None}
    if answer.edited:
        body["output"] = {**(answer.rest or {}), "content": answer.edited}
    return api.decide(item.tenant_id, item.pk, "approve", by=by, body=body)


def _reject(by: Principal, item: Activity, answer: Answer) -> Activity:
    return api.decide(item.tenant_id, item.pk, "reject", by=by, body={"notes": answer.notes})


def _resolve(by: Principal, item: Activity, answer: Answer) -> Activity:
    return api.answer(item.tenant_id, item.pk, "resolve", by=by, body={"notes": answer.notes})


def _complete(by: Principal, item: Activity, answer: Answer) -> Activity:
    output = {"content": answer.output} if answer.output else None
    return human_work.complete(item.tenant_id, item.pk, actor=by.actor, output=output, note=answer.notes)


def _take_up(by: Principal, item: Activity, answer: Answer) -> Activity:
    return human_work.take_up(item.tenant_id, item.pk, actor=by.actor)


def _withdraw(by: Principal, item: Activity, answer: Answer) -> Activity:
    return approvals.withdraw(item.tenant_id, item.pk, by=api.voter_of(by), reason=answer.notes)


def _retry(by: Principal, item: Activity, answer: Answer) -> Activity:
    return cancellation.retry(item.tenant_id, _failed_work_of(item), actor=by.actor)


def _cancel(by: Principal, item: Activity, answer: Answer) -> Activity:
    return cancellation.cancel(item.tenant_id, _failed_work_of(item), actor=by.actor, reason=answer.notes)


def _failed_work_of(item: Activity) -> UUID:
    """What an escalation is about. It is offered for nothing else."""
    assert item.parent_id is not None, "only what has a parent is offered to be tried again or cancelled"  # noqa: S101
    return item.parent_id


#: By the name of the action.
PERFORM: Mapping[str, Callable[[Principal, Activity, Answer], Activity]] = {
    "approve": _approve, "approve_edited": _approve, "reject": _reject, "resolve": _resolve, "complete": _complete, "start": _take_up,
    "withdraw": _withdraw, "retry": _retry, "cancel": _cancel,
}  # fmt: skip


# What the page of an item sends, and what somebody says by it.


EDITED_NOTHING = "You have edited the text: choose “Approve as edited”, or put it back as it was."
EMPTIED = "There is no text left to approve."
TOO_LONG = f"The text has more than the {MOST_CHARACTERS} characters that can be edited here."


class AnswerForm(forms.Form):
    """What the page of an item sends."""

    deed = forms.CharField(max_length=20)
    shown = forms.IntegerField(min_value=1)
    notes = forms.CharField(max_length=api.LONGEST_NOTES, required=False)
    option = forms.CharField(max_length=200, required=False)
    output = forms.CharField(required=False)
    edited = forms.CharField(required=False)
    edited_from = forms.CharField(max_length=64, required=False)

    def clean_notes(self) -> str:
        return with_plain_lines(self.cleaned_data["notes"])

    def clean_output(self) -> str:
        return _short_enough(with_plain_lines(self.cleaned_data["output"]))

    def clean_edited(self) -> str:
        return with_plain_lines(self.cleaned_data["edited"])

    def clean(self) -> dict[str, Any]:
        """An edited text counts with its own button alone. One that is as it was shown is no edited one."""
        values = dict(self.cleaned_data)
        shown, edited = values.pop("edited_from", ""), values.pop("edited", "")
        deed, is_as_shown = values.get("deed"), mark_of(edited) == shown
        if deed == APPROVE.name and shown and not is_as_shown:
            self.add_error("edited", EDITED_NOTHING)
        elif deed == APPROVE_EDITED.name and is_as_shown:
            values["deed"] = APPROVE.name
        elif deed == APPROVE_EDITED.name:
            values["edited"] = self._check_text(edited)
        return values

    def _check_text(self, edited: str) -> str:
        if not edited:
            self.add_error("edited", EMPTIED)
        elif len(edited) > MOST_CHARACTERS:
            self.add_error("edited", TOO_LONG)
        else:
            try:
                return _short_enough(edited)
            except forms.ValidationError as error:
                self.add_error("edited", error)
        return ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody says about an item."""

    deed: str
    notes: str = ""
    option: str = ""
    output: str = ""
    edited: str = ""  # the text that is approved in the place of the one that was shown
    rest: Mapping[str, Any] | None = None  # what stays beside it

    @property
    def form_values(self) -> dict[str, str]:
        """All but the deed, as the form would send it again."""
        values = {"notes": self.notes, "option": self.option, "output": self.output, "edited": self.edited}
        return {name: value for name, value in values.items() if value}


def _short_enough(text: str) -> str:
    most: int = settings.ORCHESTRATOR_MAX_OUTPUT_BYTES
    if len(text.encode()) > most:
        raise forms.ValidationError(f"The result is longer than the {most} bytes that are allowed.")
    return text


# An answer binds to what the page showed: the item is locked, then it must be as it was.


def lock(tenant_id: UUID, ids: set[UUID]) -> None:
    """Lock items and everything that an answer may move. An escalation's answer moves the failed work and what that holds."""
    failed = Activity.objects.for_tenant(tenant_id).filter(pk__in=ids, link_kind=LinkKind.ESCALATION)
    api.lock_all(tenant_id, ids | set(failed.exclude(parent_id=None).values_list("parent_id", flat=True)))


def item_as_shown(tenant_id: UUID, item_id: UUID, version: int) -> Activity:
    """The item, if it is still as it was. Raises `Refused` telling what happened, `Http404`."""
    rows = Activity.objects.for_tenant(tenant_id).filter(pk=item_id, assignee_type="human")
    item: Activity | None = rows.select_related("parent").first()
    if item is None:
        raise Http404
    if item.version != version and not _is_voted_on(item):
        raise Refused(f"{_what_happened(item)} Nothing was done.")
    return item


def _is_voted_on(item: Activity) -> bool:
    """Whether each person's word stands for itself, so that another one's changes nothing about it."""
    return item.status in OPEN and DecisionRules.read(item.decision_rules).is_voted_on


def _what_happened(item: Activity) -> str:
    events = ActivityEvent.objects.for_tenant(item.tenant_id).filter(activity_id=item.pk)
    last = events.order_by("-seq").first()
    if last is None:
        return "This has changed since you looked."
    reason = (last.detail or {}).get("reason")
    why = f" ({reason})" if reason else ""
    when = f"{last.at.astimezone(UTC):%-d %b, %H:%M:%S} UTC"
    return f"{outcome(item.status)} by {name_actor(last.actor)} on {when}{why}, after you had loaded this."


# Editing a result before it is approved: the text that the page offers for it, and what of the result stays beside an edited text.
#
# The page sends the whole text back, edited or not, with a mark of the one that it showed. So an approval whose text is the same is one
# like any other, and an edited text is never lost to the wrong button.


AWAY = "The store of outputs does not answer. Nothing was done; try again in a moment."
LOST = "The result is not there any more. Nothing was done."


@dataclass(frozen=True, slots=True)
class Draft:
    """A text to edit, and the mark by which it is known again."""

    text: str
    mark: str


def with_plain_lines(text: str) -> str:
    """Browsers send line ends as two characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def mark_of(text: str) -> str:
    """The same for texts that differ in nothing but their line ends and the space around them."""
    return hashlib.sha256(with_plain_lines(text).encode()).hexdigest()


def draft_of(output: StoredOutput | None) -> Draft | None:
    """What there is to edit; None for what is no text, or too long."""
    if output is None or not output.content_type.startswith("text/"):
        return None
    text = with_plain_lines(output.content or "")
    return Draft(text, mark_of(text)) if 0 < len(text) <= MOST_CHARACTERS else None


def rest_of(tenant_id: UUID, item_id: UUID) -> dict[str, Any]:
    """What of the result that an item asks about stays beside an edited text. Not inside a transaction. Raises `Refused`."""
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).filter(pk=item_id)
        reference: UUID | None = rows.values_list("input_ref", flat=True).first()
    if reference is None:
        return {}
    try:
        found = outputs.read(tenant_id, reference)
    except OutputUnavailable as error:
        raise Refused(AWAY, status=503) from error
    if found is None:
        raise Refused(LOST)
    return {"data": found.data, "content_type": found.content_type}
