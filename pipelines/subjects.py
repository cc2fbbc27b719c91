"""What a run is about, in a few words, so that runs of one pipeline can be told apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TELLING = ("subject", "title", "topic", "name")  # parameters that say it best, in this order
LONGEST = 80  # characters of a parameter that can be what a run is about


def subject_of(name: str, params: Any) -> str:
    """The name that the run was given, else a parameter that is a short text, those of `TELLING` first; empty when there is none."""
    if name:
        return name
    given = params if isinstance(params, Mapping) else {}
    values = [*(given[key] for key in TELLING if key in given), *given.values()]
    texts = (" ".join(value.split()) for value in values if isinstance(value, str))
    return next((text for text in texts if 0 < len(text) <= LONGEST), "")
