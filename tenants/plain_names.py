"""Names and keys are one line that reads as it is stored: nothing in them moves, hides or turns round what stands beside it.

Refused are control characters, line and paragraph separators, characters that turn the direction of what follows, and those without
width. A joiner or a direction mark stays where a script needs it: behind a character of one that is neither Latin nor Greek nor Cyrillic
(Persian, Hindi, emoji), a joiner also before one. Elsewhere it would make two names look alike. Texts of several lines are no names.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST_NAME: Final = 200  # characters; what may be longer is a text

_REFUSED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200b\u2060\ufeff]"
    "|(?<![\u0590-\U0010ffff])[\u200c-\u200f]|[\u200c\u200d](?![\u0590-\U0010ffff])"
)


def error_of_name(text: str) -> str | None:
    """What keeps a text from being a name or a key, or None."""
    found = _REFUSED.search(text)
    if found is None:
        return None
    kind = "a control character" if ord(found[0]) < 0xA0 else "an invisible character"
    return f"must be one line of visible characters: it has {kind}, U+{ord(found[0]):04X}"
