"""The frozen parts of a parsed data source, before its table is looked up, and its errors."""

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
    """How a field is compared, as written in a JSON filter. `query.matches` defines each operator."""

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
    ZIP = "zip"  # the first of each, the second of each, and so on; each must have the same number
    LIST = "list"  # one job, which gets all values of each as a list


class BatchGate(StrEnum):
    """What a batch waits for."""

    DELAY = "delay"  # the stagger delay after the start of the batch before it
    START = "start"  # the stagger delay after the first job of the batch before it has started to work
    COMPLETION = "completion"  # the end of all jobs of the batch before it, and then the stagger delay


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on rows. The value of $in and $nin is a tuple.

    The value of a condition outside JSON is text; `query.resolve` converts it to the field's type.
    """

    field: str
    operator: Operator
    value: Scalar | tuple[Scalar, ...]
    is_text: bool = False
    position: int = dataclasses.field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows: all, or the one with this key, if they fulfil all conditions."""

    key: str | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """The options. None for an option that is not set."""

    batch_size: int | None = None
    stagger_ms: int | None = None
    expand: Expand | None = None
    batch_gate: BatchGate | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class DataSource:
    """A parsed data source. Equal if the meaning is equal. `positions` are the places in the text, for errors."""

    source: Source
    table: str
    filter: Filter
    fields: tuple[str, ...]
    options: Options = Options()
    # Of the table, the filter, and each field.
    positions: tuple[int, ...] = dataclasses.field(default=(), compare=False)


MOST_IN_TEXT = 10  # errors in the exception's text; `errors` holds all of them


@dataclass(frozen=True, slots=True)
class InputError:
    """One error. `position` is the index of a character in the text."""

    position: int
    message: str

    def __str__(self) -> str:
        return f"character {self.position + 1}: {self.message}"


class DataSourceError(ValueError):
    """The text is not a valid data source. `errors` lists everything that is wrong with it."""

    code: ClassVar[str] = "invalid_data_source"

    def __init__(self, errors: Iterable[InputError]) -> None:
        self.errors = list(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors[:MOST_IN_TEXT]))
