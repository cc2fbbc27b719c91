"""Held answers: an answer takes effect some seconds after it was given, and until then the person can take it back.

The leader looks for answers whose time has come; each takes effect with the rights that its person has then. The row goes in the
transaction of the effect, so that an answer takes effect once, however many processes try and wherever they die. An answer that cannot take
effect any more stays with the reason, for the person to read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from activities.models import Activity, HeldAnswer
from activities.models.decision import LONGEST_REFUSAL
from console.inbox import actions
from console.inbox.actions import Result, item_as_shown
from console.inbox.query import View
from console.page import ACTING, PageContext, Refused, id_or_404, page, refuse_when_busy
from tenants import clock, members, outages
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.principals import Principal

logger = logging.getLogger(__name__)

# Holding an answer: it is checked as if it took effect now, kept as a row, and shown to the person who gave it.
#
# The row goes in the transaction of its effect or in that of being taken back, whichever comes first.

ON_ITS_WAY = "Your answer to this is on its way already. Take it back first to give another one."


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer that has not taken effect. `refusal` says why it could not; then it is only there to be read."""

    id: UUID
    item_id: UUID
    name: str
    words: str
    due_at: datetime
    refusal: str

    @property
    def seconds(self) -> int:
        """From now until it takes effect."""
        return max(0, round((self.due_at - clock.now()).total_seconds()))


def is_held() -> bool:
    """Whether answers are held at all."""
    return bool(settings.ORCHESTRATOR_UNDO_SECONDS > 0)


def hold(principal: Principal, item_id: UUID, sent: Mapping[str, Any]) -> Result:
    """Keep the answer of a form, or raise `Refused` for why it could not take effect. Raises `Http404` for what is no item."""
    shown, answer = actions.read(sent)
    with refuse_when_busy(), tenant_scope(principal.tenant_id):
        item = item_as_shown(principal.tenant_id, item_id, shown)
        action = actions.check_action(principal, item, answer)
        held_answer = HeldAnswer(
            tenant_id=principal.tenant_id, activity_id=item_id, user_id=_person(principal), shown=shown, deed=action.name,
            words=action.done, said=answer.form_values, due_at=clock.now() + timedelta(seconds=settings.ORCHESTRATOR_UNDO_SECONDS),
        )  # fmt: skip
        _forget_refused(principal, item_id)
        _keep(held_answer)
        return Result(item_id, item.name, True, action.done)


def hold_together(principal: Principal, chosen: Sequence[str]) -> list[Result]:
    """Keep a yes to several items, each `id:version`. One that cannot be approved says why, and hinders no other. Raises `Refused`."""
    versions = actions.parse_chosen(chosen)
    with tenant_scope(principal.tenant_id):
        rows = Activity.objects.for_tenant(principal.tenant_id).filter(pk__in=versions)
        names = dict(rows.values_list("pk", "name"))
    return [
        _hold_approval(principal, item_id, version, names.get(item_id, ""))
        for item_id, version in versions.items()
    ]


def _hold_approval(principal: Principal, item_id: UUID, version: int, name: str) -> Result:
    try:
        return hold(principal, item_id, {"deed": "approve", "shown": version})
    except Http404:
        return Result(item_id, name, False, actions.NO_SUCH_ITEM)
    except Refused as refusal:
        return Result(item_id, name, False, refusal.reason)


def list_held(principal: Principal) -> list[PendingAnswer]:
    """What the person has answered and has not taken effect, oldest first. In the caller's `tenant_scope`."""
    if principal.user_id is None:
        return []  # a token's answers take effect at once
    rows = HeldAnswer.objects.for_tenant(principal.tenant_id).filter(user_id=_person(principal))
    facts = ("pk", "activity_id", "activity__name", "words", "due_at", "refusal")
    return [PendingAnswer(*row) for row in rows.order_by("due_at", "pk").values_list(*facts)]


def take_back(principal: Principal, ids: Sequence[UUID]) -> int:
    """Let answers of this person's never have been given, or never read again why they could not; how many that came in time."""
    with refuse_when_busy(), tenant_scope(principal.tenant_id):
        rows = HeldAnswer.objects.for_tenant(principal.tenant_id)
        mine = rows.filter(pk__in=ids, user_id=_person(principal))
        # Anyone who lets one take effect has it locked: this waits, and finds it gone.
        found = list(mine.select_for_update(of=("self",)).order_by("pk").values_list("pk", flat=True))
        rows.filter(pk__in=found).delete()
    return len(found)


