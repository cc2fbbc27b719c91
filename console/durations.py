"""Times as people say them."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def in_words(seconds: float) -> str:
    """The two largest units: `3 d 4 h`, `12 min`, `8 s`. Less than a second is `now`."""
    left, words = int(seconds), []
    for size, name in _UNITS:
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {name}")
        elif words:
            break
    return " ".join(words[:2]) or "now"


def from_now(passed: float) -> str:
    """How far a moment is away, whose seconds have passed; fewer than none lie ahead: `4 min ago`, `in 2 h`, `now`."""
    words = in_words(abs(passed))
    if words == "now":
        return words
    return f"in {words}" if passed < 0 else f"{words} ago"
