"""Held answers take effect when their time has come, as whoever gave them may act by then.

The keeper asks for it. Row and effect go in one transaction, so that an answer takes effect once, however many processes try and wherever
they die. What cannot take effect any more stays with the reason, for the person to read.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import InterfaceError, OperationalError, transaction
from django.http import Http404

from activities.models import HeldAnswer
from activities.models.held_answer import LONGEST_REFUSAL
from console import decisions
from console.refusals import BUSY, Refused
from tenants import members
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.principals import Principal

logger = logging.getLogger(__name__)

AT_ONCE = 100  # in one pass of the keeper
NOT_ANY_MORE = "You may not act for this tenant any more. Nothing was done."
OUR_FAULT = "Something went wrong on our side. Nothing was done."


def give_due(now: datetime | None = None) -> int:
    """Let answers take effect whose time has come; how many did or were refused. Any number of processes may do it at once."""
    with system_scope():
        rows = HeldAnswer.objects.filter(refusal="", due_at__lte=now or datetime.now(UTC))
        due = list(rows.order_by("due_at", "pk").values_list("pk", "tenant_id", "user_id")[:AT_ONCE])
    return sum(_give(held_id, tenant_id, user_id) for held_id, tenant_id, user_id in due)


def _give(held_id: UUID, tenant_id: UUID, user_id: int) -> bool:
    principal = _principal(tenant_id, user_id)
    with tenant_scope(tenant_id):
        rows = HeldAnswer.objects.for_tenant(tenant_id).filter(pk=held_id, refusal="")
        held: HeldAnswer | None = rows.select_for_update(skip_locked=True, of=("self",)).first()
        if held is None:
            return False  # taken back, or somebody else is at it
        refusal = _refusal_of(principal, held) if principal else NOT_ANY_MORE
        if refusal == BUSY:
            return False  # the next pass tries again
        if refusal:
            rows.update(refusal=refusal[:LONGEST_REFUSAL])
        else:
            rows.delete()
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


def _refusal_of(principal: Principal, held: HeldAnswer) -> str:
    """Let it take effect, or say why it does not. What began is undone then."""
    try:
        with transaction.atomic(using=APP):
            decisions.act(principal, held.activity_id, {**held.said, "deed": held.deed, "shown": held.shown})
    except Refused as refusal:
        return refusal.reason
    except Http404:
        return decisions.NO_SUCH_ITEM
    except (OperationalError, InterfaceError):
        raise  # the database is not there: the next pass tries again
    except Exception:
        logger.exception("A held answer failed", extra={"action": "held_answer_failed"})
        return OUR_FAULT
    return ""