def _person(principal: Principal) -> int:
    """Pages are for people; a token's answers take effect at once, through the API."""
    assert principal.user_id is not None, "a person"  # noqa: S101
    return principal.user_id


def _forget_refused(principal: Principal, item_id: UUID) -> None:
    rows = HeldAnswer.objects.for_tenant(principal.tenant_id).filter(user_id=_person(principal))
    rows.filter(activity_id=item_id).exclude(refusal="").delete()


def _keep(held_answer: HeldAnswer) -> None:
    try:
        with transaction.atomic(using=APP):
            held_answer.save(force_insert=True)
    except IntegrityError as error:
        raise Refused(ON_ITS_WAY) from error


# Answers take effect when their time has come.


AT_ONCE = 100  # in one pass of the leader
AGAIN_LATER = 503  # the status of a refusal that has nothing to do with the answer
NOT_ANY_MORE = "You may not act for this tenant any more. Nothing was done."
OUR_FAULT = "Something went wrong on our side. Nothing was done."


def give_due(now: datetime | None = None) -> int:
    """Let answers take effect whose time has come; how many did or were refused. Any number of processes may do it at once."""
    with system_scope():
        rows = HeldAnswer.objects.filter(refusal="", due_at__lte=now or clock.now())
        due = list(rows.order_by("due_at", "pk")[:AT_ONCE])
    return sum(_give(held_answer) for held_answer in due)


def _give(held_answer: HeldAnswer) -> bool:
    """Whether it is settled now; else the next pass tries again, or somebody else is at it."""
    principal = _principal(held_answer.tenant_id, held_answer.user_id)
    if principal is None:
        return _settle_answer(held_answer, lambda: _refuse(NOT_ANY_MORE))
    sent = {**held_answer.said, "deed": held_answer.deed, "shown": held_answer.shown}
    try:
        shown, answer = actions.prepare(principal, held_answer.activity_id, sent)
    except Refused as refusal:
        reason, status = refusal.reason, refusal.status
        return _settle_answer(held_answer, lambda: _refuse(reason, status))
    return _settle_answer(
        held_answer, lambda: actions.perform(principal, held_answer.activity_id, shown, answer)
    )


def _refuse(reason: str, status: int = 409) -> None:
    raise Refused(reason, status=status)


def _settle_answer(held_answer: HeldAnswer, act: Callable[[], object]) -> bool:
    """Do it and forget the row, or keep the row with the reason why not. What had begun is undone then."""
    with tenant_scope(held_answer.tenant_id):
        rows = HeldAnswer.objects.for_tenant(held_answer.tenant_id).filter(pk=held_answer.pk, refusal="")
        if rows.select_for_update(skip_locked=True, of=("self",)).first() is None:
            return False  # taken back, or somebody else is at it
        refusal = _refusal_of(act)
        if refusal is None:
            rows.delete()
        elif refusal.status == AGAIN_LATER:
            return False
        else:
            rows.update(refusal=refusal.reason[:LONGEST_REFUSAL])
    return True


def _principal(tenant_id: UUID, user_id: int) -> Principal | None:
    """The person as they may act now; None when they may not."""
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
        with refuse_when_busy(), transaction.atomic(using=APP):
            act()
    except Refused as refusal:
        return refusal
    except Http404:
        return Refused(actions.NO_SUCH_ITEM)
    except Exception as error:
        if outages.may_pass(error):
            raise  # the database is not there: the next pass tries again
        logger.exception("A held answer failed", extra={"action": "held_answer_failed"})
        return Refused(OUR_FAULT)
    return None


# Where a person takes answers back.


TOO_LATE = "That came too late: it has taken effect."


@page("inbox", ACTING)
def undo(request: HttpRequest, visit: PageContext) -> HttpResponse:
    """Take back the answers named by `held`, or put away what was said about them. One of them leads to its item."""
    ids = [id_or_404(given) for given in request.POST.getlist("held")]
    item = id_or_404(given) if (given := request.POST.get("item", "")) else None
    withdrawn = take_back(visit.who, ids)
    read = request.POST.get("deed") == "read"
    if not read:
        if withdrawn:
            messages.success(
                request,
                "Taken back. Nothing was done." if withdrawn == 1 else f"{withdrawn} answers taken back.",
            )
        if withdrawn < len(ids):
            messages.warning(request, TOO_LATE)
    address = View.read(visit.who.tenant, request.GET).address
    if item and withdrawn and not read:
        return HttpResponseRedirect(f"{reverse('console:inbox_item', args=[item])}?{address}#item")
    return HttpResponseRedirect(f"{reverse('console:inbox')}?{address}#content")
