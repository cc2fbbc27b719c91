"""An answer is held: checked as if it took effect now, written down, shown to who gave it, and taken back when they say so.

Truth is a row. It goes in the transaction of its effect or in that of being taken back, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.http import Http404

from activities.models import Activity, HeldAnswer
from tenants import clock
from tenants.context import APP, tenant_scope
from tenants.principals import Principal

from . import actions
from .actions import Result
from .items import Refused, item_as_shown, refused_when_busy

ON_ITS_WAY = "Your answer to this is on its way already. Take it back first to give another one."


@dataclass(frozen=True, slots=True)
class Held:
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
    with refused_when_busy(), tenant_scope(principal.tenant_id):
        item = item_as_shown(principal.tenant_id, item_id, shown)
        action = actions.checked(principal, item, answer)
        held = HeldAnswer(
            tenant_id=principal.tenant_id, activity_id=item_id, user_id=_person(principal), shown=shown, deed=action.name,
            words=action.done, said=answer.said, due_at=clock.now() + timedelta(seconds=settings.ORCHESTRATOR_UNDO_SECONDS),
        )  # fmt: skip
        _forget_refused(principal, item_id)
        _keep(held)
        return Result(item_id, item.name, True, action.done)


def hold_together(principal: Principal, chosen: Sequence[str]) -> list[Result]:
    """Keep a yes to several items, each `id:version`. One that cannot be approved says why, and hinders no other. Raises `Refused`."""
    wanted = actions.parsed(chosen)
    with tenant_scope(principal.tenant_id):
        rows = Activity.objects.for_tenant(principal.tenant_id).filter(pk__in=wanted)
        names = dict(rows.values_list("pk", "name"))
    return [_held(principal, item_id, version, names.get(item_id, "")) for item_id, version in wanted.items()]


def _held(principal: Principal, item_id: UUID, version: int, name: str) -> Result:
    try:
        return hold(principal, item_id, {"deed": "approve", "shown": version})
    except Http404:
        return Result(item_id, name, False, actions.NO_SUCH_ITEM)
    except Refused as refusal:
        return Result(item_id, name, False, refusal.reason)


def held_by(principal: Principal) -> list[Held]:
    """What the person has answered and has not taken effect, oldest first. In the caller's `tenant_scope`."""
    if principal.user_id is None:
        return []  # a token's answers take effect at once
    rows = HeldAnswer.objects.for_tenant(principal.tenant_id).filter(user_id=_person(principal))
    facts = ("pk", "activity_id", "activity__name", "words", "due_at", "refusal")
    return [Held(*row) for row in rows.order_by("due_at", "pk").values_list(*facts)]


def take_back(principal: Principal, ids: Sequence[UUID]) -> int:
    """Let answers of this person's never have been given, or never read again why they could not; how many that came in time."""
    with refused_when_busy(), tenant_scope(principal.tenant_id):
        rows = HeldAnswer.objects.for_tenant(principal.tenant_id)
        mine = rows.filter(pk__in=ids, user_id=_person(principal))
        # Whoever lets one take effect has it locked: this waits, and finds it gone.
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


def _keep(held: HeldAnswer) -> None:
    try:
        with transaction.atomic(using=APP):
            held.save(force_insert=True)
    except IntegrityError as error:
        raise Refused(ON_ITS_WAY) from error
