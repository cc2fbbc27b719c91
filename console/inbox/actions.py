"""Performs the answers that people give on the inbox page, through the same functions as the API.

An answer applies only to the version of the item that the page displayed. Every row that the answer may change is locked before the
versions are compared. If the item has changed meanwhile, nothing is done, and the page tells what happened to it.

The page has a button for each action that the person may take now, or the reason why there is none. The permission is checked again when
a button is pressed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.db import transaction
from django.http import Http404

from activities import cancellation, outputs
from activities.api import decisions as api
from activities.api.allowed_actions import list_possible_actions
from activities.decision_rules import DecisionRules
from activities.exceptions import ActivityError, OutputUnavailable
from activities.human_tasks import approvals, decisions, human_work
from activities.models import Activity, ActivityEvent, Approval, Vote
from activities.outputs import StoredOutput
from activities.states import LinkKind
from console.labels import CHANGED, kind_of, name_actor, outcome_label
from console.page import Refused, refuse_when_busy
from tenants import audit
from tenants.context import APP, tenant_scope
from tenants.models import Role
from tenants.principals import Principal

#: The statuses in which an item can be answered.
OPEN = ("created", "in_progress")
#: Kinds that are answered with a yes or a no.
DECIDED = frozenset({"gate", "approval", "review"})


@dataclass(frozen=True, slots=True)
class Action:
    """An action that the page offers. `tone` is the style of its button: good, bad, main or quiet."""

    name: str
    label: str
    done: str
    tone: str = "main"
    needs_note: str = ""  # the error if the note is missing; empty if the note is optional


APPROVE = Action("approve", "Approve", "Approved", "good")
APPROVE_EDITED = Action("approve_edited", "Approve as edited", "Approved as edited", "good")
REJECT = Action(
    "reject",
    "Request changes",
    "Changes requested",
    "bad",
    "Describe the changes: the agent works from your note.",
)
SAY_NO = replace(REJECT, label="Reject", done="Rejected")
RESOLVE = Action(
    "resolve",
    "Resolve",
    "Resolved",
    "good",
    "Describe how the blocker was resolved: the agent works from your note.",
)
COMPLETE = Action("complete", "Complete", "Completed", "good")
CLAIM = Action("start", "Claim", "Claimed", "quiet")
RETRY = Action("retry", "Retry", "Retried", "good")
CANCEL = Action("cancel", "Cancel the work", "Cancelled", "bad")
CLOSE = Action("complete", "Close", "Closed", "quiet")
WITHDRAW = Action("withdraw", "Cancel the request", "Request cancelled", "quiet")
#: The names of the actions that approve.
YES = frozenset({APPROVE.name, APPROVE_EDITED.name})
NOT_EDITED = (
    "Several people vote on this, so the text cannot be edited: all of them must approve the same text."
)


@dataclass(frozen=True, slots=True)
class Offer:
    """The actions that the page offers. `why_not` explains why an expected action is missing."""

    actions: tuple[Action, ...] = ()
    why_not: str = ""
    options: tuple[str, ...] = ()
    note: str = ""  # the label of the note's field; empty if there is none
    takes_output: bool = False
    editing: Action | None = None  # approves an edited text; None if the result cannot be edited
    why_not_edit: str = ""

    def find_action(self, name: str) -> Action | None:
        every = (*self.actions, self.editing) if self.editing else self.actions
        return next((action for action in every if action.name == name), None)


def offer_actions(principal: Principal, item: Any, *, approval: Any | None, voted: bool) -> Offer:
    """Return the offer for an item, loaded with its parent. `voted` tells whether this person has voted on it."""
    kind = kind_of(item.link_kind, is_approval_gate=item.is_approval_gate)
    allowed = set(list_possible_actions(principal.tenant_id, [item])[item.pk])
    if not allowed:
        return Offer()
    if not principal.role.includes(Role.REVIEWER):
        return Offer(why_not=_explain_viewer(principal))
    if kind == "escalation":
        return _offer_for_failure(principal, item)
    if kind in DECIDED:
        return _offer_for_decision(principal, item, allowed, approval, voted)
    claim = (CLAIM,) if "start" in allowed else ()
    if "resolve" in allowed:
        return Offer((RESOLVE, *claim), note="How was the blocker resolved?")
    return Offer((COMPLETE, *claim), note="Note", takes_output=True)


def why_not_decide(principal: Principal, item: Any, rules: DecisionRules) -> str:
    """Return why this person may not approve or reject; empty if they may."""
    voter = api.voter_of(principal)
    if not principal.role.includes(Role.REVIEWER):
        return _explain_viewer(principal)
    if not voter.may_decide(item.human_role or None):
        own = ", ".join(voter.human_roles)
        return f"Only the human role {item.human_role} may decide this. Your roles: {own}."
    if not rules.may_vote(voter.identity):
        return "You requested this decision, so somebody else must make it."
    return ""


def _explain_viewer(principal: Principal) -> str:
    return f"Your role here is {principal.role}, which may not decide."


def _offer_for_decision(
    principal: Principal, item: Any, allowed: set[str], approval: Any | None, voted: bool
) -> Offer:
    rules = DecisionRules.read(item.decision_rules)
    why_not = why_not_decide(principal, item, rules) or ("You have voted." if voted else "")
    actions = [] if why_not else [APPROVE, SAY_NO if item.link_kind == LinkKind.APPROVAL else REJECT]
    # Work that was reassigned from an agent to this person: they may decide it, or do it.
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
        editing=APPROVE_EDITED if actions and not why_not and not decisions.why_not_edit(item) else None,
        why_not_edit=NOT_EDITED
        if rules.is_voted_on and item.link_kind == LinkKind.GATE and not why_not
        else "",
    )


_NOTES_FOR = {
    "gate": "Notes (required to request changes)",
    "review": "Feedback (required to request changes)",
    "approval": "Notes (required to reject)",
}


def _may_withdraw(principal: Principal, approval: Any) -> bool:
    return principal.role.includes(Role.OPERATOR) or approval.requested_identity == principal.identity


def _offer_for_failure(principal: Principal, item: Any) -> Offer:
    """The failed work is the item's parent. Only operators may retry or cancel it."""
    failed = item.parent
    possible = list_possible_actions(principal.tenant_id, [failed])[failed.pk] if failed else ()
    actions = [action for action in (RETRY, CANCEL) if action.name in possible]
    if not principal.role.includes(Role.OPERATOR):
        why_not = "Only operators may retry or cancel the work." if actions else ""
        return Offer((CLOSE,), why_not=why_not, note="Note")
    return Offer((*actions, CLOSE), note="Reason or note")


