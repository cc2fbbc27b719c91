"""Holds answers for some seconds before they take effect, so that the person can undo them.

The leader applies the answers that are due, with the rights that the person has then. The row is deleted in the transaction that applies
the answer, so an answer takes effect once, however many processes try and wherever they crash. An answer that can no longer take effect
is kept with the reason until the person has read it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.http import Http404

from activities.models import Activity, HeldAnswer
from activities.models.decision import LONGEST_REFUSAL
from console.inbox import actions
from console.inbox.actions import Result, item_at_version
from console.page import Refused, refuse_when_busy
from tenants import audit, clock, members, outages, sweeps
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.principals import Principal
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

# Hold: an answer is checked as if it took effect now, stored as a row, and listed to its author.
#
# Applying the answer or undoing it deletes the row, whichever comes first.

ON_ITS_WAY = "You have already answered this. Undo your answer to give a different one."


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer that has not taken effect. `refusal` is the reason if it cannot take effect any more."""

    id: UUID
    item_id: UUID
    name: str
    outcome: str
    due_at: datetime
    refusal: str

    @property
    def seconds(self) -> int:
        """Seconds until it takes effect."""
        return max(0, round((self.due_at - clock.now()).total_seconds()))


def is_held() -> bool:
    return bool(settings.ORCHESTRATOR_UNDO_SECONDS > 0)


