"""The parts of a tenant's settings, in their order."""

from __future__ import annotations

from dataclasses import dataclass

from console.settings.collections import COLLECTIONS


@dataclass(frozen=True, slots=True)
class Tab:
    """One part. `key` is empty for those with an address of their own, `name` is that address's."""

    words: str
    name: str
    key: str
    is_here: bool


def tabs(here: str) -> list[Tab]:
    """All parts. `here` is the one that is looked at."""
    own = [
        Tab("Members", "settings", "", here == "members"),
        Tab("Tokens", "settings_tokens", "", here == "tokens"),
    ]
    return own + [
        Tab(each.words, "settings_collection", key, here == key) for key, each in COLLECTIONS.items()
    ]
