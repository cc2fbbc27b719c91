"""Names and keys are one line that looks the way it is stored: no character in them moves, hides or reverses others.

Refused are control characters, line and paragraph separators, characters that change the direction of text, and those that nobody sees: a
model would read instructions in them that people do not see. A joiner, a mark of direction or a variation selector is allowed where a
script needs it: after a character that is not Latin, Greek or Cyrillic (such as Persian, Hindi or emoji), and a joiner only before such a
character as well; a single variation selector also after the signs that emoji contain. Elsewhere it would make different names look alike.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST_NAME: Final = 200  # characters; a field that may be longer holds a text and not a name

#: Default ignorable code points of Unicode. The last ranges hold the tag characters, which repeat ASCII invisibly.
_INVISIBLE = (
    "\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_SELECTORS = "[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
_REFUSED = re.compile(
    f"[\x00-\x1f\x7f-\x9f{_INVISIBLE}]"
    "|(?<![\u0590-\U0010ffff])[\u061c\u200c-\u200f]|[\u200c\u200d](?![\u0590-\U0010ffff])"
    f"|(?<![0-9#*\xa9\xae\u0590-\U0010ffff]){_SELECTORS}|(?<={_SELECTORS}){_SELECTORS}"
)


def error_of_name(text: str) -> str | None:
    """Why a text cannot be a name or a key, or None if it can."""
    found = _REFUSED.search(text)
    if found is None:
        return None
    kind = "a control character" if ord(found[0]) < 0xA0 else "an invisible character"
    return f"must be one line of visible characters: it has {kind}, U+{ord(found[0]):04X}"


def make_plain(text: str) -> str:
    """Return the text with spaces in place of all characters that a name cannot have. For short texts."""
    while _REFUSED.search(text):  # a space may end what allowed the next character
        text = _REFUSED.sub(" ", text)
    return text
