"""Shares of a whole as small pictures: a bar that is full as far as something is spent."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

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
