"""What of a value may stand in the audit trail: neither secrets nor texts of agents and people.

Entries outlive what they tell of and are read by many, so they say that a text changed and how long it is, and not what it says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

SECRET = re.compile(
    r"secret|token|passw|auth|credential|api_?key|private|sealed|signature|cookie|session|target|recipient|webhook|url$|endpoint|headers",
    re.IGNORECASE,
)
#: Counts of tokens and the like, which are no secrets although they are called so.
NO_SECRET = re.compile(r"(input|output|max)_tokens|author|token_id|session_id$", re.IGNORECASE)
#: What agents and people write, and what is written for them: the whole name of a field, or its last word as in `cancel_reason`.
TEXTS = frozenset(
    """
    answer blocker_message blocker_resolution comment content data definition description details error feedback input
    instructions item items job message metadata note notes options output params payload progress prompt question
    reason resolution result reviewer_feedback reviewer_notes rows sample search summary text title wakes
    """.split()  # noqa: SIM905 - read as words
)
LONGEST = 200  # characters of a value that is shown as it is
MOST_MEMBERS, DEEPEST = 40, 4
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def redacted(name: str, value: Any, depth: int = 0) -> Any:
    """The value of a field of that name as JSON that may be kept."""
    if value is None or isinstance(value, bool):
        return value
    if SECRET.search(name) and not NO_SECRET.fullmatch(name):
        return "[secret]" if value != "" else ""
    if name in TEXTS or name.rpartition("_")[2] in TEXTS:
        return _measured(value)
    if isinstance(value, Mapping):
        if depth >= DEEPEST:
            return _measured(value)
        members = sorted(value.items(), key=lambda member: str(member[0]))[:MOST_MEMBERS]
        return {one_line(key, 100): redacted(str(key), member, depth + 1) for key, member in members}
    if isinstance(value, list | tuple):
        if depth >= DEEPEST or len(value) > MOST_MEMBERS:
            return _measured(value)
        return [redacted(name, member, depth + 1) for member in value]
    return _plain(value)


def one_line(value: Any, longest: int = LONGEST) -> str:
    """Text that can neither begin a new line nor hide one: control characters are written as escapes."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value))[:longest]


def _plain(value: Any) -> Any:
    if isinstance(value, int | float):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    text = str(value)
    if "://" in text:
        return "[address]"  # whatever it is called: many are secrets in themselves
    return one_line(text) if len(text) <= LONGEST else _measured(text)


def _measured(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"[{len(value)} members]"
    if isinstance(value, list | tuple):
        return f"[{len(value)} elements]"
    return f"[{len(str(value))} characters]"
