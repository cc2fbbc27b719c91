"""Figures as small pictures, drawn here: nothing in them needs a script, and their colours come from the style sheet."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

HEIGHT = 40
STEP = 10  # width of a bar with the gap behind it
GAP = 2


def bars(values: Sequence[float], words: str) -> SafeString:
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


def meter(share: float, words: str, tone: str = "") -> SafeString:
    """A bar that is full to this share, which may be more than all of it. `words` say the same to those who do not see it; without any,
    what stands beside the bar says it."""
    width = round(min(max(share, 0.0), 1.0) * WIDTH, 1)
    said = format_html('role="img" aria-label="{}"', words) if words else mark_safe('aria-hidden="true"')
    return format_html(
        '<svg class="meter {}" viewBox="0 0 {} 1" preserveAspectRatio="none" {}><rect x="0" y="0" width="{}" height="1"/></svg>',
        tone, WIDTH, said, width,
    )  # fmt: skip
