"""Expansion: from the values of data sources to the inputs of jobs, and to batches spread over time.

Everything streams: memory holds one batch, however many rows there are. The counts are computed beforehand from the
number of rows of each source, by the same rules.
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
    """The sources cannot be combined like this."""

    code: ClassVar[str] = "invalid_expansion"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter with the values that its data source has.

    Under `product` the values are iterated once for each combination of those before, so it must be possible to iterate
    them again: a list, or an object that reads its rows again.
    """

    name: str
    values: Iterable[Any]
    count: int

    def __post_init__(self) -> None:
        if isinstance(self.values, Iterator):
            raise TypeError("an iterator can be gone through only once: give something that makes iterators")


@dataclass(frozen=True, slots=True)
class Pacing:
    """How jobs are spread over time."""

    batch_size: int = 10
    stagger_ms: int = 1_000
    gate: BatchGate = BatchGate.DELAY


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that start together, `offset` after the first batch; with the gate `completion` that is the earliest time."""

    index: int
    offset: timedelta
    inputs: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an expansion will come to. `last_offset` says when the last batch starts, after the first."""

    rows: Mapping[str, int]
    jobs: int
    batches: int
    last_offset: timedelta


def agree(options: Iterable[Options], defaults: Pacing) -> tuple[Expand, Pacing]:
    """The options that several data sources agree on; the default where none has the option. Raises `ExpansionError`."""
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


def estimate(
    dimensions: Sequence[Dimension], expand: Expand, pacing: Pacing, *, most: int = MOST_JOBS
) -> Estimate:
    """The numbers of an expansion, without reading a row. Without data sources there is one job.

    Raises `ExpansionError` for more than `most` jobs, and for sources under `zip` that have not equally many rows.
    """
    counts = {dimension.name: dimension.count for dimension in dimensions}
    if expand is Expand.ZIP and len(set(counts.values())) > 1:
        counted = ", ".join(f"{name} has {count:,}" for name, count in counts.items())
        raise ExpansionError(f"expand=zip needs equally many rows of each data source: {counted}")
    if expand is Expand.LIST:
        jobs = int(not counts or any(counts.values()))
        for name, count in counts.items():
            _refuse_long_list(name, count)
    else:
        jobs = next(iter(counts.values()), 1) if expand is Expand.ZIP else prod(counts.values())
    _refuse_too_many(jobs, most)
    batches_ = -(-jobs // pacing.batch_size)
    return Estimate(counts, jobs, batches_, max(batches_ - 1, 0) * timedelta(milliseconds=pacing.stagger_ms))


def inputs(
    literals: Mapping[str, Any], dimensions: Sequence[Dimension], expand: Expand, *, most: int = MOST_JOBS
) -> Iterator[dict[str, Any]]:
    """The parameters of each job in order, the last data source varying fastest.

    Raises `ExpansionError` as `estimate` does, when rows were added or removed since.
    """
    combined = _COMBINED[expand](dimensions) if dimensions else iter([{}])
    for number, values in enumerate(combined, 1):
        _refuse_too_many(number, most)
        yield {**literals, **values}


def batches(inputs_: Iterable[dict[str, Any]], pacing: Pacing) -> Iterator[Batch]:
    """The inputs in batches of the pacing's size, the last one perhaps smaller, each later by the stagger delay."""
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
                    "expand=zip needs equally many rows of each data source, and one has fewer by now"
                )
            return
        yield dict(zip(names, values, strict=True))


def _list_in_turn(dimensions: Sequence[Dimension]) -> Iterator[dict[str, Any]]:
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


_COMBINED = {Expand.PRODUCT: _product, Expand.ZIP: _zip_dimensions, Expand.LIST: _list_in_turn}


# The parameters of a job or a pipeline: which of them are data sources, and which are values as they are.


MOST_SOURCES = 5  # in the parameters of one schedule


class ParamsError(DefinitionError):
    """The parameters hold data sources that cannot be accepted. `errors` names each by path and character."""

    code = "invalid_params"


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters, divided into values and data sources."""

    literals: Mapping[str, Any]  # go into every job unchanged
    sources: Mapping[str, DataSource]  # make jobs


def read_params(params: Mapping[str, Any]) -> Params:
    """Divide the parameters into values and data sources. Text within lists and objects is always used as it is. Raises `ParamsError`."""
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
    if errors:
        raise ParamsError(errors)
    return Params(literals, sources)
