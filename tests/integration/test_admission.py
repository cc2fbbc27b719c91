"""Admission on a real Redis: which work gets the next slot, and what happens to slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from activities import admission, relay
from activities.admission import Closed, Exchange, Grant, exchange, keys, limits, scripts
from activities.admission.exchange import Offer, Release, find_unknown
from tenants.redis import client
from tests import redis_clock

GENERATION = keys.new_generation("g1")
A, B, C = (UUID(int=number) for number in (1, 2, 3))


class Desk:
    """Admission with limits that the test sets, without PostgreSQL."""

    def __init__(self) -> None:
        self.limits: dict[str, dict[str, Any]] = {
            "caps": {"pair:*:qa": 100, "seat:qa": 100},
            "weights": {},
            "pools": {"qa": "qa"},
        }
        self.put(generation=GENERATION)
        client().set(keys.pointer(), GENERATION)

    def put(
        self,
        *,
        generation: str = "",
        pools: dict[str, str] | None = None,
        weights: dict[str, int] | None = None,
        **caps: int,
    ) -> None:
        self.limits["caps"] |= {name.replace("__", ":"): cap for name, cap in caps.items()}
        self.limits["weights"] |= weights or {}
        self.limits["pools"] = self.limits["pools"] if pools is None else pools
        document = orjson.dumps(self.limits, option=orjson.OPT_SORT_KEYS)
        scripts.run("limits", generation, str(hash(document)), document)

    def cap(self, scope: str, cap: int) -> None:
        self.limits["caps"][scope] = cap
        self.put()

    def grants(self, *offers: Offer, release: Iterable[Grant] = (), limit: int = 500) -> list[Grant]:
        return exchange(
            Exchange(
                offers=list(offers), releases=[Release(grant.activity_id, grant.grant) for grant in release]
            )
        )


@pytest.fixture
def desk(database: None) -> Desk:
    client().delete(keys.pointer())
    return Desk()


def offer(
    tenant: UUID = A, *, role: str = "qa", priority: int = 10, group: str | None = None, waited: float = 0.0
) -> Offer:
    return Offer(uuid4(), tenant, role, priority, datetime.now(UTC) - timedelta(seconds=waited), group)


def offers(count: int, tenant: UUID = A, **more: Any) -> list[Offer]:
    return [offer(tenant, **more) for _ in range(count)]


@pytest.mark.parametrize(
    "scope", ["pair:" + str(A) + ":qa", "tenant:" + str(A), "role:qa", "global", "seat:qa"]
)
def test_no_scope_grants_more_than_its_cap_and_a_released_slot_is_granted_again(
    desk: Desk, scope: str
) -> None:
    desk.cap(scope, 2)

    first = desk.grants(*offers(5))
    then = desk.grants(release=first[:1])

    assert (len(first), len(then)) == (2, 1)
    assert desk.grants() == []


def test_a_group_runs_one_at_a_time_unless_its_role_allows_more(desk: Desk) -> None:
    assert len(desk.grants(*offers(3, group="repo"), *offers(2, group="other"))) == 2

    desk.cap("groups:*:qa", 2)

    assert len(desk.grants()) == 2


def test_only_the_group_of_a_mailbox_runs_one_at_a_time_whatever_its_role_allows(desk: Desk) -> None:
    desk.cap("groups:*:qa", 2)

    assert len(desk.grants(*offers(3, group=f"mailbox:{uuid4()}"))) == 1
    assert len(desk.grants(*offers(3, group="mailbox:of-a-caller"))) == 2


def test_blocked_work_does_not_hold_up_other_work(desk: Desk) -> None:
    desk.cap(f"pair:{A}:qa", 0)

    grants = desk.grants(*offers(50, A), *offers(2, B))

    assert {grant.tenant_id for grant in grants} == {B}


def test_raising_a_cap_alone_grants_the_waiting_work(desk: Desk) -> None:
    desk.cap(f"pair:{A}:qa", 0)
    desk.grants(*offers(3))

    desk.cap(f"pair:{A}:qa", 2)

    assert len(desk.grants()) == 2


def test_work_of_a_role_without_workers_waits_until_one_comes(desk: Desk) -> None:
    waiting = offer(role="dev")
    assert desk.grants(waiting) == []
    assert admission.inspect(waiting.activity_id)["at"] == "worker:dev"

    desk.put(pools={"qa": "qa", "dev": "dev"}, seat__dev=1)

    assert [grant.activity_id for grant in desk.grants()] == [waiting.activity_id]


def test_roles_that_share_workers_share_their_seats(desk: Desk) -> None:
    desk.put(pools={"qa": "dev", "dev": "dev"}, seat__dev=3)

    grants = desk.grants(*offers(5, role="qa"), *offers(5, role="dev"))

    assert len(grants) == 3


def test_seats_in_use_are_still_counted_after_a_role_had_no_workers_for_a_while(desk: Desk) -> None:
    desk.put(pools={"qa": "dev", "dev": "dev"}, seat__dev=3)
    desk.grants(*offers(1))

    desk.put(pools={"dev": "dev"})
    desk.put(pools={"qa": "qa", "dev": "dev"}, seat__qa=2)

    assert len(desk.grants(*offers(3))) == 1


def test_offering_twice_counts_once(desk: Desk) -> None:
    once = offer()
    desk.cap("global", 0)

    desk.grants(once, once)
    desk.grants(once)
    desk.cap("global", 5)

    assert len(desk.grants(once)) == 1
    assert desk.grants(once) == []


def test_releasing_twice_or_with_another_grant_frees_nothing(desk: Desk) -> None:
    desk.cap("global", 1)
    held, waiting = offer(), offer()
    (grant,) = desk.grants(held)
    desk.grants(waiting)

    stolen = grant._replace(grant="g1-999")
    assert desk.grants(release=[stolen]) == []
    (second,) = desk.grants(release=[grant])
    assert desk.grants(offer(), release=[grant]) == []

    assert second.activity_id == waiting.activity_id


def test_a_grant_may_be_started_repeatedly_but_not_after_its_release(
    desk: Desk,
) -> None:
    (grant,) = desk.grants(offer())

    assert admission.start(grant.activity_id, grant.grant)
    assert admission.start(grant.activity_id, grant.grant)
    desk.grants(release=[grant])
    assert not admission.start(grant.activity_id, grant.grant)


def test_an_accepted_run_releases_its_seat_and_keeps_its_tenants_slot(desk: Desk) -> None:
    desk.put(seat__qa=1)
    desk.cap(f"pair:{A}:qa", 2)
    (first,) = desk.grants(*offers(3))

    admission.accept(first.activity_id, first.grant)
    admission.accept(first.activity_id, first.grant)
    second = desk.grants()
    admission.accept(second[0].activity_id, second[0].grant)

    assert len(second) == 1
    assert desk.grants() == []  # a seat is free, but two of two slots of the tenant are held


def test_only_the_current_grant_can_start_accept_or_release(desk: Desk) -> None:
    desk.put(seat__qa=1)
    (grant,) = desk.grants(*offers(2))
    another = grant._replace(grant="another")

    assert not admission.start(another.activity_id, another.grant)
    assert not admission.accept(another.activity_id, another.grant)
    assert desk.grants(release=[another]) == []
    assert len(desk.grants(release=[grant])) == 1


def test_a_slot_that_is_started_twice_counts_from_its_first_start(desk: Desk) -> None:
    with redis_clock.admission_stopped() as clock:
        (grant,) = desk.grants(offer())
        slots = f"{keys.generation(GENERATION)}slots"
        assert admission.start(grant.activity_id, grant.grant)
        started = client().hgetall(slots)
        clock.advance(5)

        assert admission.start(grant.activity_id, grant.grant)
        assert client().hgetall(slots) == started


def test_only_the_started_slot_of_the_current_grant_is_passed_on(desk: Desk) -> None:
    desk.put(seat__qa=1)
    (grant,) = desk.grants(offer())
    follower = uuid4()

    def pass_on(by: str) -> str | None:
        return admission.PassedSlot(grant.activity_id, by, follower).grant()

    assert pass_on(grant.grant) == ""
    assert admission.start(grant.activity_id, grant.grant)
    assert pass_on("another") == ""
    passed = pass_on(grant.grant)
    assert passed
    assert pass_on(grant.grant) == ""
    assert admission.start(follower, passed)


def test_one_call_makes_and_starts_no_more_grants_than_it_may(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("activities.admission.exchange"), "GRANTS_PER_CALL", 2)
    express = [each._replace(run_now_at=datetime.now(UTC)) for each in offers(3)]

    first = exchange(Exchange(offers=express), start_roles=["qa"], start=1)
    then = desk.grants()

    assert ([grant.started for grant in first], len(then)) == ([True, False], 1)


def test_withdrawn_work_is_not_granted(desk: Desk) -> None:
    desk.cap("global", 0)
    leaves, stays = offer(), offer()
    desk.grants(leaves, stays)

    exchange(Exchange(withdrawals=[leaves.activity_id]))
    desk.cap("global", 5)

    assert [grant.activity_id for grant in desk.grants()] == [stays.activity_id]


def test_an_offer_that_overtakes_the_release_of_the_previous_run_waits_from_then_on(desk: Desk) -> None:
    once = offer()
    (grant,) = desk.grants(once)
    admission.start(grant.activity_id, grant.grant)

    assert desk.grants(once, once) == []
    (again,) = desk.grants(release=[grant])

    assert again.activity_id == once.activity_id
    assert again.grant != grant.grant
    assert desk.grants(release=[again]) == []


def test_offering_work_that_was_granted_but_not_started_leads_to_one_run(desk: Desk) -> None:
    once = offer()
    (grant,) = desk.grants(once)

    desk.grants(once)

    assert desk.grants(release=[grant]) == []


def test_work_that_is_withdrawn_before_its_slot_is_released_does_not_wait(desk: Desk) -> None:
    once = offer()
    (grant,) = desk.grants(once)
    admission.start(grant.activity_id, grant.grant)
    desk.grants(once)

    exchange(Exchange(withdrawals=[once.activity_id]))

    assert desk.grants(release=[grant]) == []


def test_urgent_work_of_any_tenant_goes_before_normal_work_of_every_tenant(desk: Desk) -> None:
    desk.put(seat__qa=0)
    desk.grants(*offers(5, A, waited=20), *offers(2, B, priority=1))

    desk.put(seat__qa=3)

    assert [grant.tenant_id for grant in desk.grants()] == [B, B, A]


def test_tenants_take_turns_however_much_one_of_them_has_waiting(desk: Desk) -> None:
    desk.put(seat__qa=0)
    desk.grants(*offers(1000, A, waited=100), *offers(5, B))

    desk.put(seat__qa=10)

    assert Counter(grant.tenant_id for grant in desk.grants()) == {A: 5, B: 5}


def test_turns_of_tenants_follow_their_weights(desk: Desk) -> None:
    desk.put(seat__qa=0, weights={str(A): 3})
    desk.grants(*offers(50, A), *offers(50, B))

    desk.put(seat__qa=40)

    assert Counter(grant.tenant_id for grant in desk.grants()) == {A: 30, B: 10}


def test_turns_are_counted_in_slot_seconds_so_that_long_work_gets_fewer(desk: Desk) -> None:
    desk.put(seat__qa=1)
    desk.grants(*offers(40, A, role="qa"), *offers(40, B, role="qa"))
    # A's work takes ten times as long as B's, and admission has learned these durations.
    for tenant, seconds in ((A, "1.0"), (B, "0.1")):
        client().hset(f"{keys.generation(GENERATION)}durations", f"{tenant}|qa", seconds)
    seconds_used: Counter[UUID] = Counter()
    turns: Counter[UUID] = Counter()

    desk.put(seat__qa=44)
    for grant in desk.grants():
        turns[grant.tenant_id] += 1
        seconds_used[grant.tenant_id] += 10 if grant.tenant_id == A else 1

    assert turns[B] == 39 or turns[B] == 40
    assert 0.4 < seconds_used[A] / (seconds_used[A] + seconds_used[B]) < 0.6


@pytest.mark.parametrize("busy", ["qa", "dev"])
def test_a_tenant_gets_no_credit_for_time_without_work(desk: Desk, busy: str) -> None:
    desk.put(pools={"qa": "qa", "dev": "qa"}, **{"pair:*:dev": 100})
    durations = f"{keys.generation(GENERATION)}durations"
    client().hset(durations, mapping={f"{A}|{busy}": "5", f"{B}|qa": "5"})
    desk.grants(*offers(20, A, role=busy))  # a hundred slot-seconds of A while B has no work
    desk.put(seat__qa=20)
    desk.grants(*offers(20, A, role=busy), *offers(20, B))

    desk.put(seat__qa=30)

    assert Counter(grant.tenant_id for grant in desk.grants()) == {A: 5, B: 5}


@pytest.mark.parametrize(
    ("waiting", "turns"),
    [({"role": "dev"}, {B: 10}), ({"role": "seo"}, {A: 5, B: 5}), ({"priority": 20}, {A: 5, B: 5})],
    ids=["the same workers", "other workers", "another band"],
)
def test_a_tenant_keeps_its_turn_only_while_it_waits_for_the_same_workers_in_the_same_band(
    desk: Desk, waiting: dict[str, Any], turns: dict[UUID, int]
) -> None:
    desk.put(pools={"qa": "qa", "dev": "qa", "seo": "seo"}, seat__qa=0, **{"pair:*:dev": 9, "role:dev": 0})
    durations = f"{keys.generation(GENERATION)}durations"
    client().hset(durations, mapping={f"{A}|qa": "5", f"{B}|qa": "5"})
    desk.grants(offer(B, **waiting), *offers(40, A))
    desk.put(seat__qa=20)
    assert {grant.tenant_id for grant in desk.grants()} == {A}  # a hundred slot-seconds of A

    desk.grants(*offers(20, B))
    desk.put(seat__qa=30)

    assert Counter(grant.tenant_id for grant in desk.grants()) == turns


@pytest.mark.parametrize(
    ("paused", "busy"), [("role:qa", "dev"), (f"pair:{B}:qa", "qa")], ids=["a role", "a tenant's role"]
)
def test_work_gets_no_credit_for_time_in_which_it_was_paused(desk: Desk, paused: str, busy: str) -> None:
    desk.put(pools={"qa": "qa", "dev": "qa"}, seat__qa=20, **{"pair:*:dev": 100, paused: 0})
    durations = f"{keys.generation(GENERATION)}durations"
    client().hset(durations, mapping={f"{A}|{busy}": "5", f"{B}|qa": "5"})
    desk.grants(*offers(20, B))
    desk.grants(*offers(20, A, role=busy))  # a hundred slot-seconds of A
    desk.grants(*offers(20, A, role=busy))

    desk.cap(paused, 100)
    desk.put(seat__qa=30)

    # B begins where A's last turn began, so B gets one more turn.
    assert Counter(grant.tenant_id for grant in desk.grants()) == {A: 4, B: 6}


def test_work_gets_no_credit_for_time_in_which_its_tenants_limit_held_it_back(desk: Desk) -> None:
    desk.put(seat__qa=21, **{f"pair:{B}:qa": 1})
    durations = f"{keys.generation(GENERATION)}durations"
    client().hset(durations, mapping={f"{A}|qa": "5", f"{B}|qa": "5"})
    (own,) = desk.grants(*offers(20, B))
    assert len(desk.grants(*offers(20, A))) == 20  # a hundred slot-seconds of A
    desk.put(seat__qa=20)
    desk.grants(*offers(20, A), release=[own])

    desk.cap(f"pair:{B}:qa", 100)
    desk.put(seat__qa=30)

    # B begins where A's last turn began, so B gets one more turn.
    assert Counter(grant.tenant_id for grant in desk.grants()) == {A: 4, B: 6}


@pytest.mark.parametrize(("global_cap", "turns"), [(None, {A: 5, B: 5}), (1000, {B: 10})])
def test_use_of_other_workers_counts_only_if_all_work_shares_a_limit(
    desk: Desk, global_cap: int | None, turns: dict[UUID, int]
) -> None:
    desk.put(pools={"qa": "qa", "dev": "dev"}, seat__qa=0, seat__dev=100, **{"pair:*:dev": 100})
    if global_cap:
        desk.cap("global", global_cap)
    client().hset(f"{keys.generation(GENERATION)}durations", f"{A}|dev", "5")
    desk.grants(*offers(10, A, role="dev"))  # fifty slot-seconds of A
    desk.grants(*offers(10, A), *offers(10, B))

    desk.put(seat__qa=10)

    assert Counter(grant.tenant_id for grant in desk.grants()) == turns


def test_a_role_that_moves_to_other_workers_keeps_no_virtual_time_of_its_former_ones(desk: Desk) -> None:
    desk.put(pools={"qa": "qa", "dev": "dev"}, seat__qa=20, seat__dev=0, **{"pair:*:dev": 100})
    client().hset(f"{keys.generation(GENERATION)}durations", f"{A}|qa", "5")
    assert len(desk.grants(*offers(20, A))) == 20  # a hundred slot-seconds of A
    desk.put(pools={"qa": "dev", "dev": "dev"})
    desk.grants(*offers(10, B), *offers(10, C, role="dev"))

    desk.put(seat__dev=30)

    assert Counter(grant.tenant_id for grant in desk.grants()) == {B: 5, C: 5}


def test_aged_work_of_another_role_gets_its_share_of_what_a_tenants_limit_allows(
    desk: Desk, settings: Any
) -> None:
    settings.ORCHESTRATOR_AGED_SHARE = 3
    desk.put(pools={"qa": "qa", "dev": "dev"}, **{"pair:*:dev": 100, "seat:dev": 100, f"tenant:{A}": 1})
    aged = offer(role="dev", priority=20, waited=settings.ORCHESTRATOR_AGEING_SECONDS + 60)
    (grant,) = desk.grants(aged, *offers(10, priority=1))

    roles = [grant.role]
    for _ in range(5):
        (grant,) = desk.grants(release=[grant])
        roles.append(grant.role)

    assert roles == ["qa", "qa", "dev", "qa", "qa", "qa"]


def test_room_that_the_first_in_line_cannot_use_goes_to_the_next(desk: Desk) -> None:
    desk.cap(f"pair:{A}:qa", 2)
    first, second = desk.grants(*offers(2, A))
    urgent, same_group, other = (
        offer(A, priority=1, group="repo"),
        offer(A, group="repo", waited=60),
        offer(A),
    )
    assert desk.grants(urgent, same_group, other) == []  # all parked where the tenant has no room
    assert [grant.activity_id for grant in desk.grants(release=[first])] == [urgent.activity_id]

    granted = desk.grants(release=[second])

    assert [grant.activity_id for grant in granted] == [other.activity_id]


def test_work_that_is_parked_beside_withdrawn_work_starts_after_a_change_of_limits(desk: Desk) -> None:
    desk.put(pools={"qa": "qa", "dev": "qa"}, **{"pair:*:dev": 9, f"groups:{A}:*": 1})
    in_group = [
        offer(A, role=role, group="repo")._replace(group_scope="tenant") for role in ("qa", "qa", "dev")
    ]
    desk.grants(in_group[0])
    desk.grants(*in_group[1:])

    exchange(Exchange(withdrawals=[in_group[1].activity_id]))
    desk.cap(f"groups:{A}:*", 2)

    assert [grant.activity_id for grant in desk.grants()] == [in_group[2].activity_id]


def test_tenants_whose_work_ignores_pauses_take_turns_in_the_order_of_their_requests(desk: Desk) -> None:
    desk.put(seat__qa=0, **{f"tenant:{tenant}": 0 for tenant in (A, B)})
    desk.put(**{f"past:tenant:{tenant}": "none" for tenant in (A, B)})  # type: ignore[arg-type]
    for tenant in (B, A):
        desk.grants(*(each._replace(run_now_at=datetime.now(UTC)) for each in offers(2, tenant)))

    desk.put(seat__qa=4)

    assert [grant.tenant_id for grant in desk.grants()] == [B, A, B, A]


def test_background_work_starts_although_urgent_work_never_runs_dry(desk: Desk, settings: Any) -> None:
    settings.ORCHESTRATOR_AGEING_SECONDS = 30
    desk.put(seat__qa=1)
    background = offer(B, priority=20, waited=31)
    (running,) = desk.grants(offer(A, priority=1))
    desk.grants(background)
    turns = 0
    while running.activity_id != background.activity_id:
        turns += 1
        (running,) = desk.grants(offer(A, priority=1), release=[running])

    assert turns <= settings.ORCHESTRATOR_AGED_SHARE


def test_background_work_that_ran_for_want_of_other_work_waits_for_its_share_again(
    desk: Desk, settings: Any
) -> None:
    settings.ORCHESTRATOR_AGEING_SECONDS, settings.ORCHESTRATOR_AGED_SHARE = 30, 3
    desk.put(seat__qa=1)
    running = desk.grants(offer(A, priority=1))
    desk.grants(*offers(2, A, priority=1), *offers(3, B, priority=20, waited=60))

    turns = []
    for more in ([], [], [], offers(3, A, priority=1), [], []):
        running = desk.grants(*more, release=running)
        turns += [grant.tenant_id for grant in running]

    assert turns == [A, A, B, A, A, B]


def test_ageing_never_puts_work_before_that_of_another_tenant_in_the_same_band(
    desk: Desk, settings: Any
) -> None:
    settings.ORCHESTRATOR_AGEING_SECONDS = 1
    desk.put(seat__qa=0)
    desk.grants(*offers(100, A, waited=3600), *offers(5, B))

    desk.put(seat__qa=10)

    assert Counter(grant.tenant_id for grant in desk.grants())[B] == 5


def test_a_wiped_redis_grants_nothing_until_it_is_rebuilt(desk: Desk) -> None:
    (grant,) = desk.grants(offer())

    client().delete(keys.pointer())

    with pytest.raises(Closed):
        desk.grants(offer())
    with pytest.raises(Closed):
        admission.start(grant.activity_id, grant.grant)


def test_the_reason_of_waiting_names_the_scope_without_room(desk: Desk) -> None:
    desk.cap(f"tenant:{A}", 1)
    desk.grants(offer())
    waiting = offer()
    desk.grants(waiting)

    state = admission.inspect(waiting.activity_id)

    assert (state["state"], state["at"], state["used"], state["cap"], state["position"]) == (
        "waiting",
        f"tenant:{A}",
        1,
        1,
        1,
    )


def test_no_keys_are_left_when_all_work_is_done(desk: Desk) -> None:
    desk.cap(f"pair:{A}:qa", 2)
    grants = desk.grants(*offers(6), *offers(2, B, group="g"), offer(C, priority=20))
    while grants:
        grants = desk.grants(release=grants)

    leftover = {
        key.decode().removeprefix(keys.generation(GENERATION))
        for key in client().scan_iter(f"{keys.generation(GENERATION)}*")
    }
    assert not {
        name
        for name in leftover
        if name.startswith(
            (
                "queue:",
                "lanes",
                "ready:",
                "parked",
                "slots",
                "used",
                "entries",
                "held",
                "places",
                "tenants",
                "waiting",
                "backlog",
            )
        )
    }


@pytest.mark.parametrize(
    ("workers", "pools", "seats"),
    [
        ([(["a"], 2), (["a"], 3), (["b"], 4)], {"a": "a", "b": "b"}, {"a": 5, "b": 4}),
        ([(["a", "b"], 2), (["b", "c"], 3)], {"a": "a", "b": "a", "c": "a"}, {"a": 5}),
        ([([], 4)], {}, {}),
    ],
)
def test_roles_that_one_worker_serves_together_form_one_pool(
    workers: list[tuple[list[str], int]], pools: dict[str, str], seats: dict[str, int]
) -> None:
    assert limits.worker_pools(workers) == (pools, seats)


SCOPES = (f"pair:{A}:qa", f"tenant:{A}", "role:qa", "global", "seat:qa")


@pytest.mark.parametrize("scope", SCOPES)
def test_urgent_work_is_next_whichever_limit_is_full_and_however_old_other_work_is(
    desk: Desk, scope: str
) -> None:
    desk.cap(scope, 1)
    (running,) = desk.grants(*offers(20, A, waited=3600))
    urgent = offer(A, priority=1)
    desk.grants(urgent)

    assert [grant.activity_id for grant in desk.grants(release=[running])] == [urgent.activity_id]


@pytest.mark.parametrize("scope", ["role:qa", "global", "seat:qa"])
def test_tenants_take_turns_by_weight_whichever_shared_limit_is_full(desk: Desk, scope: str) -> None:
    desk.put(weights={str(B): 3})
    desk.cap(scope, 0)
    desk.grants(*offers(40, A, waited=3600), *offers(40, B))

    desk.cap(scope, 40)

    assert Counter(grant.tenant_id for grant in desk.grants()) == {A: 10, B: 30}


def test_a_limit_of_a_tenant_over_all_roles_gives_its_slot_to_its_most_urgent_work_of_any_role(
    desk: Desk,
) -> None:
    desk.put(pools={"qa": "qa", "dev": "dev"}, seat__dev=100)
    desk.cap(f"tenant:{A}", 1)
    (running,) = desk.grants(offer(A), *offers(5, A, role="dev", waited=100))
    urgent = offer(A, role="qa", priority=1)
    desk.grants(urgent)

    assert [grant.activity_id for grant in desk.grants(release=[running])] == [urgent.activity_id]


def test_a_tenant_that_joins_a_busy_role_starts_level_with_the_tenants_that_wait_there(desk: Desk) -> None:
    desk.put(pools={"qa": "qa", "dev": "qa"})
    desk.cap("role:qa", 1)
    desk.grants(*offers(30, A))
    desk.grants(*offers(50, C, role="dev"))  # far more than A has in the same pool
    desk.grants(*offers(30, B))

    desk.cap("role:qa", 7)

    assert Counter(grant.tenant_id for grant in desk.grants()) == {A: 3, B: 3}


def test_a_generation_with_another_layout_counts_as_missing(desk: Desk) -> None:
    client().set(keys.pointer(), "g1")

    with pytest.raises(Closed):
        desk.grants(offer())


def position(waiting: Offer) -> int:
    value: int = admission.inspect(waiting.activity_id)["position"]
    return value


@pytest.mark.parametrize("scope", SCOPES)
def test_the_position_counts_the_work_that_is_granted_earlier(desk: Desk, scope: str) -> None:
    desk.cap(scope, 1)
    old = [offer(A, waited=waited) for waited in (102, 101, 100)]
    grouped = [offer(A, group="repo", waited=waited) for waited in (52, 51)]
    last, urgent = offer(A), offer(A, priority=1)
    desk.grants(old[0])

    desk.grants(*old[1:], *grouped, last, urgent)

    positions = [position(each) for each in (urgent, old[1], old[2], grouped[1], last)]
    assert positions == [1, 2, 3, 5, 6]


@pytest.mark.parametrize("scope", ["role:qa", "global", "seat:qa"])
def test_the_position_counts_the_turns_of_other_tenants(desk: Desk, scope: str) -> None:
    desk.cap(scope, 0)
    mine = [offer(B, waited=1), offer(B)]
    desk.grants(*offers(50, A, waited=100), *mine, offer(C, priority=1))

    assert [position(each) for each in mine] == [3, 5]  # C, A, B, A, B
    desk.cap(scope, 5)
    assert [grant.tenant_id for grant in desk.grants()] == [C, A, B, A, B]


def test_the_position_counts_also_what_is_not_counted_exactly(desk: Desk) -> None:
    groups, last = [offer(group=f"{number}", waited=1) for number in range(205)], offer()
    desk.cap("seat:qa", 0)

    desk.grants(*groups, last)
    assert position(last) == 206

    desk.grants(*[offer(UUID(int=number), waited=1) for number in range(1000, 1205)])
    assert position(last) == 411


def test_the_position_does_not_count_the_own_tenant_after_many_others(desk: Desk) -> None:
    mine = offer()
    desk.cap("seat:qa", 0)

    desk.grants(*[offer(UUID(int=number), waited=1) for number in range(1000, 1205)], mine)

    assert position(mine) == 206


def test_the_position_without_a_worker_counts_only_work_of_the_role(desk: Desk) -> None:
    others, mine = (
        [offer(role="seo", waited=2), offer(B, role="pr", waited=2)],
        offers(2, role="dev", waited=1),
    )

    desk.grants(*others, *mine)

    assert {position(each) for each in mine} == {1, 2}


def redis_commands_of(action: Callable[[], Any]) -> list[str]:
    """Return the commands that Redis runs during the action in the database of this process, including those of scripts.

    Other test processes use the same server, but not the same database.
    """
    database = client().get_connection_kwargs().get("db", 0)
    with client().monitor() as monitor:
        action()
        end = f"end of {uuid4()}"
        client().echo(end)
        names: list[str] = []
        for each in monitor.listen():
            if end in each["command"]:
                return names
            if int(each["db"]) == database:
                names.append(each["command"].partition(" ")[0].lower())
    raise AssertionError("The monitor of the server ended.")


def test_a_work_cycle_takes_few_redis_commands(desk: Desk) -> None:
    """Redis works for all tenants at once and on one core, so every command of a cycle counts."""
    desk.cap(f"tenant:{A}", 1)
    first, *others = (offer(waited=seconds) for seconds in (6, 5, 4, 3, 2, 1))
    held = desk.grants(first, others[0])  # as in a busy system: one runs, one waits
    together, start = [], []

    for before, after in pairwise(others):
        granted: list[Any] = []
        together.append(redis_commands_of(lambda: granted.extend(desk.grants(after, release=held))))  # noqa: B023
        held = granted
        start.append(redis_commands_of(lambda: admission.start(held[0].activity_id, held[0].grant)))  # noqa: B023
        assert [each.activity_id for each in held] == [before.activity_id]

    assert max(map(len, together)) <= 56, together
    assert max(map(len, start)) <= 7, start  # one of them only until the script is cached


def run_now(count: int, tenant: UUID = A, **more: Any) -> list[Offer]:
    """Return work that a person requested to run, the more of it the earlier."""
    return [
        each._replace(run_now_at=datetime.now(UTC) - timedelta(minutes=number + 1))
        for number, each in enumerate(offers(count, tenant, **more))
    ]


def test_requests_to_run_now_that_cannot_start_do_not_delay_those_of_other_tenants(desk: Desk) -> None:
    desk.put(**{f"tenant__{A}": 0, f"past__tenant__{A}": 0, f"tenant__{B}": 0, f"past__tenant__{B}": 9})
    desk.grants(*run_now(300))

    assert len(desk.grants(*run_now(1, B))) == 1
    scripts.check_structure()


def test_work_that_a_person_lets_run_despite_a_pause_does_not_wait_for_the_pause(desk: Desk) -> None:
    desk.put(**{f"tenant__{A}": 0, f"past__tenant__{A}": 9, "global": 0})
    (requested,), waiting = run_now(1), offer()
    desk.grants(requested, waiting)

    assert admission.inspect(requested.activity_id)["at"] == "global"
    assert admission.inspect(waiting.activity_id)["at"] == f"tenant:{A}"


def test_requests_to_run_now_of_many_tenants_are_checked_in_turn(desk: Desk) -> None:
    stuck = [UUID(int=number) for number in range(100, 150)]
    desk.put(**{f"tenant__{each}": 0 for each in [*stuck, B]}, **{f"past__tenant__{B}": 9})
    desk.grants(*(each for tenant in stuck for each in run_now(1, tenant)))

    assert sum(len(desk.grants(*offers)) for offers in [run_now(1, B), [], []]) == 1


def test_requests_to_run_now_that_cannot_start_do_not_hide_others_of_their_tenant(desk: Desk) -> None:
    desk.put(pools={"qa": "qa", "dev": "dev"}, seat__dev=9, **{f"tenant__{A}": 0, f"past__tenant__{A}": 999})
    desk.cap(f"pair:{A}:qa", 0)
    desk.grants(*run_now(300))

    assert sum(len(desk.grants(*offers)) for offers in [run_now(1, role="dev"), [], []]) == 1


def test_tenants_take_turns_with_their_requests_to_run_now(desk: Desk) -> None:
    desk.put(
        seat__qa=0,
        **{f"tenant__{each}": 0 for each in (A, B)},
        **{f"past__tenant__{each}": 9 for each in (A, B)},
    )
    desk.grants(*run_now(5), *run_now(2, B))

    tenants = []
    for seats in range(1, 6):
        desk.cap("seat:qa", seats)
        tenants += [grant.tenant_id for grant in desk.grants()]

    assert tenants == [A, B, A, B, A]


def test_run_now_takes_effect_once_and_leaves_nothing_behind(desk: Desk) -> None:
    desk.put(**{f"tenant__{A}": 0, f"past__tenant__{A}": 9})
    first, second = run_now(2)
    (grant, _) = desk.grants(first, second)
    admission.start(grant.activity_id, grant.grant)

    assert desk.grants(first._replace(run_now_at=None), release=[grant]) == []
    exchange(Exchange(withdrawals=[first.activity_id, second.activity_id]))
    assert not [name for name in client().keys(f"{keys.pointer()}:*") if b"express" in name]


def test_only_work_that_has_started_keeps_its_slot_when_its_workers_leave(desk: Desk) -> None:
    first, second = (each._replace(files=("src/**",)) for each in run_now(1) + run_now(1, B))
    grants = {grant.activity_id: grant for grant in desk.grants(first, second)}
    admission.start(first.activity_id, grants[first.activity_id].grant)
    desk.put(pools={"dev": "dev"})

    kept = admission.audit(withdraw_orphans=True)

    assert [slot.activity_id for slot in kept] == [first.activity_id]
    assert admission.inspect(second.activity_id)["state"] == "waiting"
    assert find_unknown([second._replace(run_now_at=None)]) == set(), "it has lost its place"
    assert find_unknown([second]) == {second.activity_id}, "that people let it run now must be said again"
    scripts.check_structure()


def test_an_offer_without_a_role_is_left_out_and_the_others_are_granted(desk: Desk) -> None:
    good = offer()

    granted = desk.grants(offer()._replace(role=None), good)  # type: ignore[arg-type]

    assert [grant.activity_id for grant in granted] == [good.activity_id]


def test_the_relay_keeps_a_limited_number_of_changes_while_redis_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if work is cancelled in masses."""
    monkeypatch.setattr(relay, "KEPT_AT_MOST", 3)
    waiting = relay._Relay.__new__(relay._Relay)
    waiting._reset()
    monkeypatch.setattr(waiting, "_wake", lambda: None)

    for _ in range(5):
        waiting.put(Exchange(withdrawals=[uuid4()]))

    assert len(waiting._waiting.withdrawals) == 3