# An answer is read from the form, checked against the offer, and performed.


MOST_AT_ONCE = 100
NOT_OFFERED = "This action is not available for this item."
NO_SUCH_ITEM = "This item does not exist."
NO_OPTION = "Choose one of the options: {}."
VOTED = "Vote recorded; more approvals are needed"
MOST_CHARACTERS = 200_000  # of an editable text


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an answer to one item."""

    id: UUID
    name: str
    ok: bool
    words: str


def act(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> Result:
    """Perform the answer of a form. Raises `Refused`, or `Http404` if the tenant has no such item."""
    version, answer = prepare(principal, item_id, sent)
    with refuse_when_busy(), tenant_scope(principal.tenant_id):
        return perform(principal, item_id, version, answer)


def prepare(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> tuple[int, Answer]:
    """Return the arguments of `perform`, read before anything is locked: a result may lie in MongoDB. Raises `Refused`."""
    version, answer = read(sent)
    if answer.edited:
        answer = replace(answer, rest=rest_of(principal.tenant_id, item_id))
    return version, answer


def perform(
    principal: Principal,
    item_id: UUID,
    version: int,
    answer: Answer,
    *,
    channel: str = "inbox",
    **detail: str,
) -> Result:
    """Perform an answer, and record it in the audit trail as `<channel>.<action>` with this detail. In the caller's `tenant_scope`.

    Raises `Refused` and `Http404`.
    """
    lock(principal.tenant_id, {item_id})
    item = item_at_version(principal.tenant_id, item_id, version)
    result = Result(item_id, item.name, True, _do(principal, item, answer))
    _record(principal, f"{channel}.{answer.action}", item_id, version, **detail)
    return result


def _record(principal: Principal, operation: str, item_id: UUID, version: int, **detail: str) -> None:
    audit.record_action(
        principal, operation, about=("activities", item_id), detail={"version": version, **detail}
    )


def read(sent: Mapping[str, Any]) -> tuple[int, Answer]:
    """Return the version of the item that the page displayed, and the answer. Raises `Refused`."""
    form = AnswerForm(sent)
    if not form.is_valid():
        field, errors = next(iter(form.errors.items()))
        raise Refused(" ".join(str(error) for error in errors), status=400, field=str(field))
    values = dict(form.cleaned_data)
    return values.pop("version"), Answer(**values)


def approve_together(principal: Principal, chosen: Sequence[str]) -> list[Result]:
    """Approve several items, each `id:version`. A failed item has its reason and does not stop the others. Raises `Refused`."""
    versions = parse_chosen(chosen)
    with refuse_when_busy(), tenant_scope(principal.tenant_id):
        # Take all locks first and in one order: otherwise people who approve overlapping items could deadlock.
        lock(principal.tenant_id, set(versions))
        rows = Activity.objects.for_tenant(principal.tenant_id).filter(pk__in=versions)
        known = {pk: (name, run) for pk, name, run in rows.values_list("pk", "name", "pipeline_run_id")}
        results: dict[UUID, Result] = {}
        for item_id in sorted(versions, key=lambda pk: (str(known.get(pk, ("", ""))[1]), pk)):
            name = known.get(item_id, ("", None))[0]
            approve = partial(_approve_one, principal, item_id, versions[item_id])
            results[item_id] = result_of(item_id, name, approve)
        # Last, because an entry locks the trail until the transaction ends.
        for item_id, version in versions.items():
            if results[item_id].ok:
                _record(principal, "inbox.approve", item_id, version)
    return [results[item_id] for item_id in versions]


def _approve_one(principal: Principal, item_id: UUID, version: int) -> Result:
    with transaction.atomic(using=APP):
        item = item_at_version(principal.tenant_id, item_id, version)
        return Result(item_id, item.name, True, _do(principal, item, Answer("approve")))


def result_of(item_id: UUID, name: str, act: Callable[[], Result]) -> Result:
    """Return the result of an answer to one of several items. A failure has its reason."""
    try:
        return act()
    except Http404:
        return Result(item_id, name, False, NO_SUCH_ITEM)
    except Refused as refusal:
        return Result(item_id, name, False, refusal.reason)


def parse_chosen(chosen: Sequence[str]) -> dict[UUID, int]:
    """Parse `id:version` pairs of items with the displayed version. Raises `Refused`."""
    if not 0 < len(chosen) <= MOST_AT_ONCE:
        raise Refused(f"Choose 1 to {MOST_AT_ONCE} items.", status=400)
    try:
        pairs = [one.split(":", 1) for one in chosen]
        return {UUID(item_id): int(version) for item_id, version in pairs}
    except ValueError as error:
        raise Refused("The selection is not valid. Reload the page.", status=400) from error


def check_action(principal: Principal, item: Activity, answer: Answer) -> Action:
    """Return the action of an answer. Raises `Refused` if it is not offered to this person or the answer is incomplete."""
    approval: Approval | None = Approval.objects.for_tenant(item.tenant_id).filter(pk=item.pk).first()
    votes = Vote.objects.for_tenant(item.tenant_id).filter(activity_id=item.pk)
    offer = offer_actions(
        principal, item, approval=approval, voted=votes.filter(voter=principal.identity).exists()
    )
    action = offer.find_action(answer.action)
    if action is None:
        raise Refused(offer.why_not or NOT_OFFERED, status=403 if offer.why_not else 409)
    if action.needs_note and not answer.notes.strip():
        raise Refused(action.needs_note, status=400, field="notes")
    if action.name in YES and offer.options and answer.option not in offer.options:
        raise Refused(NO_OPTION.format(", ".join(offer.options)), status=400, field="option")
    return action


def _do(principal: Principal, item: Activity, answer: Answer) -> str:
    """Perform the answer and return the label of what was done. Raises `Refused`."""
    action = check_action(principal, item, answer)
    try:
        done = PERFORM[action.name](principal, item, answer)
    except ActivityError as error:
        raise Refused(f"{error} Nothing was done.", status=error.status) from error
    return VOTED if action.name in ("approve", "reject") and done.status == "in_progress" else action.done


# The actions of the page, performed by the functions that the API calls.


def _approve(by: Principal, item: Activity, answer: Answer) -> Activity:
    body: dict[str, Any] = {"notes": answer.notes, "chosen_option": answer.option or None}
    if answer.edited:
        body["output"] = {**(answer.rest or {}), "content": answer.edited}
    return api.decide(item.tenant_id, item.pk, "approve", by=by, body=body)


def _complete(by: Principal, item: Activity, answer: Answer) -> Activity:
    output = {"content": answer.output} if answer.output else None
    return human_work.complete(item.tenant_id, item.pk, actor=by.actor, output=output, note=answer.notes)


def _failed_work_of(item: Activity) -> UUID:
    assert item.parent_id is not None, "only escalations offer this"  # noqa: S101
    return item.parent_id


#: By the name of the action.
PERFORM: Mapping[str, Callable[[Principal, Activity, Answer], Activity]] = {
    "approve": _approve,
    "approve_edited": _approve,
    "reject": lambda by, item, answer: api.decide(
        item.tenant_id, item.pk, "reject", by=by, body={"notes": answer.notes}
    ),
    "resolve": lambda by, item, answer: api.answer(
        item.tenant_id, item.pk, "resolve", by=by, body={"notes": answer.notes}
    ),
    "complete": _complete,
    "start": lambda by, item, answer: human_work.take_up(item.tenant_id, item.pk, actor=by.actor),
    "withdraw": lambda by, item, answer: decisions.withdraw(
        item.tenant_id, item.pk, by=api.voter_of(by), reason=answer.notes
    ),
    "retry": lambda by, item, answer: cancellation.retry(
        item.tenant_id, _failed_work_of(item), actor=by.actor
    ),
    "cancel": lambda by, item, answer: cancellation.cancel(
        item.tenant_id, _failed_work_of(item), actor=by.actor, reason=answer.notes
    ),
}


# The form on the page of an item, and the answer that it carries.


EDITED_NOTHING = "You have edited the text. Choose “Approve as edited”, or undo your edits."
EMPTIED = "The text is empty, so there is nothing to approve."
TOO_LONG = f"The text is longer than {MOST_CHARACTERS} characters, the limit for editing here."


MOST_VERSION = 2**31 - 1  # the largest that a held answer can store


class AnswerForm(forms.Form):
    action = forms.CharField(max_length=20)
    version = forms.IntegerField(min_value=1, max_value=MOST_VERSION)
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
        """Accept an edited text only from its own button, and ignore a text that is unchanged."""
        values = dict(self.cleaned_data)
        digest, edited = values.pop("edited_from", ""), values.pop("edited", "")
        action, is_unchanged = values.get("action"), digest_of(edited) == digest
        if action == APPROVE.name and digest and not is_unchanged:
            self.add_error("edited", EDITED_NOTHING)
        elif action == APPROVE_EDITED.name and is_unchanged:
            values["action"] = APPROVE.name
        elif action == APPROVE_EDITED.name:
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
    """A person's answer to an item."""

    action: str
    notes: str = ""
    option: str = ""
    output: str = ""
    edited: str = ""  # the text that is approved instead of the displayed one
    rest: Mapping[str, Any] | None = None  # the parts of the result that stay unchanged

    @property
    def form_values(self) -> dict[str, str]:
        """Everything but the action, as the form would send it again."""
        values = {"notes": self.notes, "option": self.option, "output": self.output, "edited": self.edited}
        return {name: value for name, value in values.items() if value}


