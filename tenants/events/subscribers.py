"""Bearers: whoever opened a stream, and whether they still may read it.

A stream outlives the request that opened it, so what the door has checked once is asked again all the time, for all streams of the process
together. Any difference ends the stream: the client comes back, and the door judges anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.db.models import Q

from tenants import clock
from tenants.context import system_scope
from tenants.models import ApiToken, Membership, Tenant
from tenants.models.audit import BreakGlass
from tenants.principals import Principal


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A principal as it was when the stream was opened; `session` is that of a person."""

    principal: Principal
    session: str | None = None


def still_allowed(bearers: Iterable[Subscriber]) -> set[Subscriber]:
    """Those of them whose token, or session and membership or broken glass, still are what they were. Not inside a transaction of a
    tenant.
    """
    asked = set(bearers)
    tokens = {bearer for bearer in asked if bearer.principal.token_id}
    with system_scope():
        return _of_tokens(tokens) | _of_people(asked - tokens)


def _of_tokens(bearers: Collection[Subscriber]) -> set[Subscriber]:
    if not bearers:
        return set()
    valid = Q(expires_at=None) | Q(expires_at__gt=clock.now())
    rows = ApiToken.objects.filter(
        valid, pk__in={b.principal.token_id for b in bearers}, revoked_at=None, tenant__is_active=True
    )
    known = {pk: (role, tuple(scopes)) for pk, role, scopes in rows.values_list("pk", "role", "scopes")}
    return {
        b
        for b in bearers
        if b.principal.token_id and known.get(b.principal.token_id) == (b.principal.role, b.principal.scopes)
    }


def _of_people(bearers: Collection[Subscriber]) -> set[Subscriber]:
    if not bearers:
        return set()
    people = {b.principal.user_id for b in bearers if b.principal.user_id}
    active = dict(
        get_user_model().objects.filter(pk__in=people, is_active=True).values_list("pk", "is_superuser")
    )
    sessions = set(
        Session.objects.filter(pk__in={b.session for b in bearers}, expire_date__gt=clock.now()).values_list(
            "pk", flat=True
        )
    )
    tenants = _active_tenants(b.principal.tenant_id for b in bearers)
    rows = Membership.objects.filter(user_id__in=people).values_list("user_id", "tenant_id", "role")
    roles = {(user, tenant): role for user, tenant, role in rows}
    broken = _broken_glass(b.principal.break_glass_id for b in bearers)

    def is_welcome(bearer: Subscriber) -> bool:
        who = bearer.principal
        if who.user_id not in active or bearer.session not in sessions or who.tenant_id not in tenants:
            return False
        if active[who.user_id] != who.is_platform_admin:
            return False
        if who.break_glass_id is not None:
            return who.break_glass_id in broken
        role = roles.get((who.user_id, who.tenant_id))
        # Superusers are admins wherever they are members.
        return role is not None if who.is_platform_admin else role == who.role

    return {bearer for bearer in bearers if is_welcome(bearer)}


def _broken_glass(ids: Iterable[UUID | None]) -> set[UUID]:
    """What a superuser who is no member sees through ends with its hour, or before."""
    asked = {glass for glass in ids if glass is not None}
    if not asked:
        return set()
    rows = BreakGlass.objects.filter(pk__in=asked, ended_at=None, expires_at__gt=clock.now())
    return set(rows.values_list("pk", flat=True))


def _active_tenants(ids: Iterable[UUID]) -> set[UUID]:
    return set(Tenant.objects.filter(pk__in=set(ids), is_active=True).values_list("pk", flat=True))
