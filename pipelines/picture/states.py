"""Where the steps of a pipeline stand, as a picture is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepPicture:
    """Where a step stands: the status of its activity or its own, and a word on it, such as its duration."""

    status: str = "pending"
    detail: str = ""
    href: str | None = None
    round: int = 1


States = Mapping[str, StepPicture]  # by the id of the step; a step that is left out is pending
#: Of steps that were fanned out: how many of their branches have which status, by the id of the step.
Counts = Mapping[str, Mapping[str, int]]