def _short_enough(text: str) -> str:
    most: int = settings.ORCHESTRATOR_MAX_OUTPUT_BYTES
    if len(text.encode()) > most:
        raise forms.ValidationError(f"The result is longer than the limit of {most} bytes.")
    return text


# The item is locked, then its version is compared with the one that the page displayed.


def lock(tenant_id: UUID, ids: set[UUID]) -> None:
    """Lock the items and all rows that an answer may change. For an escalation these include the failed work."""
    failed = Activity.objects.for_tenant(tenant_id).filter(pk__in=ids, link_kind=LinkKind.ESCALATION)
    approvals.lock_concerned_by(
        tenant_id, ids | set(failed.exclude(parent_id=None).values_list("parent_id", flat=True))
    )


def item_at_version(tenant_id: UUID, item_id: UUID, version: int) -> Activity:
    """Return the item. Raises `Refused` with what happened if its version has changed, and `Http404`."""
    rows = Activity.objects.for_tenant(tenant_id).filter(pk=item_id, assignee_type="human")
    item: Activity = rows.select_related("parent").first_or_raise(Http404())
    # If several people vote, a vote of somebody else does not invalidate an answer.
    if item.version != version and not (
        item.status in OPEN and DecisionRules.read(item.decision_rules).is_voted_on
    ):
        raise Refused(f"{_what_happened(item)} Nothing was done.")
    return item


