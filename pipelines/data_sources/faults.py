"""Faults of a data source string, each at the character where it shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

SHOWN = 10  # faults in the text of the error; the list holds all of them


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. `position` is the index of the character in the text."""

    position: int
    message: str

    def __str__(self) -> str:
        return f"character {self.position + 1}: {self.message}"


class DataSourceError(ValueError):
    """The text is no valid data source. `faults` names everything that is wrong with it."""

    code: ClassVar[str] = "invalid_data_source"

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults[:SHOWN]))
