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
