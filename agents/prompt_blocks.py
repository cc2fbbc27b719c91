"""Blocks: text from outside, for a model to read, between markers that no text can contain.

The author of the text cannot know the marker, and one that happens to stand in any text is not used. So nothing from outside can pretend
that its block has ended and that what follows are our own words.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from itertools import count

from django.conf import settings

DIGITS = 16  # of a marker, hexadecimal


def wrap_block(title: str, text: str, marker: str) -> str:
    """The text as a block. `marker` must stand in none of the texts that are told together."""
    return f"<<{title} {marker}>>\n{text}\n<<end of {title} {marker}>>"


def marker_for(texts: Sequence[str]) -> str:
    """A marker that is the same for the same texts, so that providers can cache what it stands in, and known to nobody but us."""
    joined = "\x00".join(texts).encode(errors="surrogatepass")
    return next(
        marker
        for number in count()
        if not any((marker := _derive_marker(joined, number)) in text for text in texts)
    )


def _derive_marker(joined: bytes, number: int) -> str:
    return hmac.digest(settings.SECRET_KEY.encode(), b"blocks:%d:" % number + joined, hashlib.sha256).hex()[
        :DIGITS
    ]
