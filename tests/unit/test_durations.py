"""How the console describes a time relative to now."""

from __future__ import annotations

import pytest

from console.labels import from_now


@pytest.mark.parametrize(
    ("passed", "words"), [(240.0, "4 min ago"), (-7_300.0, "in 2 h 1 min"), (0.4, "now"), (-0.4, "now")]
)
def test_a_time_is_described_as_past_future_or_now(passed: float, words: str) -> None:
    assert from_now(passed) == words
