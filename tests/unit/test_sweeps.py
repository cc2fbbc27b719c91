"""Sweeps over rows of which some stay."""

from __future__ import annotations

from itertools import islice

import pytest

from tenants import sweeps
from tenants.sweeps import Sweep

Row = tuple[int, int]


class Table:
    """Rows in order."""

    def __init__(self, count: int) -> None:
        self.rows = [(number // 2, number) for number in range(count)]
        self.pages_read = 0

    def read(self, after: Row | None) -> list[Row]:
        self.pages_read += 1
        return [row for row in self.rows if after is None or row > after][: sweeps.PAGE]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 3)


@pytest.mark.parametrize("count", [0, 2, 3, 7])
def test_a_turn_reads_every_row_once_whether_it_stays_or_not(count: int) -> None:
    table, sweep = Table(count), Sweep[Row]()
    expected = list(table.rows)
    found = []

    for row in sweep.turn(table.read):
        found.append(row)
        if row[1] % 2:
            table.rows.remove(row)

    assert found == expected
    assert list(sweep.turn(table.read)) == [row for row in expected if not row[1] % 2]


def test_a_full_turn_over_less_than_a_page_reads_once() -> None:
    table = Table(2)

    assert len(list(Sweep[Row]().turn(table.read))) == 2
    assert table.pages_read == 1


def test_a_turn_begins_behind_the_row_at_which_the_last_one_ended_and_ends_there() -> None:
    table, sweep = Table(7), Sweep[Row]()

    list(islice(sweep.turn(table.read), 3))
    second = [number for _, number in sweep.turn(table.read)]
    third = [number for _, number in sweep.turn(table.read)]

    assert second == [3, 4, 5, 6, 0, 1, 2]
    assert third == [0, 1, 2, 3, 4, 5, 6]


def test_a_turn_whose_time_is_over_ends_after_one_row() -> None:
    table, sweep = Table(4), Sweep[Row]()

    turns = [[number for _, number in sweep.turn(table.read, within=-1.0)] for _ in range(5)]

    assert turns == [[0], [1], [2], [3], [0]]
