"""What templates of the console say in one word: addresses that stay with the tenant, states, times, small pictures of figures."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django import template
from django.conf import settings
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe

from console.internal_api import ONCE
from console.labels import KINDS, from_now, in_words, named, tone_of, words_of
from console.navigation import STROKES, address_of, groups
from tenants.models import Role, events

register = template.Library()
NOTHING = "\u2013"


@register.simple_tag(takes_context=True)
def address(context: template.Context, name: str, *args: Any, **query: Any) -> str:
    """The address of a page of the console for the tenant that is looked at; further words go into its query."""
    acting = context.get("acting")
    given = {"tenant": acting.tenant} if acting else {}
    given |= {key: value for key, value in query.items() if value not in (None, "")}
    found = reverse(f"console:{name}", args=args)
    return f"{found}?{urlencode(given)}" if given else found


@register.simple_tag
def once() -> SafeString:
    """Within a form: whoever presses its button twice has done it once. Loading the page anew arms it again."""
    return format_html(
        '<input type="hidden" name="{}" value="{}" autocomplete="off">', ONCE, secrets.token_urlsafe(18)
    )


@register.simple_tag
def event_kinds() -> str:
    """What a page can listen to."""
    return " ".join((*events.KINDS, *events.ANNOUNCED))


@register.inclusion_tag("console/menu.html", takes_context=True)
def menu(context: template.Context) -> dict[str, Any]:
    """The navigation, with the tenant chooser and the ways out."""
    user, acting, here = context["request"].user, context.get("acting"), str(context.get("here") or "")
    tenants = context.get("tenants") or []
    names = {tenant.slug: tenant.name for tenant in tenants}
    return {
        "groups": groups(here),
        "acting": acting,
        "acting_name": (names.get(acting.tenant) or acting.tenant) if acting else "",
        "tenants": tenants,
        "on_tenants": here == "tenants",
        "user": user,
        "start": address_of(here),
        "for_all": user.is_superuser and here == "home",
        "is_admin": bool(acting and acting.role.includes(Role.ADMIN)),
        "csrf_token": context.get("csrf_token"),
        "flower_url": settings.ORCHESTRATOR_FLOWER_URL,
        "strokes": STROKES,
    }


@register.filter
def badge(status: str) -> SafeString:
    """A state as a coloured word."""
    return format_html('<span class="tag {}">{}</span>', tone_of(status), words_of(status))


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """How long ago something was; pointing at it shows when."""
    if moment is None:
        return NOTHING
    passed = (datetime.now(UTC) - moment).total_seconds()
    words = f"in {in_words(-passed)}" if passed < -1 else in_words(max(passed, 0))
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exactly(moment), words)


@register.filter
def since(moment: datetime) -> SafeString:
    """How far a moment is from now, in words: `4 min ago`, `in 2 h`, `now`; pointing at it shows when."""
    words = from_now((datetime.now(UTC) - moment).total_seconds())
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exactly(moment), words)


@register.filter
def exactly(moment: datetime | None) -> str:
    """A moment to the second, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else NOTHING


@register.filter
def moment(at: datetime | None) -> SafeString | str:
    """A moment to the second in UTC, and how far it is from now."""
    if at is None:
        return NOTHING
    words = from_now((datetime.now(UTC) - at).total_seconds())
    return format_html(
        '<time datetime="{}">{}</time> <small class="beside">{}</small>', at.isoformat(), exactly(at), words
    )


@register.filter
def lasting(length: timedelta | float | None) -> str:
    """A duration in words; numbers are seconds."""
    if length is None:
        return NOTHING
    seconds = length.total_seconds() if isinstance(length, timedelta) else float(length)
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else in_words(seconds)


@register.simple_tag
def bars(values: Sequence[float], words: str) -> SafeString:
    """A row of bars for figures in their order. `words` say what they are to those who do not see them."""
    return draw_bars(values, words)


@register.filter
def state_words(state: str) -> str:
    """A state or a reason as words."""
    return words_of(state)


@register.filter
def actor(name: str) -> str:
    """Who did something, as people call them."""
    return named(name)


@register.filter
def link_words(link_kind: str | None) -> str:
    """What an activity is to the one that it hangs on."""
    known = KINDS.get(link_kind or "")
    return known[0].lower() if known else words_of(link_kind or "part")


# Figures as small pictures, drawn here: nothing in them needs a script, and their colours come from the style sheet.

HEIGHT = 40
STEP = 10  # width of a bar with the gap behind it
GAP = 2


def draw_bars(values: Sequence[float], words: str) -> SafeString:
    """One bar for each figure, the largest as high as the picture. Below nothing there is no bar."""
    most = max(values, default=0) or 1
    shown = (
        (index * STEP, HEIGHT - height, STEP - GAP, height)
        for index, value in enumerate(values)
        if (height := round(max(value, 0) / most * HEIGHT, 1))
    )
    return format_html(
        '<svg class="bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        max(len(values) * STEP, STEP),
        HEIGHT,
        words,
        format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"/>', shown),
    )


# Shares of a whole as small pictures: a bar that is full as far as something is spent.


WIDTH = 100


def draw_meter(share: float, words: str, tone: str = "") -> SafeString:
    """A bar that is full to this share, which may be more than all of it. `words` say the same to those who do not see it; without any,
    what stands beside the bar says it."""
    width = round(min(max(share, 0.0), 1.0) * WIDTH, 1)
    said = format_html('role="img" aria-label="{}"', words) if words else mark_safe('aria-hidden="true"')
    return format_html(
        '<svg class="meter {}" viewBox="0 0 {} 1" preserveAspectRatio="none" {}><rect x="0" y="0" width="{}" height="1"/></svg>',
        tone, WIDTH, said, width,
    )  # fmt: skip
