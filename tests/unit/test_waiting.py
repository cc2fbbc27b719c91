"""From where an activity stands in admission to a reason that people understand."""

from __future__ import annotations

from typing import Any

import pytest

from activities.waiting import of_standing

TENANT = "018f0000-0000-7000-8000-000000000001"


def waiting(at: str, **facts: Any) -> dict[str, Any]:
    return {"state": "waiting", "at": at, "position": 3, "duration": 4, "seats": 2, "taken": 1, **facts}


@pytest.mark.parametrize(
    ("scope", "code", "holder"),
    [
        (f"pair:{TENANT}:seo", "tenant_cap", "2 of 2 running for seo"),
        (f"tenant:{TENANT}", "tenant_cap", "2 of 2 running for this tenant"),
        ("role:seo", "role_cap", "2 of 2 running for seo over all tenants"),
        (f"group:{TENANT}:seo:site:7", "group_cap", "2 of 2 running for seo in the group site:7"),
        ("global", "global_cap", "2 of 2 running for all roles together"),
    ],
)
def test_a_full_scope_is_named_with_what_holds_it(scope: str, code: str, holder: str) -> None:
    reason = of_standing(waiting(scope, cap=2, used=2), role="seo")

    assert (reason.code, reason.holder, reason.position) == (code, holder, 3)


def test_the_estimate_counts_those_before_in_rounds_of_the_cap() -> None:
    assert of_standing(waiting("role:seo", cap=2, used=2), role="seo").estimate_seconds == 6.0


def test_a_limit_of_zero_is_a_pause() -> None:
    assert of_standing(waiting(f"tenant:{TENANT}", cap=0, used=1), role="seo").code == "paused"


@pytest.mark.parametrize("standing", [waiting("worker:seo", seats=0), waiting("ready", seats=0)])
def test_a_role_that_nobody_serves_has_no_worker(standing: dict[str, Any]) -> None:
    reason = of_standing(standing, role="seo")

    assert (reason.code, reason.estimate_seconds) == ("no_worker", None)


def test_ready_work_behind_busy_workers_is_queued_and_says_how_busy_they_are() -> None:
    reason = of_standing(waiting("ready", taken=2), role="seo")

    assert (reason.code, reason.holder, reason.estimate_seconds) == (
        "queued",
        "2 of 2 seats taken at the workers of seo",
        6.0,
    )


@pytest.mark.parametrize(
    "standing",
    [{"state": "closed"}, {"state": "unknown"}, {"state": "held", "started": False, "grant": "g-1"}],
)
def test_what_admission_does_not_hold_back_is_queued(standing: dict[str, Any]) -> None:
    assert of_standing(standing, role="seo").code == "queued"