GROUPED = f"{A}|qa|3|role||||g"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (("del", "grants"), "grants, floors"),
        (("hset", "caps", "pair:*:qa", "junk"), "caps"),
        (("hset", "weights", "*", "junk"), "weights"),
        (("hset", "pools", "qa", "none"), "pools"),
        (("del", "unstarted"), "unstarted"),
        (("zadd", "unstarted", 1, "stranger"), "unstarted"),
        (("hset", "used", "global", 7), "used"),
        (("hset", "held", "qa", 7), "held"),
        (("hset", "waiting", "dev|3", 7), "waiting, backlog"),
        (("hset", "backlog", f"{A}|dev|3", 7), "waiting, backlog"),
        (("zadd", f"express:{B}", 1, "stranger"), f"express:{B}"),
        (("zadd", "express", 1, str(A)), "express"),
        (("hset", f"places:{A}", "dev|3", "junk"), f"places:{A}"),
        (("zincrby", "ready:dev:3", 7, "*"), "ready:dev|3"),
        (("zadd", "ready:dev:3", 1, "stranger"), "*ready:dev:3"),
        (("sadd", f"parked:group:{A}:qa:g", "stranger"), "tenants, lanes, parked"),
        (("hset", "lanes", f"{A}|qa|1|", ""), "tenants, lanes, parked"),
        (("del", f"queue:{A}|dev|3|"), f"queue:{A}|dev|3|"),
        (("zadd", f"lanes:qa:3:{B}", 7, f"{B}|qa|3|"), f"lanes of {B}|qa|3|"),
        (("hset", "lanes", GROUPED, "group:other"), "parked:group:other"),
    ],
    ids=lambda value: " ".join(map(str, value[:2])).replace(str(A), "a").replace(str(B), "b") if isinstance(value, tuple) else "",
)  # fmt: skip
def test_every_inconsistency_is_noticed_and_closes_admission(
    desk: Desk, damage: tuple[Any, ...], reason: str
) -> None:
    """There is work that has started, that has not, and that waits: for its group, for a seat, and for its tenant."""
    desk.put(
        pools={"qa": "qa", "dev": "dev"}, weights={str(A): 2}, seat__dev=0,
        **{"pair__*__dev": 9, f"tenant__{B}": 0, f"past__tenant__{B}": 0},
    )  # fmt: skip
    first, second = offer(group="g", waited=9), offer(group="g", waited=8)
    started, _ = desk.grants(first, second, offer(), offer(role="dev"), *run_now(1, B))
    admission.start(started.activity_id, started.grant)
    scripts.check_structure()
    command, name, *arguments = damage
    key = keys.generation(GENERATION) + name
    if "*" in arguments:
        present = client().hkeys(key) if command == "hset" else client().zrange(key, 0, 0)
        arguments = [present[0] if each == "*" else each for each in arguments]
    client().execute_command(command, key, *arguments)

    reason = reason.replace("*", keys.generation(GENERATION))  # which differs in each test process
    assert scripts.run("structure", b"0") == f"broken: {reason}".encode()
    assert client().get(keys.pointer()) is None
