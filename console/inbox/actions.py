"""Answers that people give on the inbox page. Each goes through the same functions as the API's, and binds to what the page showed.

The form names the version that the item had when it was shown. Everything concerned is locked before the two are compared, so nobody
decides about something that has changed under their eyes: then nothing is done, and the page shows what has become of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.db import transaction
from django.http import Http404

from activities import cancellation
from activities.api import decisions as api
from activities.exceptions import ActivityError
from activities.human_tasks import approvals, human_work
from activities.models import Activity, Approval, Vote
from console.inbox import items
from console.inbox.items import (
    MOST_CHARACTERS,
    Refused,
    item_as_shown,
    lock,
    mark_of,
    refused_when_busy,
    with_plain_lines,
)
from tenants.context import APP, tenant_scope
from tenants.principals import Principal

from .buttons import APPROVE, APPROVE_EDITED, YES, Action, offered

MOST_AT_ONCE = 100
NOT_OFFERED = "This item does not offer that."
NO_SUCH_ITEM = "There is no such item."
NO_OPTION = "Choose one of the options."
VOTED = "Your vote counts; more must agree"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an answer to one item."""

    id: UUID
    name: str
    ok: bool
    words: str


def act(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> Result:
    """Do what the form says, or raise `Refused`. Raises `Http404` for what is no item of this tenant."""
    shown, answer = prepared(principal, item_id, sent)
    with refused_when_busy(), tenant_scope(principal.tenant_id):
        return perform(principal, item_id, shown, answer)


def prepared(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> tuple[int, Answer]:
    """What `perform` needs, read before anything is locked: a result may lie in MongoDB. Raises `Refused`."""
    shown, answer = read(sent)
    if answer.edited:
        answer = replace(answer, rest=items.rest_of(principal.tenant_id, item_id))
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
    given = dict(form.cleaned_data)
    return given.pop("shown"), Answer(**given)


def approve_together(principal: Principal, chosen: Sequence[str]) -> list[Result]:
    """Say yes to several items, each `id:version`. One that cannot be approved says why, and hinders no other. Raises `Refused`."""
    wanted = parsed(chosen)
    with refused_when_busy(), tenant_scope(principal.tenant_id):
        # All locks first and in one order: people who approve overlapping items would else wait for each other.
        lock(principal.tenant_id, set(wanted))
        rows = Activity.objects.for_tenant(principal.tenant_id).filter(pk__in=wanted)
        known = {pk: (name, run) for pk, name, run in rows.values_list("pk", "name", "pipeline_run_id")}
        results: dict[UUID, Result] = {}
        for item_id in sorted(wanted, key=lambda pk: (str(known.get(pk, ("", ""))[1]), pk)):
            name = known.get(item_id, ("", None))[0]
            results[item_id] = _approved(principal, item_id, wanted[item_id], name)
    return [results[item_id] for item_id in wanted]


def _approved(principal: Principal, item_id: UUID, version: int, name: str) -> Result:
    try:
        with transaction.atomic(using=APP):
            item = item_as_shown(principal.tenant_id, item_id, version)
            return Result(item_id, name, True, _do(principal, item, Answer("approve")))
    except Http404:
        return Result(item_id, name, False, NO_SUCH_ITEM)
    except Refused as refusal:
        return Result(item_id, name, False, refusal.reason)


def parsed(chosen: Sequence[str]) -> dict[UUID, int]:
    """Items with the versions that were shown, each chosen as `id:version`. Raises `Refused`."""
    if not 0 < len(chosen) <= MOST_AT_ONCE:
        raise Refused(f"Choose 1 to {MOST_AT_ONCE} items.", status=400)
    try:
        pairs = [one.split(":", 1) for one in chosen]
        return {UUID(item_id): int(version) for item_id, version in pairs}
    except ValueError as error:
        raise Refused("This is no choice that the page offers.", status=400) from error


def checked(principal: Principal, item: Activity, answer: Answer) -> Action:
    """What is to be done, if this person is offered to do it and has said all that it needs. Raises `Refused`."""
    offer = offered(principal, item, approval=_approval(item), voted=_has_voted(principal, item))
    action = offer.named(answer.deed)
    if action is None:
        raise Refused(offer.why_not or NOT_OFFERED, status=403 if offer.why_not else 409)
    if action.needs_note and not answer.notes.strip():
        raise Refused(action.needs_note, status=400, field="notes")
    if action.name in YES and offer.options and answer.option not in offer.options:
        raise Refused(NO_OPTION, status=400, field="option")
    return action


def _do(principal: Principal, item: Activity, answer: Answer) -> str:
    """Do it; what was done, in words. Raises `Refused`."""
    action = checked(principal, item, answer)
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
    return cancellation.retry(item.tenant_id, _failed_work(item), actor=by.actor)


def _cancel(by: Principal, item: Activity, answer: Answer) -> Activity:
    return cancellation.cancel(item.tenant_id, _failed_work(item), actor=by.actor, reason=answer.notes)


def _failed_work(item: Activity) -> UUID:
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
        given = dict(self.cleaned_data)
        shown, edited = given.pop("edited_from", ""), given.pop("edited", "")
        deed, is_as_shown = given.get("deed"), mark_of(edited) == shown
        if deed == APPROVE.name and shown and not is_as_shown:
            self.add_error("edited", EDITED_NOTHING)
        elif deed == APPROVE_EDITED.name and is_as_shown:
            given["deed"] = APPROVE.name
        elif deed == APPROVE_EDITED.name:
            given["edited"] = self._checked(edited)
        return given

    def _checked(self, edited: str) -> str:
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
    def said(self) -> dict[str, str]:
        """All but the deed, as the form would send it again."""
        given = {"notes": self.notes, "option": self.option, "output": self.output, "edited": self.edited}
        return {name: value for name, value in given.items() if value}


def _short_enough(text: str) -> str:
    most: int = settings.ORCHESTRATOR_MAX_OUTPUT_BYTES
    if len(text.encode()) > most:
        raise forms.ValidationError(f"The result is longer than the {most} bytes that are allowed.")
    return text
