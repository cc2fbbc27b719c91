"""Computes retry delays from a policy."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`max_attempts` includes the first attempt. The first retry waits about `base_seconds`."""

    max_attempts: int = 3
    strategy: str = "exponential"  # or linear, fixed
    base_seconds: float = 5.0
    multiplier: float = 2.0
    max_seconds: float = 300.0
    jitter: float = 0.1

    @classmethod
    def of(cls, *layers: Mapping[str, Any] | None) -> Self:
        """Merge the layers over the defaults; later layers win. The cap of an earlier layer does not cut the first delay of a later one."""
        names = {field.name for field in fields(cls)}
        merged: dict[str, Any] = {}
        cap_is_earlier = True
        for layer in layers:
            given = {
                name: value for name, value in (layer or {}).items() if name in names and value is not None
            }
            if given.keys() & {"base_seconds", "max_seconds"}:
                cap_is_earlier = "max_seconds" not in given
            merged |= given
        policy = cls(**merged)
        if cap_is_earlier:
            return replace(policy, max_seconds=max(policy.max_seconds, policy.base_seconds))
        return policy

    def delay(self, failures: int) -> timedelta:
        """Return the delay after this number of failures (1 or more), varied by plus or minus `jitter`, which is a share."""
        steps = max(failures, 1) - 1
        if self.strategy == "fixed":
            seconds = self.base_seconds
        elif self.strategy == "linear":
            seconds = self.base_seconds * (steps + 1)
        else:
            # Limit the exponent, because the power would overflow; every such delay is capped anyway.
            seconds = self.base_seconds * self.multiplier ** min(steps, 64)
        spread = 2 * random.random() - 1  # noqa: S311  # no secret
        return timedelta(seconds=max(0.0, min(seconds, self.max_seconds) * (1 + self.jitter * spread)))
