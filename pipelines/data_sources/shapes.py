"""The parts of a data source, frozen: what its text says, before it is known whether such a table exists; and its errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

Scalar = str | int | float | bool | None


class Source(StrEnum):
    """Where the rows come from."""

    DB = "db"
    API = "api"
    FILE = "file"
    CACHE = "cache"


class Operator(StrEnum):
    """How a field is compared, as it is written in a JSON filter. `query.matches` says exactly what each means."""

    EQ = "$eq"
    NE = "$ne"
    GT = "$gt"
    GTE = "$gte"
    LT = "$lt"
    LTE = "$lte"
    IN = "$in"
    NIN = "$nin"
    EXISTS = "$exists"


ORDERED = frozenset({Operator.GT, Operator.GTE, Operator.LT, Operator.LTE})
LISTS = frozenset({Operator.IN, Operator.NIN})


class Expand(StrEnum):
    """How the values of several parameters are combined."""

    PRODUCT = "product"  # each value of one with each value of the others
    ZIP = "zip"  # the first of each, the second of each, and so on; there must be equally many
    LIST = "list"  # one job, which gets all values of each as a list


class BatchGate(StrEnum):
    """What a batch waits for."""

    DELAY = "delay"  # the stagger delay after the start of the batch before it
    START = "start"  # the stagger delay after the first job of the batch before it has really begun
    COMPLETION = "completion"  # the end of all jobs of the batch before it, and then the stagger delay


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that rows must fulfil. The value of $in and $nin is a tuple.

    A condition without JSON is text, whatever its field holds. `query.resolve` turns it into the field's type.
    """

    field: str
    operator: Operator
    value: Scalar | tuple[Scalar, ...]
    is_text: bool = False
    position: int = dataclasses.field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows: all of them or the one with this key, as far as they fulfil all conditions."""

    key: str | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """The options for pace and amount; None for an option that is not set."""

    batch_size: int | None = None
    stagger_ms: int | None = None
    expand: Expand | None = None
    batch_gate: BatchGate | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class DataSource:
    """One data source string, read. Equal if they mean the same. `positions` tell where each field was written."""

    source: Source
    table: str
    filter: Filter
    fields: tuple[str, ...]
    options: Options = Options()
    positions: tuple[int, ...] = dataclasses.field(
        default=(), compare=False
    )  # of the table, the filter, and each field


SHOWN = 10  # errors in the text of the error; the list holds all of them


@dataclass(frozen=True, slots=True)
class InputError:
    """One thing that is wrong. `position` is the index of the character in the text."""

    position: int
    message: str

    def __str__(self) -> str:
        return f"character {self.position + 1}: {self.message}"


class DataSourceError(ValueError):
    """The text is not a valid data source. `errors` names everything that is wrong with it."""

    code: ClassVar[str] = "invalid_data_source"

    def __init__(self, errors: Iterable[InputError]) -> None:
        self.errors = list(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors[:SHOWN]))
