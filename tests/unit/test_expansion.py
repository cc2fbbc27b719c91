"""Data sources make as many jobs as were estimated, in batches and in constant memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data_sources import (
    BatchGate,
    Dimension,
    Expand,
    ExpansionError,
    Options,
    Pacing,
    agree,
    batches,
    estimate,
    inputs,
    parse,
)

steady = settings(deadline=None, derandomize=True, max_examples=100)


def dimension(name: str, values: list[Any]) -> Dimension:
    return Dimension(name, values, len(values))


class Rows:
    """Yields its values again for each iteration, as a table does."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[str]:
        return (f"row {number}" for number in range(self.count))


def test_a_hundred_rows_make_a_hundred_jobs_in_ten_batches_a_second_apart() -> None:
    source = parse("db:ticker:all:id?enabled=true&batchSize=10&staggerDelay=1000")
    tickers = [Dimension("tickerId", Rows(100), 100)]
    expand, pacing = agree([source.options], Pacing())

    result = list(batches(inputs({"refreshEntityGraph": True}, tickers, expand), pacing))

    assert [len(batch.inputs) for batch in result] == [10] * 10
    assert [batch.offset for batch in result] == [timedelta(seconds=number) for number in range(10)]
    assert [batch.index for batch in result] == list(range(10))
    assert result[3].inputs[4] == {"tickerId": "row 34", "refreshEntityGraph": True}
    estimated = estimate(tickers, expand, pacing)
    assert (estimated.rows, estimated.jobs, estimated.batches, estimated.last_offset) == (
        {"tickerId": 100},
        100,
        10,
        timedelta(seconds=9),
    )


def test_fifty_contexts_in_batches_of_five() -> None:
    expand, pacing = agree(
        [parse("db:ticker:all:id?enabled=true&batchSize=5&staggerDelay=2000").options], Pacing()
    )

    estimated = estimate([Dimension("tickerId", Rows(50), 50)], expand, pacing)

    assert (estimated.jobs, estimated.batches, estimated.last_offset) == (50, 10, timedelta(seconds=18))


def test_without_a_data_source_there_is_one_job() -> None:
    assert list(inputs({"source": "news"}, [], Expand.PRODUCT)) == [{"source": "news"}]
    assert list(inputs({"source": "news"}, [], Expand.ZIP)) == [{"source": "news"}]
    assert estimate([], Expand.ZIP, Pacing()).jobs == estimate([], Expand.PRODUCT, Pacing()).jobs == 1


def test_no_rows_make_no_jobs() -> None:
    none = [dimension("a", []), dimension("b", [1, 2])]

    assert list(batches(inputs({}, none, Expand.PRODUCT), Pacing())) == []
    estimated = estimate(none, Expand.PRODUCT, Pacing())
    assert (estimated.jobs, estimated.batches, estimated.last_offset) == (0, 0, timedelta())


@steady
@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3), batch_size=st.integers(1, 7))
def test_a_product_has_every_combination_once_and_in_order(sizes: list[int], batch_size: int) -> None:
    dimensions = [dimension(f"p{number}", list(range(size))) for number, size in enumerate(sizes)]
    pacing = Pacing(batch_size, 10)

    made = list(batches(inputs({"same": 1}, dimensions, Expand.PRODUCT), pacing))

    rows = [
        tuple(input_[f"p{number}"] for number in range(len(sizes)))
        for batch in made
        for input_ in batch.inputs
    ]
    assert rows == list(product(*(range(size) for size in sizes)))
    estimated = estimate(dimensions, Expand.PRODUCT, pacing)
    assert (estimated.jobs, estimated.batches) == (len(rows), len(made))
    assert not made or made[-1].offset == estimated.last_offset
    assert all(len(batch.inputs) == batch_size for batch in made[:-1])


def test_zip_combines_the_values_of_each_source_in_order() -> None:
    pairs = [dimension("a", [1, 2]), dimension("b", ["x", "y"])]

    assert list(inputs({}, pairs, Expand.ZIP)) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert estimate(pairs, Expand.ZIP, Pacing()).jobs == 2


