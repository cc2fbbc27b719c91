"""Tags and filters of the console's templates: addresses with the tenant, states, times, money, counts, JSON, saved views, small charts,
and links between console and admin."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django import template
from django.conf import settings
from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe

from console import navigation
from console.internal_api import ONCE
from console.labels import KINDS, from_now, in_words, name_actor, priority_in_words, tone_of, words_of
from console.navigation import STROKES, address_of
from console.saved_views import address_of as address_of_view
from console.saved_views import query_of
from tenants import saved_views as tenant_saved_views
from tenants.context import tenant_scope
from tenants.models import Role, events
from tenants.models.access import LONGEST_NAME

register = template.Library()
register.filter("state_words", words_of)
register.filter("actor", name_actor)
register.filter("tone", tone_of)
register.filter("in_words", in_words)
register.filter("priority", priority_in_words)
NOTHING = "\u2013"
LONGEST_JSON = 600
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


@register.filter
def wall_time(moment: str) -> str:
    """Return an ISO time of the API with its weekday, as in lists of next times: `Mon 2026-11-30 08:00 UTC+01:00`."""
    at = datetime.fromisoformat(moment)
    return f"{at:%a %Y-%m-%d %H:%M:%S %Z}" if at.second else f"{at:%a %Y-%m-%d %H:%M %Z}"


@register.simple_tag(takes_context=True)
def address(context: template.Context, name: str, *args: Any, **query: Any) -> str:
    """Return the address of a page for the current tenant; keyword arguments are added to its query."""
    acting = context.get("acting")
    parameters = {"tenant": acting.tenant} if acting else {}
    parameters |= {key: value for key, value in query.items() if value not in (None, "")}
    path = reverse(f"console:{name}", args=args)
    return f"{path}?{urlencode(parameters)}" if parameters else path


@register.simple_tag
def once() -> SafeString:
    """Render an idempotency key in a form: pressing its button twice acts once. Every page load has a new key."""
    return format_html(
        '<input type="hidden" name="{}" value="{}" autocomplete="off">', ONCE, secrets.token_urlsafe(18)
    )


@register.simple_tag
def event_kinds() -> str:
    return " ".join((*events.KINDS, *events.ANNOUNCED))


@register.inclusion_tag("console/menu.html", takes_context=True)
def menu(context: template.Context) -> dict[str, Any]:
    """Render the menu with the tenant chooser and the links to other tools."""
    user, acting, here = context["request"].user, context.get("acting"), str(context.get("here") or "")
    tenants = context.get("tenants") or []
    names = {tenant.slug: tenant.name for tenant in tenants}
    return {
        "groups": navigation.PAGES,
        "here": here,
        "acting": acting,
        "acting_name": (names.get(acting.tenant) or acting.tenant) if acting else "",
        "tenants": tenants,
        "on_tenants": here == "tenants",
        "user": user,
        "start": address_of(here),
        "for_all": user.is_superuser and here == "home",
        "may_enter_admin": user.is_superuser
        or (acting and (user.is_staff or acting.role.includes(Role.ADMIN))),
        "csrf_token": context.get("csrf_token"),
        "flower_url": settings.ORCHESTRATOR_FLOWER_URL,
        "strokes": STROKES,
    }


@register.filter
def badge(status: str) -> SafeString:
    """Render a state as a coloured label."""
    return format_html('<span class="tag {}">{}</span>', tone_of(status), words_of(status))


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """Render how long ago a time was, with the time as tooltip."""
    if moment is None:
        return NOTHING
    passed = (datetime.now(UTC) - moment).total_seconds()
    return _with_tooltip(moment, f"in {in_words(-passed)}" if passed < -1 else in_words(max(passed, 0)))


@register.filter
def since(moment: datetime) -> SafeString:
    """Render a time relative to now, `4 min ago`, `in 2 h` or `now`, with the time as tooltip."""
    return _with_tooltip(moment, from_now((datetime.now(UTC) - moment).total_seconds()))


def _with_tooltip(moment: datetime, words: str) -> SafeString:
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exactly(moment), words)


@register.filter
def exactly(moment: datetime | None) -> str:
    """Format a time to the second, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else NOTHING


@register.filter
def moment(at: datetime | None) -> SafeString | str:
    """Render a time to the second in UTC, with its distance from now."""
    if at is None:
        return NOTHING
    words = from_now((datetime.now(UTC) - at).total_seconds())
    return format_html(
        '<time datetime="{}">{}</time> <small class="from-now">{}</small>', at.isoformat(), exactly(at), words
    )


@register.filter
def lasting(length: timedelta | float | None) -> str:
    """Format a duration in words; numbers are seconds."""
    if length is None:
        return NOTHING
    seconds = length.total_seconds() if isinstance(length, timedelta) else float(length)
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else in_words(seconds)


@register.filter
def link_words(link_kind: str | None) -> str:
    """Return the label of an activity's link to its parent."""
    known = KINDS.get(link_kind or "")
    return known[0].lower() if known else words_of(link_kind or "part")


