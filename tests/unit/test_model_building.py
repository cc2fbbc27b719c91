"""The progress that `make demo-model` reports while it builds, and its estimate of the remaining time."""

from __future__ import annotations

import sys
from itertools import count

import pytest

from orchestrator.demo.model_building import Progress, install


def compiled(*counts: tuple[int, int, float]) -> Progress:
    """Return the progress after these lines of ninja: `(done, all, second)` of files."""
    progress = Progress(0.0)
    for done, everything, second in counts:
        progress.read(f"[{done}/{everything}] Building C object ggml/src/ggml.c.o\n", second)
    return progress


def test_the_remaining_time_is_estimated_from_the_time_so_far() -> None:
    progress = compiled((1, 101, 100.0), (51, 101, 200.0))

    assert progress.words(200.0) == "  compiling: 50 %, about 2 min left"
    assert progress.seconds_left(200.0) == pytest.approx(100.0)


def test_the_estimate_grows_when_the_machine_becomes_slow() -> None:
    """Also while no file is finished."""
    progress = compiled((1, 101, 0.0), (51, 101, 100.0))

    assert progress.seconds_left(200.0) == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("done", "second"),
    [pytest.param(5, 60.0, id="too few files"), pytest.param(50, 10.0, id="too short a time")],
)
def test_no_estimate_is_given_before_there_is_enough_to_base_it_on(done: int, second: float) -> None:
    assert compiled((1, 100, 0.0), (done, 100, second)).words(second) == f"  compiling: {done} %"


def test_progress_never_reaches_the_end_before_everything_is_done() -> None:
    assert "99 %" in compiled((1, 1000, 0.0), (999, 1000, 900.0)).words(900.0)


def test_a_second_build_counts_from_zero() -> None:
    progress = compiled((1, 20, 0.0), (20, 20, 100.0), (1, 50, 110.0))

    assert progress.words(110.0) == "  compiling: 2 %"


def test_progress_of_make_is_read_in_per_cent() -> None:
    progress = Progress(0.0)
    progress.read("[  2%] Building CXX object x.o\n", 0.0)
    progress.read("[ 52%] Building CXX object y.o\n", 100.0)

    assert progress.words(100.0) == "  compiling: 52 %, about 2 min left"


@pytest.mark.parametrize("line", ["[0/0] nothing", "[7/3] more than all", "[note] text", "warning: [1/2", ""])
def test_a_line_without_a_count_changes_nothing(line: str) -> None:
    progress = Progress(0.0)
    progress.read(line, 1.0)

    assert progress.words(4.0) == "  downloading, 4 s"


def test_each_stage_is_announced_when_it_begins() -> None:
    written = r"print('Collecting llama'); print('[1/4] Building'); print('[4/4] Linking'); print('Installing collected packages: llama')"
    lines: list[str] = []

    status = install([sys.executable, "-c", written], lines.append, clock=count().__next__)

    assert status == 0
    assert [line.split()[0].rstrip(",:") for line in lines] == ["downloading", "compiling", "installing"]


def test_a_failed_command_is_reported_with_its_last_lines() -> None:
    lines: list[str] = []

    status = install([sys.executable, "-c", "print('no compiler'); raise SystemExit(3)"], lines.append)

    assert status == 3
    assert "no compiler" in lines[-1]