def hold(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> Result:
    """Hold the answer of a form. Raises `Refused` if it could not take effect now, and `Http404` if there is no such item."""
    version, answer = actions.read(sent)
    with refuse_when_busy(), tenant_scope(principal.tenant_id):
        item = item_at_version(principal.tenant_id, item_id, version)
        action = actions.check_action(principal, item, answer)
        held_answer = HeldAnswer(
            tenant_id=principal.tenant_id, activity_id=item_id, user_id=_person(principal), version=version,
            action=action.name, outcome=action.done, form_values=answer.form_values,
            due_at=clock.now() + timedelta(seconds=settings.ORCHESTRATOR_UNDO_SECONDS),
            request_id=(origin := audit.current_origin()).request_id, ip=origin.ip,
        )  # fmt: skip
        rows = HeldAnswer.objects.for_tenant(principal.tenant_id).filter(user_id=_person(principal))
        rows.filter(activity_id=item_id).exclude(refusal="").delete()
        try:
            with transaction.atomic(using=APP):
                held_answer.save(force_insert=True)
        except IntegrityError as error:
            raise Refused(ON_ITS_WAY) from error
        return Result(item_id, item.name, True, action.done)


def hold_together(principal: Principal, chosen: Sequence[str]) -> list[Result]:
    """Hold approvals of several items, each `id:version`. A failed item has its reason and does not stop the others. Raises `Refused`."""
    versions = actions.parse_chosen(chosen)
    with tenant_scope(principal.tenant_id):
        rows = Activity.objects.for_tenant(principal.tenant_id).filter(pk__in=versions)
        names = dict(rows.values_list("pk", "name"))
    return [
        actions.result_of(
            item_id,
            names.get(item_id, ""),
            partial(hold, principal, item_id, {"action": "approve", "version": version}),
        )
        for item_id, version in versions.items()
    ]


def list_held(principal: Principal) -> list[PendingAnswer]:
    """Return the person's answers that have not taken effect, oldest first. In the caller's `tenant_scope`."""
    if principal.user_id is None:
        return []  # a token's answers take effect at once
    rows = HeldAnswer.objects.for_tenant(principal.tenant_id).filter(user_id=_person(principal))
    facts = ("pk", "activity_id", "activity__name", "outcome", "due_at", "refusal")
    return [PendingAnswer(*row) for row in rows.order_by("due_at", "pk").values_list(*facts)]


def take_back(principal: Principal, ids: Sequence[UUID]) -> int:
    """Delete held or refused answers of this person. Return how many still existed."""
    with refuse_when_busy(), tenant_scope(principal.tenant_id):
        rows = HeldAnswer.objects.for_tenant(principal.tenant_id)
        mine = rows.filter(pk__in=ids, user_id=_person(principal))
        # A process that applies an answer has its row locked: this waits, and finds the row deleted.
        locked = list(mine.select_for_update(of=("self",)).order_by("pk").values_list("pk", flat=True))
        rows.filter(pk__in=locked).delete()
    return len(locked)


def _person(principal: Principal) -> int:
    """Return the user's id. Pages are for people; a token's answers take effect at once, through the API."""
    assert principal.user_id is not None, "a person"  # noqa: S101
    return principal.user_id


# Apply: the leader applies the answers that are due.


_DUE = Sweep[Any]()
AGAIN_LATER = 503  # the status of a temporary refusal, which does not depend on the answer
NOT_ANY_MORE = "You had no access to this tenant when the answer was to take effect. Nothing was done."
_MAY_APPLY = Q(refusal="", tenant__is_active=True)
OUR_FAULT = "An internal error occurred. Nothing was done."


def apply_due(now: datetime | None = None) -> int:
    """Apply the answers that are due, and return how many were applied or refused. Safe to run concurrently.

    Those of a suspended tenant wait until it is active again, as its deadlines do.
    """
    rows = HeldAnswer.objects.filter(_MAY_APPLY, due_at__lte=now or clock.now())
    settled = 0
    for _, pk, tenant_id in _DUE.turn(sweeps.pages(rows, "due_at", "pk", "tenant_id")):
        with outages.one_of_many(
            logger, "A held answer could not be applied", action="held_answer_failed", held_answer=str(pk)
        ):
            settled += _apply(tenant_id, pk)
    return settled


def _apply(tenant_id: UUID, held_answer_id: UUID) -> bool:
    """Return whether it is settled now. Otherwise the next pass tries again, or another process has it."""
    with tenant_scope(tenant_id):
        held_answer = HeldAnswer.objects.for_tenant(tenant_id).filter(pk=held_answer_id, refusal="").first()
    if held_answer is None:
        return False
    item_id = held_answer.activity_id
    principal = _principal(held_answer.tenant_id, held_answer.user_id)
    if principal is None:
        return _settle_answer(held_answer, refusal=Refused(NOT_ANY_MORE))
    sent = {**held_answer.form_values, "action": held_answer.action, "version": held_answer.version}
    try:
        with _refuse_errors():
            version, answer = actions.prepare(principal, item_id, sent)
    except Refused as refusal:
        return _settle_answer(held_answer, refusal=refusal)
    with audit.from_origin(audit.Origin(held_answer.request_id, held_answer.ip)):
        return _settle_answer(held_answer, lambda: actions.perform(principal, item_id, version, answer))


def _settle_answer(
    held_answer: HeldAnswer, act: Callable[[], object] | None = None, *, refusal: Refused | None = None
) -> bool:
    """Apply it and delete the row, or roll back and store the reason in the row."""
    with tenant_scope(held_answer.tenant_id):
        rows = HeldAnswer.objects.for_tenant(held_answer.tenant_id).filter(_MAY_APPLY, pk=held_answer.pk)
        if rows.select_for_update(skip_locked=True, of=("self",)).first() is None:
            return False  # undone, or another process has it, or the tenant was suspended
        refusal = _refusal_of(act) if act else refusal
        if refusal is None:
            rows.delete()
        elif refusal.status == AGAIN_LATER:
            return False
        else:
            rows.update(refusal=refusal.reason[:LONGEST_REFUSAL])
    return True


def _principal(tenant_id: UUID, user_id: int) -> Principal | None:
    """Return the person with their present rights; None if they have lost access."""
    user: Any = get_user_model().objects.filter(pk=user_id, is_active=True).first()
    with system_scope():
        tenant = Tenant.objects.filter(pk=tenant_id, is_active=True).first()
    if user is None or tenant is None:
        return None
    try:
        return members.principal_of(user, tenant.slug)
    except members.MembershipRefused:
        return None


def _refusal_of(act: Callable[[], object]) -> Refused | None:
    try:
        with _refuse_errors(), transaction.atomic(using=APP):
            act()
    except Refused as refusal:
        return refusal
    return None


@contextmanager
def _refuse_errors() -> Iterator[None]:
    """Raise every error as `Refused`, with a reason for the person. Only an outage is raised as it is: the next pass tries again."""
    try:
        with refuse_when_busy():
            yield
    except Refused:
        raise
    except Http404 as error:
        raise Refused(actions.NO_SUCH_ITEM) from error
    except Exception as error:
        if outages.may_pass(error):
            raise
        logger.exception("A held answer failed", extra={"action": "held_answer_failed"})
        raise Refused(OUR_FAULT) from error
