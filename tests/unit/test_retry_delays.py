"""Delays between attempts, from settings of several levels."""

from __future__ import annotations

from typing import Any

import pytest

from activities.retry_delays import RetryPolicy


@pytest.mark.parametrize(
    ("layers", "delays"),
    [
        ([{}], [5, 10, 20, 40, 80, 160, 300]),
        ([{"base_seconds": 600}], [600, 600]),
        ([{"base_seconds": 5, "max_seconds": 60}, {"base_seconds": 100}], [100, 100]),
        ([{"base_seconds": 100}, {"max_seconds": 60}], [60, 60]),
        ([{"base_seconds": 600}, {"base_seconds": 200, "strategy": "linear"}], [200, 300]),
        ([{"base_seconds": 600}, {"max_attempts": 2}], [600, 600]),
    ],
)
def test_no_cap_of_a_more_general_level_cuts_the_first_delay_of_a_more_specific_one(
    layers: list[dict[str, Any]], delays: list[float]
) -> None:
    policy = RetryPolicy.of(*layers, {"jitter": 0})

    assert [policy.delay(failures).total_seconds() for failures in range(1, len(delays) + 1)] == delays
