"""Answers that people give on the inbox page. Each goes through the same functions as the API's, and binds to what the page showed.

The form names the version that the item had when it was shown. Everything concerned is locked before the two are compared, so nobody
decides about something that has changed under their eyes: then nothing is done, and the page shows what has become of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import Any
from uuid import UUID

import psycopg
from django import forms
from django.conf import settings
from django.db import OperationalError, transaction
from django.http import Http404

from activities import approvals, cancellation, people
from activities.api import decisions as api
from activities.decision_rules import DecisionRules
from activities.exceptions import ActivityError
from activities.models import Activity, ActivityEvent, Approval, Vote
from activities.states import LinkKind
from console.deeds import Deed, offered
from console.facts import OPEN
from console.wording import named, outcome
from tenants.context import APP, tenant_scope
from tenants.principals import Principal

MOST_AT_ONCE = 100
BUSY = "Many answers met at the same moment, and this one was given up. Nothing was done; try again."
#: How the database ends a transaction that others stand in the way of.
_MET = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.SerializationFailure,
)
NOT_OFFERED = "This item does not offer that."
NO_OPTION = "Choose one of the options."
VOTED = "Your vote counts; more must agree"


class Refused(Exception):
    """Nothing was done, and why. `status` is the HTTP status of the page that says so, `field` what of the form is at fault."""

    def __init__(self, reason: str, *, status: int = 409, field: str = "") -> None:
        super().__init__(reason)
        self.reason, self.status, self.field = reason, status, field


class AnswerForm(forms.Form):
    """What the page of an item sends."""

    deed = forms.CharField(max_length=20)
    shown = forms.IntegerField(min_value=1)
    notes = forms.CharField(max_length=api.LONGEST_NOTES, required=False)
    option = forms.CharField(max_length=200, required=False)
    output = forms.CharField(required=False)

    def clean_notes(self) -> str:
        return _with_plain_lines(self.cleaned_data["notes"])

    def clean_output(self) -> str:
        output = _with_plain_lines(self.cleaned_data["output"])
        most: int = settings.ORCHESTRATOR_MAX_OUTPUT_BYTES
        if len(output.encode()) > most:
            raise forms.ValidationError(f"The result is longer than the {most} bytes that are allowed.")
        return output


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody says about an item."""

    deed: str
    notes: str = ""
    option: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an answer to one item."""

    id: UUID
    name: str
    ok: bool
    words: str


def act(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> Result:
    """Do what the form says, or raise `Refused`. Raises `Http404` for what is no item of this tenant."""
    form = AnswerForm(sent)
    if not form.is_valid():
        field, faults = next(iter(form.errors.items()))
        raise Refused(" ".join(str(fault) for fault in faults), status=400, field=str(field))
    given = dict(form.cleaned_data)
    shown = given.pop("shown")
    with _refused_when_busy(), tenant_scope(principal.tenant_id):
        _lock(principal.tenant_id, {item_id})
        item = _as_shown(principal.tenant_id, item_id, shown)
        return Result(item_id, item.name, True, _do(principal, item, Answer(**given)))


def approve_together(principal: Principal, chosen: Sequence[str]) -> list[Result]:
    """Say yes to several items, each `id:version`. One that cannot be approved says why, and hinders no other. Raises `Refused`."""
    wanted = _parsed(chosen)
    with _refused_when_busy(), tenant_scope(principal.tenant_id):
        # All locks first and in one order: people who approve overlapping items would else wait for each other.
        _lock(principal.tenant_id, set(wanted))
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
            item = _as_shown(principal.tenant_id, item_id, version)
            return Result(item_id, name, True, _do(principal, item, Answer("approve")))
    except Http404:
        return Result(item_id, name, False, "There is no such item.")
    except Refused as refusal:
        return Result(item_id, name, False, refusal.reason)


def _parsed(chosen: Sequence[str]) -> dict[UUID, int]:
    if not 0 < len(chosen) <= MOST_AT_ONCE:
        raise Refused(f"Choose 1 to {MOST_AT_ONCE} items.", status=400)
    try:
        pairs = [one.split(":", 1) for one in chosen]
        return {UUID(item_id): int(version) for item_id, version in pairs}
    except ValueError as error:
        raise Refused("This is no choice that the page offers.", status=400) from error


@contextmanager
def _refused_when_busy() -> Iterator[None]:
    """The database gives up a transaction that others stand in the way of. Whoever sent it may simply try again."""
    try:
        yield
    except OperationalError as error:
        if isinstance(error.__cause__, _MET):
            raise Refused(BUSY, status=503) from error
        raise


def _lock(tenant_id: UUID, ids: set[UUID]) -> None:
    """Lock items and everything that an answer may move. An escalation's answer moves the failed work and what that holds."""
    failed = Activity.objects.for_tenant(tenant_id).filter(pk__in=ids, link_kind=LinkKind.ESCALATION)
    api.lock_all(tenant_id, ids | set(failed.exclude(parent_id=None).values_list("parent_id", flat=True)))


