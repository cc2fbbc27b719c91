"""Priorities as callers write them: on our scale, by the name of a band, or on a scale that they say they use.

The stored scale is 1..20, lower first. Other scales are only read when named, since 5 means something else on each of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities.states import BANDS

#: Points of each scale and what they are here; whatever lies between two points is on the line between them.
SCALES: dict[str, dict[int, int]] = {
    "payload": {0: 10, 1: 5, 2: 1},
    "ade": {0: 1, 5: 10, 9: 20},
    "ticket": {1: 1, 5: 10, 10: 20},
}
LOWEST, HIGHEST = 1, 20


def stored(value: int, scale: str) -> int | None:
    """The stored priority of a value on a named scale, or None if the scale has no such value."""
    points = sorted(SCALES[scale].items())
    for (low, at_low), (high, at_high) in pairwise(points):
        if low <= value <= high:
            return int(at_low + (value - low) * (at_high - at_low) / (high - low) + 0.5)
    return None


@extend_schema_field({"type": ["integer", "string"]})
class PriorityField(serializers.Field[Any, Any, Any, Any]):
    """A whole number, or the name of a band. What the number means is decided by `priority_of`."""

    default_error_messages = {"invalid": f"must be a whole number or one of {', '.join(BANDS)}"}

    def to_internal_value(self, data: Any) -> int | str:
        if isinstance(data, str) and data in BANDS:
            return data
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data

    def to_representation(self, value: Any) -> Any:
        return value


def priority_of(given: int | str | None, scale: str | None = None) -> int:
    """The stored priority. Raises `ValidationError` at the path `priority`."""
    if given is None:
        return BANDS["normal"]
    if isinstance(given, str):
        return BANDS[given]
    found = stored(given, scale) if scale else given
    if found is None or not LOWEST <= found <= HIGHEST:
        values = SCALES[scale].keys() if scale else (LOWEST, HIGHEST)
        raise serializers.ValidationError({"priority": [f"must be from {min(values)} to {max(values)}"]})
    return found
