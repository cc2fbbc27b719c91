"""For which tenant a person who signed in acts: one of their own, or as a superuser any that they name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import Count
from django.http import Http404

from activities.models import Activity
from activities.selectors import OPEN_FOR_PEOPLE
from tenants import members
from tenants.audit.rows import BreakGlass
from tenants.context import system_scope
from tenants.members import MembershipRefused
from tenants.models import Tenant
from tenants.principals import Principal

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MOST_LISTED = 100  # tenants that a superuser is shown; any other can be named


@dataclass(frozen=True, slots=True)
class Asked:
    """A tenant in which people are asked for something. `seen`: whether the glass that the superuser has broken shows it."""

    slug: str
    name: str
    items: int
    seen: bool


def acting(user: User, slug: str, *, first: bool = True) -> tuple[Principal | None, list[Tenant]]:
    """The person acting for the tenant of that name, and the tenants that they are a member of, by slug.

    Without a name it is the first of their own, or nobody: when they have none, or with `first` unset. Raises `Http404` when they may not
    act for the tenant, or there is none.
    """
    own = members.memberships_of(user)
    tenants = [membership.tenant for membership in own]
    # PostgreSQL cannot even be asked for this character.
    wanted = slug.replace("\x00", "") or (tenants[0].slug if tenants and first else "")
    if not wanted:
        return None, tenants
    try:
        return members.principal_of(user, wanted, own), tenants
    except MembershipRefused as refusal:
        raise Http404 from refusal


def tenants_that_ask(glass: Collection[BreakGlass]) -> list[Asked]:
    """The tenants in which most waits for people. For superusers alone; `glass` is what they have broken."""
    seen = {each.opened_for for each in glass}
    with system_scope():
        rows = Activity.objects.filter(OPEN_FOR_PEOPLE, tenant__is_active=True).order_by()
        counted = rows.values("tenant_id", "tenant__slug", "tenant__name").annotate(items=Count("pk"))
        page = counted.order_by("-items", "tenant__slug")[:MOST_LISTED]
        return [
            Asked(
                row["tenant__slug"], row["tenant__name"], row["items"], bool(seen & {None, row["tenant_id"]})
            )
            for row in page
        ]