def test_the_list_mode_makes_one_job_with_the_list_of_each_data_source() -> None:
    dimensions = [dimension("a", [1, 2, 3]), dimension("b", []), dimension("c", [4])]

    result = list(inputs({"depth": 2}, dimensions, Expand.LIST))

    assert result == [{"depth": 2, "a": [1, 2, 3], "b": [], "c": [4]}]
    estimated = estimate(dimensions, Expand.LIST, Pacing(batch_size=1))
    assert (estimated.rows, estimated.jobs, estimated.batches) == ({"a": 3, "b": 0, "c": 1}, 1, 1)
    assert list(inputs({}, [], Expand.LIST)) == [{}]
    assert parse("db:ticker:all:id?expand=list").options.expand is Expand.LIST


def test_the_list_mode_makes_no_job_when_no_row_matches() -> None:
    nothing = [dimension("a", [])]

    assert list(inputs({"depth": 2}, nothing, Expand.LIST)) == []
    assert estimate(nothing, Expand.LIST, Pacing()).jobs == 0


def test_a_list_of_too_many_is_refused_before_and_while_reading() -> None:
    with pytest.raises(ExpansionError, match="at most 1,000 values of a"):
        estimate([Dimension("a", Rows(1001), 1001)], Expand.LIST, Pacing())
    with pytest.raises(ExpansionError, match="at most 1,000 values of a"):
        list(inputs({}, [Dimension("a", Rows(10**9), 1000)], Expand.LIST))
    assert len(next(inputs({}, [Dimension("a", Rows(1000), 1000)], Expand.LIST))["a"]) == 1000


def test_zip_of_unequal_lengths_is_refused_before_and_while_reading() -> None:
    unequal = [dimension("a", [1, 2, 3]), dimension("b", ["x", "y"])]

    with pytest.raises(ExpansionError, match="a has 3, b has 2"):
        estimate(unequal, Expand.ZIP, Pacing())
    with pytest.raises(ExpansionError, match="has fewer now"):
        list(inputs({}, unequal, Expand.ZIP))


def test_more_jobs_than_allowed_are_refused_before_and_while_reading() -> None:
    many = [Dimension("a", Rows(400), 400), Dimension("b", Rows(400), 400)]

    with pytest.raises(ExpansionError, match="more than 100,000 jobs"):
        estimate(many, Expand.PRODUCT, Pacing())
    with pytest.raises(ExpansionError, match="more than 5 jobs"):
        list(inputs({}, many, Expand.PRODUCT, most=5))


@pytest.mark.parametrize(
    "options",
    [
        [Options(batch_size=5), Options(batch_size=6)],
        [Options(stagger_ms=0), Options(), Options(stagger_ms=1)],
        [Options(expand=Expand.ZIP), Options(expand=Expand.PRODUCT)],
        [Options(batch_gate=BatchGate.DELAY), Options(batch_gate=BatchGate.COMPLETION)],
    ],
)
def test_data_sources_with_contradicting_options_are_refused(options: list[Options]) -> None:
    with pytest.raises(ExpansionError, match="contradict each other"):
        agree(options, Pacing())


def test_the_options_of_one_source_hold_for_all_and_a_delay_of_zero_is_allowed() -> None:
    options = [Options(stagger_ms=0), Options(expand=Expand.ZIP), Options(batch_size=3)]

    assert agree(options, Pacing(7, 900)) == (Expand.ZIP, Pacing(3, 0, BatchGate.DELAY))
    assert agree([], Pacing(7, 900, BatchGate.COMPLETION)) == (
        Expand.PRODUCT,
        Pacing(7, 900, BatchGate.COMPLETION),
    )


def test_a_reader_that_can_be_iterated_only_once_is_refused() -> None:
    with pytest.raises(TypeError, match="only once"):
        Dimension("a", iter([1]), 1)


def test_ten_thousand_rows_take_the_memory_of_a_batch() -> None:
    tracemalloc.start()
    try:
        rows = [Dimension("id", Rows(10_000), 10_000), Dimension("kind", Rows(3), 3)]
        jobs = sum(len(batch.inputs) for batch in batches(inputs({}, rows, Expand.PRODUCT), Pacing()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert jobs == 30_000
    assert peak < 100_000  # bytes
