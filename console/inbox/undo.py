"""Held answers take effect when their time has come, as whoever gave them may act by then.

The leader asks for it. Row and effect go in one transaction, so that an answer takes effect once, however many processes try and wherever
they die. What cannot take effect any more stays with the reason, for the person to read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from activities.models import HeldAnswer
from activities.models.decision import LONGEST_REFUSAL
from console.inbox import actions, held_answers
from console.inbox.items import Refused, refused_when_busy
from console.inbox.query import View
from console.page import ACTING, PageContext, page
from tenants import clock, members, outages
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.principals import Principal

logger = logging.getLogger(__name__)

AT_ONCE = 100  # in one pass of the leader
AGAIN_LATER = 503  # the status of a refusal that has nothing to do with the answer
NOT_ANY_MORE = "You may not act for this tenant any more. Nothing was done."
OUR_FAULT = "Something went wrong on our side. Nothing was done."


def give_due(now: datetime | None = None) -> int:
    """Let answers take effect whose time has come; how many did or were refused. Any number of processes may do it at once."""
    with system_scope():
        rows = HeldAnswer.objects.filter(refusal="", due_at__lte=now or clock.now())
        due = list(rows.order_by("due_at", "pk")[:AT_ONCE])
    return sum(_give(held) for held in due)


def _give(held: HeldAnswer) -> bool:
    """Whether it is settled now; else the next pass tries again, or somebody else is at it."""
    principal = _principal(held.tenant_id, held.user_id)
    if principal is None:
        return _settled(held, lambda: _refuse(NOT_ANY_MORE))
    sent = {**held.said, "deed": held.deed, "shown": held.shown}
    try:
        shown, answer = actions.prepared(principal, held.activity_id, sent)
    except Refused as refusal:
        reason, status = refusal.reason, refusal.status
        return _settled(held, lambda: _refuse(reason, status))
    return _settled(held, lambda: actions.perform(principal, held.activity_id, shown, answer))


def _refuse(reason: str, status: int = 409) -> None:
    raise Refused(reason, status=status)


def _settled(held: HeldAnswer, act: Callable[[], object]) -> bool:
    """Do it and forget the row, or keep the row with the reason why not. What had begun is undone then."""
    with tenant_scope(held.tenant_id):
        rows = HeldAnswer.objects.for_tenant(held.tenant_id).filter(pk=held.pk, refusal="")
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
        with refused_when_busy(), transaction.atomic(using=APP):
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
    try:
        ids = [UUID(given) for given in request.POST.getlist("held")]
        item = UUID(given) if (given := request.POST.get("item", "")) else None
    except ValueError as error:
        raise Http404 from error
    taken = held_answers.take_back(visit.who, ids)
    read = request.POST.get("deed") == "read"
    if not read:
        if taken:
            messages.success(
                request, "Taken back. Nothing was done." if taken == 1 else f"{taken} answers taken back."
            )
        if taken < len(ids):
            messages.warning(request, TOO_LATE)
    address = View.read(visit.who.tenant, request.GET).address
    if item and taken and not read:
        return HttpResponseRedirect(f"{reverse('console:inbox_item', args=[item])}?{address}#item")
    return HttpResponseRedirect(f"{reverse('console:inbox')}?{address}#content")
