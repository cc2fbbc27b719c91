"""Semantic versions by the grammar of semver.org 2.0.0, and their order."""

from __future__ import annotations

import re
from functools import total_ordering

from django.core.exceptions import ValidationError

# The expression of semver.org: no leading zeros in numbers, and no empty identifiers.
_GRAMMAR = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)
LONGEST = 64  # characters, the size of a run's column

INVALID = "must be a semantic version such as 1.4.0 or 2.0.0-rc.1"


@total_ordering
class Precedence:
    """The rank of a version: numbers first, and a pre-release before its release. Build metadata does not count."""

    __slots__ = ("_rank",)

    def __init__(self, version: str) -> None:
        """Raises `ValueError` for a text that is not a semantic version."""
        match = _GRAMMAR.fullmatch(version)
        if match is None or len(version) > LONGEST:
            raise ValueError(f"{version!r} {INVALID}")
        major, minor, patch, pre_release, _ = match.groups()
        # Numbers are compared as numbers and rank below words. If one pre-release is a prefix of another, the shorter ranks lower.
        parts = [
            (0, int(each), "") if each.isdigit() else (1, 0, each) for each in (pre_release or "").split(".")
        ]
        self._rank = (int(major), int(minor), int(patch), pre_release is None, parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Precedence) and self._rank == other._rank

    def __lt__(self, other: Precedence) -> bool:
        return self._rank < other._rank

    def __hash__(self) -> int:
        return hash(str(self._rank))


def error_of(version: str) -> str | None:
    """Return why this is not a semantic version, or None if it is one."""
    return None if len(version) <= LONGEST and _GRAMMAR.fullmatch(version) else INVALID


def validate(version: str) -> None:
    """A validator for model fields. Raises `ValidationError`."""
    if error := error_of(version):
        raise ValidationError(f"The version {error}.")
