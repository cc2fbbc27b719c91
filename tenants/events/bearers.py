"""Bearers: whoever opened a stream, and whether they still may read it.

A stream outlives the request that opened it, so what the door has checked once is asked again all the time, for all streams of the process
with two statements. Any difference ends the stream: the client comes back, and the door judges anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.db.models import Q
from django.utils import timezone

from tenants.context import system_scope
from tenants.models import ApiToken, Membership, Tenant
from tenants.principals import Principal


@dataclass(frozen=True, slots=True)
class Bearer:
    """A principal as it was when the stream was opened; `session` is that of a person."""

    principal: Principal
    session: str | None = None


def still_welcome(bearers: Iterable[Bearer]) -> set[Bearer]:
    """Those of them whose token, or session and membership, still are what they were. Not inside a transaction of a tenant."""
    asked = set(bearers)
    tokens = {bearer for bearer in asked if bearer.principal.token_id}
    with system_scope():
        return _of_tokens(tokens) | _of_people(asked - tokens)


def _of_tokens(bearers: Collection[Bearer]) -> set[Bearer]:
    if not bearers:
        return set()
    valid = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    rows = ApiToken.objects.filter(
        valid, pk__in={b.principal.token_id for b in bearers}, revoked_at=None, tenant__is_active=True
    )
    known = {pk: (role, tuple(scopes)) for pk, role, scopes in rows.values_list("pk", "role", "scopes")}
    return {
        b
        for b in bearers
        if b.principal.token_id and known.get(b.principal.token_id) == (b.principal.role, b.principal.scopes)
    }


def _of_people(bearers: Collection[Bearer]) -> set[Bearer]:
    if not bearers:
        return set()
    people = {b.principal.user_id for b in bearers if b.principal.user_id}
    active = dict(
        get_user_model().objects.filter(pk__in=people, is_active=True).values_list("pk", "is_superuser")
    )
    sessions = set(
        Session.objects.filter(
            pk__in={b.session for b in bearers}, expire_date__gt=timezone.now()
        ).values_list("pk", flat=True)
    )
    tenants = _active_tenants(b.principal.tenant_id for b in bearers)
    rows = Membership.objects.filter(user_id__in=people).values_list("user_id", "tenant_id", "role")
    roles = {(user, tenant): role for user, tenant, role in rows}

    def is_welcome(bearer: Bearer) -> bool:
        who = bearer.principal
        if who.user_id not in active or bearer.session not in sessions or who.tenant_id not in tenants:
            return False
        if who.is_platform_admin:
            return active[who.user_id]
        return roles.get((who.user_id, who.tenant_id)) == who.role

    return {bearer for bearer in bearers if is_welcome(bearer)}


def _active_tenants(ids: Iterable[UUID]) -> set[UUID]:
    return set(Tenant.objects.filter(pk__in=set(ids), is_active=True).values_list("pk", flat=True))
