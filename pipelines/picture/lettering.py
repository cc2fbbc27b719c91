"""Texts and signs of a picture, escaped and cut to fit."""

from __future__ import annotations

import re
from html import escape
from unicodedata import east_asian_width

from pipelines.looks import GLYPHS


def joined(*parts: str | None) -> str:
    return " \u00b7 ".join(filter(None, parts))


# Characters that XML forbids, or that turn the direction of the text around them.
UNFIT = re.compile("[^\t\n -~\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SAFE_LINK = re.compile(r"(?:https?://|/(?!/)|[?#])[^\s\\]*")
NARROW = frozenset("iljtfrI1.,:;'|!()[]/ -")


def safe(text: str, most: int = 300) -> str:
    return escape(UNFIT.sub("\ufffd", text[:most]))


def drawn_glyph(kind: str, x: float, y: float, glyph: str) -> str:
    return f'<path class="{kind}" transform="translate({x:g} {y:g})" d="{GLYPHS[glyph]}"/>' if glyph else ""


def one_line(kind: str, x: float, y: float, text: str, width: float, wide: float) -> str:
    """One line that fits. Fonts are unknown here: most letters are taken to be `wide`, which is ample."""
    text, used = " ".join(text[:200].split()), 0.0
    for place, letter in enumerate(text):
        used += wide * (0.6 if letter in NARROW else 1.6 if east_asian_width(letter) in "WF" else 1.0)
        if used > width:
            text = text[: max(1, place - 1)].rstrip() + "\u2026"
            break
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{safe(text)}</text>'
