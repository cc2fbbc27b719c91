"""Semantic versions by the grammar of semver.org 2.0.0, and their order."""

from __future__ import annotations

import re
from functools import total_ordering

from django.core.exceptions import ValidationError

# As semver.org suggests it: no leading zeros in numbers, and no empty identifiers.
_GRAMMAR = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)
LONGEST = 64  # characters; what a run keeps of it

FAULT = "must be a semantic version such as 1.4.0 or 2.0.0-rc.1"


@total_ordering
class Precedence:
    """The rank of a version: numbers first, and a pre-release before its release. Build metadata does not count."""

    __slots__ = ("_rank",)

    def __init__(self, version: str) -> None:
        """Raises `ValueError` for a text that is no semantic version."""
        found = _GRAMMAR.fullmatch(version)
        if found is None or len(version) > LONGEST:
            raise ValueError(f"{version!r} {FAULT}")
        major, minor, patch, before, _ = found.groups()
        # Numbers are compared as numbers and rank below words; of two equal beginnings the shorter is the lower.
        parts = [(0, int(each), "") if each.isdigit() else (1, 0, each) for each in (before or "").split(".")]
        self._rank = (int(major), int(minor), int(patch), before is None, parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Precedence) and self._rank == other._rank

    def __lt__(self, other: Precedence) -> bool:
        return self._rank < other._rank

    def __hash__(self) -> int:
        return hash(str(self._rank))


def error_of(version: str) -> str | None:
    """What is wrong with it, or None."""
    return None if len(version) <= LONGEST and _GRAMMAR.fullmatch(version) else FAULT


def validate(version: str) -> None:
    """For model fields. Raises `ValidationError`."""
    if error := error_of(version):
        raise ValidationError(f"The version {error}.")
