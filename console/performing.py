"""What each deed of the page does, by the functions that the API calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from activities import approvals, cancellation, people
from activities.api import decisions as api
from activities.models import Activity
from console.answer_form import Answer
from tenants.principals import Principal


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


#: By the name of the deed.
PERFORM: Mapping[str, Callable[[Principal, Activity, Answer], Activity]] = {
    "approve": _approve, "approve_edited": _approve, "reject": _reject, "resolve": _resolve, "complete": _complete, "start": _take_up,
    "withdraw": _withdraw, "retry": _retry, "cancel": _cancel,
}  # fmt: skip
