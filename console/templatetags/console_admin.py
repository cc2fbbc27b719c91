"""What connects pages of the console and of the admin: each leads to the other's page of the same thing."""

from __future__ import annotations

from typing import Any

from django import template
from django.db.models import Model
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console import navigation
from console.labels import tone_of
from tenants.models import Role

register = template.Library()
register.filter("tone", tone_of)


@register.simple_tag
def console_page(row: Any) -> str:
    """Where the console shows a row of the admin; empty when nowhere."""
    return navigation.console_page(row if isinstance(row, Model) else None)


@register.simple_tag
def admin_address(row: Model) -> str:
    """Where the admin shows a row."""
    return navigation.admin_page(row)


@register.simple_tag(takes_context=True)
def in_admin(context: template.Context, row: Model) -> SafeString:
    """A link to the row's page in the admin, for those who get in there; nothing for others."""
    acting = context.get("acting")
    is_admin = bool(acting and acting.role.includes(Role.ADMIN))
    if not navigation.may_enter(context["request"].user, row, is_admin=is_admin):
        return SafeString("")
    return format_html('<a class="aside" href="{}">Open in the admin</a>', navigation.admin_page(row))
