"""What templates of the pages with queries say: the views that were kept of a page, and the form that keeps one more."""

from __future__ import annotations

from typing import Any

from django import template

from console.saved_views import address_of, query_of
from tenants import saved_views as tenant_saved_views
from tenants.context import tenant_scope
from tenants.models import Role
from tenants.models.access import LONGEST_NAME

register = template.Library()


@register.inclusion_tag("console/saved_views/of_page.html", takes_context=True)
def saved_views(context: template.Context, page: str) -> dict[str, Any]:
    """The views of a page, for who looks at it. Asks the database once."""
    visit, request = context["visit"], context["request"]
    query = query_of(page, request.GET.urlencode())
    with tenant_scope(visit.tenant_id):
        found = tenant_saved_views.views_of(visit.who, page)
    lines = [(view, address_of(page, view.query, visit.who.tenant), view.query == query) for view in found]
    return {
        "page": page,
        "lines": lines,
        "query": query,
        "is_narrowed": bool(query),
        "is_kept": any(is_here for _, _, is_here in lines),
        "acting": context["acting"],
        "may_share": visit.who.role.includes(Role.ADMIN),
        "may_keep": visit.who.break_glass_id is None,
        "longest": LONGEST_NAME,
        "csrf_token": context.get("csrf_token"),
    }
