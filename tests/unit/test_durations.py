"""How far a moment is away is said as people say it."""

from __future__ import annotations

import pytest

from console.labels import from_now


@pytest.mark.parametrize(
    ("passed", "said"), [(240.0, "4 min ago"), (-7_300.0, "in 2 h 1 min"), (0.4, "now"), (-0.4, "now")]
)
def test_a_time_is_described_as_past_future_or_now(passed: float, said: str) -> None:
    assert from_now(passed) == said
