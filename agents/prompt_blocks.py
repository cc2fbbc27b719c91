"""Encloses text from outside in a prompt between markers that no text can contain.

The author of the text cannot know the marker, and a marker that occurs in any of the texts is not used. So no text from outside can
pretend that its block has ended and that the following text is ours.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from itertools import count

from django.conf import settings

DIGITS = 16  # of a marker, hexadecimal


def wrap_block(title: str, text: str, marker: str) -> str:
    """Return the text as a block. `marker` must not occur in any text of the prompt."""
    return f"<<{title} {marker}>>\n{text}\n<<end of {title} {marker}>>"


def marker_for(texts: Sequence[str]) -> str:
    """Return a secret marker for these texts. It is always the same for the same texts, so that providers can cache the prompt."""
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