@register.filter
def several(kind: str) -> str:
    """Return the label of several inbox items of a kind."""
    return KINDS[kind][1].lower()


@register.filter
def as_json(value: Any) -> str:
    """Format an object as one line of JSON, cut if it is long. The template escapes it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_JSON else f"{text[:LONGEST_JSON]}…"


@register.filter
def dollars(amount: Decimal | float | str | None) -> str:
    """Format dollars to the cent, or to a hundredth of a cent if they are less than one."""
    if amount is None:
        return NOTHING
    value = Decimal(str(amount))
    if abs(value) < 1 and value != round(value, 2):
        return (
            f"${value.quantize(Decimal('0.0001')).normalize():f}"
            if abs(value) >= Decimal("0.0001")
            else "<$0.0001"
        )
    return f"${value:,.2f}"


@register.filter
def grouped(number: float | None) -> str:
    """Format a count with spaces between thousands."""
    return NOTHING if number is None else f"{number:,.0f}".replace(",", "\u202f")


@register.filter
def of(values: Mapping[Any, Any], key: Any) -> Any:
    return values.get(key)


@register.simple_tag
def percent(share: float) -> str:
    """Format a share as a whole percentage."""
    return f"{share:.0%}"


@register.filter
def readable(value: Any) -> str:
    """Format a value of the API for people."""
    if value is None or value == "" or value == []:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    if isinstance(value, datetime):
        return exactly(value)
    return (
        exactly(datetime.fromisoformat(value))
        if isinstance(value, str) and _MOMENT.fullmatch(value)
        else str(value)
    )


@register.filter
def local_words(moment: str) -> str:
    """Format an ISO time in its own zone: Mon 3 May 2027, 09:30."""
    at = datetime.fromisoformat(moment)
    seconds = f":{at:%S}" if at.second else ""
    return f"{at:%a} {at.day} {at:%b %Y, %H:%M}{seconds}"


@register.inclusion_tag("console/saved_views/of_page.html", takes_context=True)
def saved_views(context: template.Context, page: str, fault: object = None) -> dict[str, Any]:
    """Render the saved views of a page for the person. A query with a fault cannot be saved. One database query."""
    visit, request = context["visit"], context["request"]
    query = query_of(page, request.GET.urlencode())
    with tenant_scope(visit.tenant_id):
        views = tenant_saved_views.views_of(visit.who, page)
    lines = [
        (view, address_of_view(page, view.query, visit.who.tenant), view.query == query) for view in views
    ]
    return {
        "page": page,
        "lines": lines,
        "query": query,
        "is_narrowed": bool(query),
        "is_kept": any(is_here for _, _, is_here in lines),
        "acting": context["acting"],
        "may_share": visit.who.role.includes(Role.ADMIN),
        "may_keep": visit.who.break_glass_id is None and fault is None,
        "longest": LONGEST_NAME,
        "csrf_token": context.get("csrf_token"),
    }


# Small charts as SVG, without scripts; the colours come from the style sheet.

HEIGHT = 40
STEP = 10  # the width of a bar with its gap
GAP = 2


@register.simple_tag
def bars(values: Sequence[float], words: str) -> SafeString:
    """Render one bar for each value, the largest at full height; zero and negative values have no bar. `words` is the text alternative."""
    most = max(values, default=0) or 1
    rects = (
        (index * STEP, HEIGHT - height, STEP - GAP, height)
        for index, value in enumerate(values)
        if (height := round(max(value, 0) / most * HEIGHT, 1))
    )
    return format_html(
        '<svg class="bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        max(len(values) * STEP, STEP),
        HEIGHT,
        words,
        format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"/>', rects),
    )


WIDTH = 100


@register.simple_tag
def meter(share: float, words: str, tone: str = "") -> SafeString:
    """Render a bar that is filled to this share, at most fully. `words` is the text alternative; leave it empty if the page has one
    next to the bar."""
    width = round(min(max(share, 0.0), 1.0) * WIDTH, 1)
    label = format_html('role="img" aria-label="{}"', words) if words else mark_safe('aria-hidden="true"')
    return format_html(
        '<svg class="meter {}" viewBox="0 0 {} 1" preserveAspectRatio="none" {}><rect x="0" y="0" width="{}" height="1"/></svg>',
        tone, WIDTH, label, width,
    )  # fmt: skip


# Links between the pages of an object in the console and in the admin.


register.simple_tag(navigation.console_page, name="console_page")
register.simple_tag(navigation.admin_page, name="admin_address")


@register.simple_tag(takes_context=True)
def in_admin(context: template.Context, row: Model) -> SafeString:
    """Render a link to the row's page in the admin, if the person has access."""
    acting = context.get("acting")
    is_admin = bool(acting and acting.role.includes(Role.ADMIN))
    if not navigation.may_enter(context["request"].user, row, is_admin=is_admin):
        return SafeString("")
    return format_html('<a class="aside" href="{}">Open in the admin</a>', navigation.admin_page(row))