def _as_shown(tenant_id: UUID, item_id: UUID, version: int) -> Activity:
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
    return f"{outcome(item.status)} by {named(last.actor)} on {when}{why}, after you had loaded this."


def _do(principal: Principal, item: Activity, answer: Answer) -> str:
    """Do it, if this person is offered to; what was done, in words. Raises `Refused`."""
    offer = offered(principal, item, approval=_approval(item), voted=_has_voted(principal, item))
    deed = offer.named(answer.deed)
    if deed is None:
        raise Refused(offer.why_not or NOT_OFFERED, status=403 if offer.why_not else 409)
    if deed.needs_note and not answer.notes.strip():
        raise Refused(deed.needs_note, status=400, field="notes")
    if deed.name == "approve" and offer.options and answer.option not in offer.options:
        raise Refused(NO_OPTION, status=400, field="option")
    try:
        done = _PERFORM[deed.name](principal, item, answer)
    except ActivityError as error:
        raise Refused(f"{error} Nothing was done.", status=error.status) from error
    return _words(deed, done)


def _words(deed: Deed, done: Activity) -> str:
    return VOTED if deed.name in ("approve", "reject") and done.status == "in_progress" else deed.done


def _approval(item: Activity) -> Approval | None:
    found: Approval | None = Approval.objects.for_tenant(item.tenant_id).filter(pk=item.pk).first()
    return found


def _has_voted(principal: Principal, item: Activity) -> bool:
    votes = Vote.objects.for_tenant(item.tenant_id).filter(activity_id=item.pk)
    return votes.filter(voter=principal.identity).exists()


def _approve(by: Principal, item: Activity, answer: Answer) -> Activity:
    body = {"notes": answer.notes, "chosen_option": answer.option or None}
    return api.decide(item.tenant_id, item.pk, "approve", by=by, body=body)


def _reject(by: Principal, item: Activity, answer: Answer) -> Activity:
    return api.decide(item.tenant_id, item.pk, "reject", by=by, body={"notes": answer.notes})


def _resolve(by: Principal, item: Activity, answer: Answer) -> Activity:
    return api.answer(item.tenant_id, item.pk, "resolve", by=by, body={"notes": answer.notes})


def _complete(by: Principal, item: Activity, answer: Answer) -> Activity:
    output = {"content": answer.output} if answer.output else None
    return people.complete(item.tenant_id, item.pk, actor=by.actor, output=output, note=answer.notes)


def _take_up(by: Principal, item: Activity, answer: Answer) -> Activity:
    return people.take_up(item.tenant_id, item.pk, actor=by.actor)


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


_PERFORM: Mapping[str, Callable[[Principal, Activity, Answer], Activity]] = {
    "approve": _approve, "reject": _reject, "resolve": _resolve, "complete": _complete, "start": _take_up,
    "withdraw": _withdraw, "retry": _retry, "cancel": _cancel,
}  # fmt: skip


def _with_plain_lines(text: str) -> str:
    """Browsers send line ends as two characters."""
    return text.replace("\r\n", "\n").strip()
