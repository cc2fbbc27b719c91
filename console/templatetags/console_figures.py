"""What templates of the pages about operation say: money, counts, objects as JSON, bars and meters of figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import template
from django.urls import NoReverseMatch
from django.utils.safestring import SafeString

from console.templatetags.console import address
from console.meters import meter as drawn_meter

register = template.Library()

LONGEST_JSON = 600


@register.filter
def as_json(value: Any) -> str:
    """An object in one line, cut where it is long. Escaped like any text."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_JSON else f"{text[:LONGEST_JSON]}…"


@register.filter
def dollars(amount: Decimal | float | str | None) -> str:
    """Dollars: to the cent, or as exact as they are when they are less than one."""
    if amount is None:
        return "–"
    value = Decimal(str(amount))
    if value and abs(value) < 1:
        return f"${value.quantize(Decimal('0.0001')).normalize():f}" if abs(value) >= Decimal("0.0001") else "<$0.0001"
    return f"${value:,.2f}"


@register.filter
def grouped(number: float | None) -> str:
    """A count with a space between its thousands."""
    return "–" if number is None else f"{number:,.0f}".replace(",", "\u202f")


@register.filter
def of(values: Mapping[Any, Any], key: Any) -> Any:
    """What a mapping holds under a key."""
    return values.get(key)


@register.simple_tag
def meter(share: float, words: str, tone: str = "") -> SafeString:
    """A bar that is full to this share."""
    return drawn_meter(share, words, tone)


@register.simple_tag(takes_context=True)
def place(context: template.Context, name: str, *args: Any) -> str:
    """`address` of a page that may not be there; then the list's."""
    try:
        return address(context, name, *args)
    except NoReverseMatch:
        return address(context, "home")