def _what_happened(item: Activity) -> str:
    events = ActivityEvent.objects.for_tenant(item.tenant_id).filter(activity_id=item.pk)
    last = events.order_by("-seq").first()
    if last is None:
        return "This has changed since you loaded the page."
    reason = (last.detail or {}).get("reason")
    why = f" ({reason})" if reason else ""
    when = f"{last.at.astimezone(UTC):%-d %b, %H:%M:%S} UTC"
    # A new priority or date changes an item without its status: what is claimed was not claimed by whoever changed it.
    did = outcome_label(item.status) if last.source != last.target else CHANGED
    return f"{did} by {name_actor(last.actor)} on {when}{why}, after you loaded the page."


# Editing a result before it is approved.
#
# The page sends the whole text, edited or not, with a digest of the text that it displayed. So an unchanged text is approved as usual, and
# an edited text is never lost because somebody pressed the wrong button.


AWAY = "The output store does not answer. Nothing was done; try again in a moment."
LOST = "The result no longer exists. Nothing was done."


@dataclass(frozen=True, slots=True)
class Draft:
    """An editable text with its digest."""

    text: str
    digest: str


def with_plain_lines(text: str) -> str:
    """Normalize line ends, which browsers send as two characters, and strip the text."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, ignoring differences in line ends and surrounding space."""
    return hashlib.sha256(with_plain_lines(text).encode()).hexdigest()


def draft_of(output: StoredOutput | None) -> Draft | None:
    """Return the editable text of an output; None if it is not text, empty or too long."""
    if output is None or not output.content_type.startswith("text/"):
        return None
    text = with_plain_lines(output.content or "")
    return Draft(text, digest_of(text)) if 0 < len(text) <= MOST_CHARACTERS else None


def rest_of(tenant_id: UUID, item_id: UUID) -> dict[str, Any]:
    """Return the parts of the item's result that an edit leaves unchanged. Not inside a transaction. Raises `Refused`."""
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).filter(pk=item_id)
        reference: UUID | None = rows.values_list("input_ref", flat=True).first()
    if reference is None:
        return {}
    try:
        output = outputs.read(tenant_id, reference)
    except OutputUnavailable as error:
        raise Refused(AWAY, status=503) from error
    if output is None:
        raise Refused(LOST)
    return {"data": output.data, "content_type": output.content_type}
