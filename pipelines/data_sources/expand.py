"""Expands the values of data sources into the inputs of jobs, and into batches that are spread over time.

Everything is streamed: memory holds one batch, however many rows there are. `estimate` computes the counts in advance
from the number of rows of each source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from math import prod
from typing import Any, ClassVar

from pipelines.data_sources.parsing import looks_like, parse, unescape
from pipelines.data_sources.shapes import BatchGate, DataSource, DataSourceError, Expand, Options
from pipelines.definition.errors import DefinitionError, InputError, at

MOST_JOBS = 100_000  # of one execution; two sources of a thousand rows would make a million
MOST_LISTED = 1_000  # values of a source that one job gets as a list
_END = object()


class ExpansionError(ValueError):
    """The data sources cannot be combined in this way."""

    code: ClassVar[str] = "invalid_expansion"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter with the values of its data source.

    Under `product` the values are iterated once for each combination of the parameters before. So they must be a list,
    or an object that reads its rows again for each iteration.
    """

    name: str
    values: Iterable[Any]
    count: int

    def __post_init__(self) -> None:
        if isinstance(self.values, Iterator):
            raise TypeError("an iterator can be used only once: pass an iterable")


@dataclass(frozen=True, slots=True)
class Pacing:
    """How jobs are spread over time."""

    batch_size: int = 10
    stagger_ms: int = 1_000
    gate: BatchGate = BatchGate.DELAY


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that start together, `offset` after the first batch; with the gate `completion`, not before."""

    index: int
    offset: timedelta
    inputs: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The size of an expansion. `last_offset` is the time from the first batch to the last."""

    rows: Mapping[str, int]
    jobs: int
    batches: int
    last_offset: timedelta


def agree(options: Iterable[Options], defaults: Pacing) -> tuple[Expand, Pacing]:
    """Return the options that the data sources agree on, and defaults for the others. Raises `ExpansionError`."""
    every = list(options)
    expand = _agree_on("expand", [option.expand for option in every])
    size = _agree_on("batchSize", [option.batch_size for option in every])
    stagger = _agree_on("staggerDelay", [option.stagger_ms for option in every])
    gate = _agree_on("batch_gate", [option.batch_gate for option in every])
    return expand or Expand.PRODUCT, Pacing(
        batch_size=defaults.batch_size if size is None else size,
        stagger_ms=defaults.stagger_ms if stagger is None else stagger,
        gate=gate or defaults.gate,
    )


