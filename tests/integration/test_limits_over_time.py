"""Rates, the runaway guard and pauses of providers as limits of admission, which keep the order of waiting work."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from activities import admission
from activities.admission import Exchange, exchange, keys, scripts
from activities.admission.exchange import Grant, Hold, Offer, Release
from tenants.redis import client
from tests import redis_clock
from tests.integration.test_admission import GENERATION, A, B, Desk, offer, offers
from tests.redis_clock import RedisClock


@pytest.fixture
def clock(database: None) -> Iterator[RedisClock]:
    with redis_clock.admission_stopped() as stopped:
        yield stopped


@pytest.fixture
def desk(clock: RedisClock) -> Desk:
    client().delete(keys.pointer())
    return Desk()


def set_rate(desk: Desk, tenant: UUID, per_second: float, capacity: float) -> None:
    desk.cap(f"rate:{tenant}:qa", f"{per_second}|{capacity}")  # type: ignore[arg-type]


def ids(items: list[Any]) -> list[UUID]:
    return [item.activity_id for item in items]


def test_the_next_token_goes_to_the_most_urgent_waiting_activity(desk: Desk, clock: RedisClock) -> None:
    set_rate(desk, A, 1, 1)
    desk.grants(offer())
    background = [offer(priority=20, waited=100 - number) for number in range(3)]
    urgent = [offer(priority=1, waited=number) for number in (2, 1)]
    assert desk.grants(*background, *urgent) == []

    started: list[Offer | Grant] = []
    for _ in range(4):
        clock.advance(1)
        started += desk.grants(offer(priority=20))  # new, so the last in line

    assert ids(started) == ids([*urgent, *background[:2]])


def test_starts_follow_the_rate_of_the_tenant_without_delaying_others(desk: Desk, clock: RedisClock) -> None:
    set_rate(desk, A, 2, 3)
    first = desk.grants(*offers(10), *offers(10, B))
    assert [sum(grant.tenant_id == tenant for grant in first) for tenant in (A, B)] == [3, 10]

    clock.advance(0.4)
    assert desk.grants() == []
    clock.advance(0.1)
    assert len(desk.grants()) == 1
    clock.advance(60)
    assert len(desk.grants()) == 3


def test_one_exchange_returns_when_the_next_token_is_due(desk: Desk, clock: RedisClock) -> None:
    set_rate(desk, A, 0.5, 1)
    first = desk.grants(*offers(3))
    again = desk.grants()

    assert first.ask_again_seconds == 2  # type: ignore[attr-defined]
    assert again.ask_again_seconds is None  # type: ignore[attr-defined]
    clock.advance(2)
    assert desk.grants().ask_again_seconds == 2  # type: ignore[attr-defined]


def test_no_time_is_returned_if_nothing_waits_for_a_token(desk: Desk) -> None:
    set_rate(desk, A, 0.5, 1)

    assert desk.grants(offer()).ask_again_seconds is None  # type: ignore[attr-defined]


def test_the_token_of_an_unused_grant_goes_to_the_next_in_line(desk: Desk) -> None:
    set_rate(desk, A, 0.001, 1)
    (withdrawn,) = desk.grants(offer(priority=1))
    background, urgent = offer(priority=20, waited=500), offer(priority=1)
    desk.grants(background, urgent)

    (granted,) = exchange(Exchange(withdrawals=[withdrawn.activity_id]))
    assert granted.activity_id == urgent.activity_id
    assert admission.start(granted.activity_id, granted.grant)
    (next_one,) = exchange(Exchange(releases=[Release(granted.activity_id, granted.grant, unused=True)]))
    assert next_one.activity_id == background.activity_id
    assert admission.start(next_one.activity_id, next_one.grant)
    assert (
        exchange(Exchange(releases=[Release(next_one.activity_id, next_one.grant)], offers=offers(1))) == []
    )


def test_a_raised_or_removed_rate_applies_at_once_and_caps_still_hold(desk: Desk, clock: RedisClock) -> None:
    set_rate(desk, A, 0.001, 1)
    desk.grants(*offers(20))
    set_rate(desk, A, 1, 5)
    clock.advance(3)
    assert len(desk.grants()) == 3

    desk.cap(f"pair:{A}:qa", 6)
    clock.advance(60)
    assert len(desk.grants()) == 2
    del desk.limits["caps"][f"rate:{A}:qa"]
    desk.cap(f"pair:{A}:qa", 100)
    assert len(desk.grants()) == 14


def test_inspection_names_the_rate_and_when_the_token_is_due(desk: Desk) -> None:
    set_rate(desk, A, 0.5, 1)
    late = offer(priority=20)
    desk.grants(offer(), late)

    state = admission.inspect(late.activity_id)

    assert (state["at"], state["per_second"]) == (f"rate:{A}:qa", 0.5)
    assert state["due"] == 2000


def test_the_guard_limits_the_starts_of_all_tenants_in_any_minute(desk: Desk, clock: RedisClock) -> None:
    desk.cap("starts:qa", 4)
    assert len(desk.grants(*offers(3), *offers(3, B))) == 4
    urgent = offer(priority=1)
    assert desk.grants(urgent) == []

    clock.advance(59.5)
    assert desk.grants() == []
    clock.advance(0.6)
    granted = desk.grants()
    assert (len(granted), granted[0].activity_id) == (3, urgent.activity_id)


@pytest.mark.parametrize("limit", ["starts:qa", f"starts:{A}:qa"])
def test_work_can_start_again_a_minute_after_the_oldest_start_that_counts(
    desk: Desk, clock: RedisClock, limit: str
) -> None:
    desk.cap(limit, 3)
    desk.grants(offer())
    clock.advance(40)
    desk.grants(*offers(2))
    desk.cap(limit, 2)
    clock.advance(21)

    refused = desk.grants(offer())

    assert (refused, refused.ask_again_seconds) == ([], 39)  # type: ignore[attr-defined]
    clock.advance(39)
    assert len(desk.grants()) == 1


def test_the_guard_does_not_count_unused_grants(desk: Desk) -> None:
    desk.cap("starts:qa", 1)
    (first,) = desk.grants(*offers(3))
    desk.grants()

    assert len(exchange(Exchange(withdrawals=[first.activity_id]))) == 1


def test_a_tenant_with_its_own_adapter_has_its_own_limit_of_starts(desk: Desk) -> None:
    desk.cap("starts:qa", 2)
    desk.cap(f"starts:{B}:qa", "none")  # type: ignore[arg-type]

    granted = desk.grants(*offers(5, B), *offers(1))

    assert len(granted) == 6


@pytest.mark.parametrize("own", ["none", 3])
def test_a_full_limit_of_all_tenants_does_not_delay_a_tenant_with_its_own(
    desk: Desk, clock: RedisClock, own: Any
) -> None:
    desk.cap("starts:qa", 1)
    desk.cap(f"starts:{B}:qa", own)
    desk.grants(*offers(2))
    waiting, *more = offers(4, B)

    assert {grant.tenant_id for grant in desk.grants(waiting)} == {B}
    assert len(desk.grants(*more)) == (3 if own == "none" else 2)
    assert desk.grants() == []
    clock.advance(61)
    assert {A, B} >= {grant.tenant_id for grant in desk.grants()} >= {A}


def test_a_limit_of_starts_can_become_a_tenants_own_and_be_shared_again_while_its_work_waits(
    desk: Desk, clock: RedisClock
) -> None:
    desk.cap("starts:qa", 1)
    desk.grants(*offers(1), *offers(3, B))
    assert desk.grants() == []

    desk.cap(f"starts:{B}:qa", 1)
    assert len(desk.grants()) == 1
    scripts.check_structure()
    del desk.limits["caps"][f"starts:{B}:qa"]
    desk.put()
    assert desk.grants() == []
    scripts.check_structure()
    clock.advance(61)
    assert len(desk.grants()) == 1


def test_run_now_files_passed_on_slots_and_inspection_use_the_tenants_own_limit_of_starts(desk: Desk) -> None:
    desk.cap("starts:qa", 1)
    desk.cap(f"starts:{B}:qa", 4)
    desk.grants(offer())
    desk.put(**{f"tenant__{B}": 0, f"past__tenant__{B}": 9})
    express = offer(B)._replace(run_now_at=datetime.now(UTC))
    assert ids(desk.grants(express)) == [express.activity_id]

    desk.put(**{f"tenant__{B}": 1})
    late = offer(B)
    desk.grants(late)
    assert admission.inspect(late.activity_id)["at"] == f"tenant:{B}"
    desk.put(**{f"tenant__{B}": 9})
    (running,) = desk.grants()
    admission.start(running.activity_id, running.grant)
    assert admission.PassedSlot(running.activity_id, running.grant, uuid4()).grant()
    desk.grants(offer(B))
    last = offer(B)
    assert desk.grants(offer(B, waited=9), last) == []
    state = admission.inspect(last.activity_id)
    assert (state["at"], state["cap"], state["used"], state["position"]) == (f"starts:{B}:qa", 4, 4, 2)


def test_work_for_a_pausing_provider_keeps_its_place_and_urgent_work_may_use_the_reserve(
    desk: Desk, clock: RedisClock
) -> None:
    refused, later, urgent = offer(waited=10), offer(), offer(priority=1)
    desk.cap(f"pair:{A}:qa", 1)
    (grant,) = desk.grants(refused)
    admission.start(grant.activity_id, grant.grant)
    hold = Hold(A, "qa", urgent=False, seconds=30, code="provider_limit", holder="openai at x")

    back = Exchange(releases=[Release(grant.activity_id, grant.grant)], offers=[later, refused], holds=[hold])
    assert exchange(back) == []
    assert exchange(back) == []  # a repetition, as after a lost answer
    state = admission.inspect(refused.activity_id)
    (first,) = desk.grants(urgent)
    desk.grants(release=[first])
    clock.advance(30)
    (second,) = desk.grants()

    assert (state["at"], state["code"], state["holder"]) == (f"hold:{A}:qa", "provider_limit", "openai at x")
    assert (first.activity_id, second.activity_id) == (urgent.activity_id, refused.activity_id)


def test_a_shorter_pause_of_a_provider_does_not_end_a_longer_one(desk: Desk, clock: RedisClock) -> None:
    for seconds in (30, 5):
        exchange(
            Exchange(holds=[Hold(A, "qa", urgent=False, seconds=seconds, code="provider_limit", holder="x")])
        )
    desk.grants(offer())

    clock.advance(29)
    assert desk.grants() == []
    clock.advance(1)
    assert len(desk.grants()) == 1


def test_the_expected_duration_follows_the_runs_of_a_tenants_role(desk: Desk, clock: RedisClock) -> None:
    expected = []
    for seconds in (10, 5):
        (grant,) = desk.grants(offer())
        admission.start(grant.activity_id, grant.grant)
        clock.advance(seconds)
        desk.grants(release=[grant])
        desk.cap(f"pair:{A}:qa", 0)
        waiting = offer()
        desk.grants(waiting)
        expected.append(admission.inspect(waiting.activity_id)["duration"])
        exchange(Exchange(withdrawals=[waiting.activity_id]))
        desk.cap(f"pair:{A}:qa", 1)

    assert expected == [10, 9]


def test_limits_over_time_leave_no_keys_behind(desk: Desk, clock: RedisClock) -> None:
    set_rate(desk, A, 1, 2)
    grants = desk.grants(*offers(4))
    clock.advance(1000)
    desk.grants(release=[*grants, *desk.grants()])
    remaining = {
        name.decode().removeprefix(keys.generation(GENERATION))
        for name in client().keys(f"{keys.pointer()}:*")
    }

    assert not {"due", "holds"} & remaining
