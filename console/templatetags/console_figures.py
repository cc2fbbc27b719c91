"""What templates of the pages about operation say: money, counts, objects as JSON, bars and meters of figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import template
from django.utils.safestring import SafeString

from console.templatetags.console import draw_meter as drawn_meter
from console.templatetags.console import exactly

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
        return "\u2013"
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
    """A count with a space between its thousands."""
    return "\u2013" if number is None else f"{number:,.0f}".replace(",", "\u202f")


@register.filter
def of(values: Mapping[Any, Any], key: Any) -> Any:
    """What a mapping holds under a key."""
    return values.get(key)


@register.simple_tag
def meter(share: float, words: str, tone: str = "") -> SafeString:
    """A bar that is full to this share."""
    return drawn_meter(share, words, tone)


@register.simple_tag
def percent(share: float) -> str:
    """A share in whole per cent."""
    return f"{share:.0%}"


@register.filter
def said(value: Any) -> str:
    """A member of the API as people read it."""
    if value is None or value == "" or value == []:
        return "\u2013"
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
    """A moment on the clocks of its zone, as people say it: Mon 3 May 2027, 09:30."""
    found = datetime.fromisoformat(moment)
    seconds = f":{found:%S}" if found.second else ""
    return f"{found:%a} {found.day} {found:%b %Y, %H:%M}{seconds}"


_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