def estimate(dimensions: Sequence[Dimension], expand: Expand, pacing: Pacing) -> Estimate:
    """Return the size of an expansion, without reading a row. Without data sources there is one job.

    Raises `ExpansionError` for too many jobs, and for sources under `zip` with different numbers of rows.
    """
    counts = {dimension.name: dimension.count for dimension in dimensions}
    if expand is Expand.ZIP and len(set(counts.values())) > 1:
        counted = ", ".join(f"{name} has {count:,}" for name, count in counts.items())
        raise ExpansionError(f"expand=zip needs the same number of rows from each data source: {counted}")
    if expand is Expand.LIST:
        jobs = int(not counts or any(counts.values()))
        for name, count in counts.items():
            _refuse_long_list(name, count)
    else:
        jobs = next(iter(counts.values()), 1) if expand is Expand.ZIP else prod(counts.values())
    _refuse_too_many(jobs, MOST_JOBS)
    batches_ = -(-jobs // pacing.batch_size)
    return Estimate(counts, jobs, batches_, max(batches_ - 1, 0) * timedelta(milliseconds=pacing.stagger_ms))


def inputs(
    literals: Mapping[str, Any], dimensions: Sequence[Dimension], expand: Expand, *, most: int = MOST_JOBS
) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each job in order; the last data source varies fastest.

    Raises `ExpansionError` as `estimate` does, because rows may have been added or removed since.
    """
    combined = _COMBINED[expand](dimensions) if dimensions else iter([{}])
    for number, values in enumerate(combined, 1):
        _refuse_too_many(number, most)
        yield {**literals, **values}


def batches(inputs_: Iterable[dict[str, Any]], pacing: Pacing) -> Iterator[Batch]:
    """Yield the inputs in batches, each the stagger delay after the one before. The last may be smaller."""
    rest, index = iter(inputs_), 0
    while members := tuple(islice(rest, pacing.batch_size)):
        yield Batch(index, index * timedelta(milliseconds=pacing.stagger_ms), members)
        index += 1


def _agree_on(name: str, values: Iterable[Any]) -> Any:
    different = list(dict.fromkeys(value for value in values if value is not None))
    if len(different) > 1:
        raise ExpansionError(
            f"the data sources contradict each other: {name} is {' and '.join(map(str, different))}"
        )
    return different[0] if different else None


def _refuse_too_many(jobs: int, most: int) -> None:
    if jobs > most:
        raise ExpansionError(f"this would make more than {most:,} jobs; narrow the filters, or set a limit")


def _product(dimensions: Sequence[Dimension]) -> Iterator[dict[str, Any]]:
    # itertools.product would keep all values in memory.
    if not dimensions:
        yield {}
        return
    first, *rest = dimensions
    for value in first.values:
        for others in _product(rest):
            yield {first.name: value, **others}


def _zip_dimensions(dimensions: Sequence[Dimension]) -> Iterator[dict[str, Any]]:
    names = [dimension.name for dimension in dimensions]
    streams = [iter(dimension.values) for dimension in dimensions]
    while True:
        values = [next(stream, _END) for stream in streams]
        if any(value is _END for value in values):
            if not all(value is _END for value in values):
                raise ExpansionError(
                    "expand=zip needs the same number of rows from each data source, but one has fewer now"
                )
            return
        yield dict(zip(names, values, strict=True))


def _list_dimensions(dimensions: Sequence[Dimension]) -> Iterator[dict[str, Any]]:
    lists = {dimension.name: list(islice(dimension.values, MOST_LISTED + 1)) for dimension in dimensions}
    for name, values in lists.items():
        _refuse_long_list(name, len(values))
    if any(lists.values()):
        yield lists


def _refuse_long_list(name: str, count: int) -> None:
    if count > MOST_LISTED:
        raise ExpansionError(
            f"expand=list gives a job at most {MOST_LISTED:,} values of {name}; narrow the filter, or set a limit"
        )


_COMBINED = {Expand.PRODUCT: _product, Expand.ZIP: _zip_dimensions, Expand.LIST: _list_dimensions}


# Parameters, divided into data sources and plain values.


MOST_SOURCES = 5  # in the parameters of one schedule


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters, divided into plain values and data sources."""

    literals: Mapping[str, Any]  # every job gets them unchanged
    sources: Mapping[str, DataSource]  # they are expanded into jobs


class ParamsError(DefinitionError):
    """The parameters hold invalid data sources. `errors` lists each with its path and character; `readable` has the other parameters."""

    code = "invalid_params"

    def __init__(self, errors: Iterable[InputError], readable: Params) -> None:
        super().__init__(errors)
        self.readable = readable


def read_params(params: Mapping[str, Any]) -> Params:
    """Divide the parameters into plain values and data sources. Text in lists and objects is always plain. Raises `ParamsError`."""
    errors: list[InputError] = []
    literals: dict[str, Any] = {}
    sources: dict[str, DataSource] = {}
    for name, value in params.items():
        if not looks_like(value):
            literals[name] = unescape(value) if isinstance(value, str) else value
            continue
        try:
            sources[name] = parse(value)
        except DataSourceError as error:
            errors.extend(InputError(at("params", name), str(problem)) for problem in error.errors)
    if len(sources) > MOST_SOURCES:
        errors.append(InputError("params", f"must have at most {MOST_SOURCES} data sources"))
    readable = Params(literals, sources)
    if errors:
        raise ParamsError(errors, readable)
    return readable
