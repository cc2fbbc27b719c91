"""Pages for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console.containment import contained
from console.overview import overview
from tenants import members
from tenants.members import MembershipRefused
from tenants.principals import Principal

if TYPE_CHECKING:
    from django.contrib.auth.models import User

REFRESH_SECONDS = 20


@contained
@never_cache
@require_safe
@login_required(login_url="console:login")
def home(request: HttpRequest) -> HttpResponse:
    """How things are: for the tenant chosen with ?tenant=, the person's only one, or for superusers all of them."""
    user: User = request.user  # type: ignore[assignment]  # a login is required
    tenants = [membership.tenant for membership in members.memberships_of(user)]
    acting = _acting(
        user, request.GET.get("tenant") or _preselected(user, [tenant.slug for tenant in tenants])
    )
    may_look = acting is not None or user.is_superuser
    context = {
        "page": overview(acting.tenant_id if acting else None) if may_look else None,
        "acting": acting,
        "tenants": tenants,
        "refresh_seconds": REFRESH_SECONDS,
        "flower_url": settings.ORCHESTRATOR_FLOWER_URL,
    }
    return render(request, "console/overview.html", context)


def _preselected(user: User, slugs: list[str]) -> str:
    """Superusers begin with everything, others with the first of their tenants."""
    return "" if user.is_superuser or not slugs else slugs[0]


def _acting(user: User, slug: str) -> Principal | None:
    if not slug:
        return None
    try:
        return members.principal_of(user, slug)
    except MembershipRefused as refusal:
        raise Http404 from refusal
