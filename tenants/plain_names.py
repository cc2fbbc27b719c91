"""Names and keys are one line that looks the way it is stored: no character in them moves, hides or reverses others.

Refused are control characters, line and paragraph separators, characters that change the direction of text, and those without width. A
joiner or a direction mark is allowed where a script needs it: after a character that is not Latin, Greek or Cyrillic (such as Persian,
Hindi or emoji), and a joiner only before such a character as well. Elsewhere it would make different names look alike.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST_NAME: Final = 200  # characters; a field that may be longer holds a text and not a name

_REFUSED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200b\u2060\ufeff]"
    "|(?<![\u0590-\U0010ffff])[\u200c-\u200f]|[\u200c\u200d](?![\u0590-\U0010ffff])"
)


def error_of_name(text: str) -> str | None:
    """Why a text cannot be a name or a key, or None if it can."""
    found = _REFUSED.search(text)
    if found is None:
        return None
    kind = "a control character" if ord(found[0]) < 0xA0 else "an invisible character"
    return f"must be one line of visible characters: it has {kind}, U+{ord(found[0]):04X}"
