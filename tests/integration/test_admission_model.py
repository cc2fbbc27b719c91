"""Compares the admission scripts on a real server with a plain model, grant by grant, for any limits and any order of events.

The sequences are the same each time; `ADMISSION_EXAMPLES=2000` tries new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from activities import admission
from activities.admission import Exchange, Grant, exchange, keys, scripts
from activities.admission.exchange import Hold, Offer, Release
from tenants.redis import client
from tests import redis_clock
from tests.admission_reference import FILES, Reference, Waiter

pytestmark = pytest.mark.long

EXAMPLES = int(os.environ.get("ADMISSION_EXAMPLES", "0"))
TENANTS = [str(UUID(int=number)) for number in (1, 2, 3)]
ROLES = ["dev", "qa", "seo"]
BEGINS = 1_700_000_000_000
AGEING_SECONDS, SHARE = 30, 3
#: Half of the work declares no files, the rest one or two patterns.
PIPELINE = UUID(int=9)
PATTERNS = [[], *([pattern] for pattern in FILES)]
CLOCK_LINE = 'redis.call("TIME")'

caps = st.sampled_from([0, 1, 1, 2, 3])
scopes = st.one_of(
    st.just("global"),
    st.sampled_from([f"role:{role}" for role in ROLES]),
    st.sampled_from([f"tenant:{tenant}" for tenant in TENANTS]),
    st.builds(lambda t, r: f"pair:{t}:{r}", st.sampled_from(TENANTS), st.sampled_from(ROLES)),
    st.builds(lambda t, r: f"groups:{t}:{r}", st.sampled_from(TENANTS), st.sampled_from([*ROLES, "*"])),
)
#: Pauses of tenants, their roles and their pipelines, with the cap that applies without the pause.
pauses = st.dictionaries(
    st.one_of(
        st.sampled_from([f"tenant:{tenant}" for tenant in TENANTS]),
        st.builds(lambda t, r: f"pair:{t}:{r}", st.sampled_from(TENANTS), st.sampled_from(ROLES)),
        st.sampled_from([f"pipeline:{tenant}:{PIPELINE}" for tenant in TENANTS]),
    ),
    st.sampled_from([1, 2, "none"]),
    max_size=2,
).map(
    lambda caps: (
        dict.fromkeys(caps, 0)
        | {f"past:{scope}": cap for scope, cap in caps.items() if not scope.startswith("pipeline")}
    )
)
rates = st.dictionaries(
    st.builds(lambda t, r: f"rate:{t}:{r}", st.sampled_from(TENANTS), st.sampled_from(ROLES)),
    st.sampled_from(["1|1", "0.5|2", "40|1", "0.01|3"]),
    max_size=2,
)
#: The limits of starts of one role: that of all tenants, and tenants' own.
guards = st.builds(
    lambda role, limits: {
        f"starts:{whose}{role}": limit for whose, limit in limits.items() if whose or limit != "none"
    },
    st.sampled_from(ROLES),
    st.dictionaries(
        st.sampled_from(["", "", *(f"{t}:" for t in TENANTS)]), st.sampled_from([1, 3, 5, "none"]), max_size=2
    ),
)
limits = st.fixed_dictionaries(
    {
        "rates": rates,
        "guards": guards,
        "pauses": pauses,
        "some": st.dictionaries(scopes, caps, max_size=4),
        "default": st.sampled_from([1, 2, 100]),
        "seats": st.lists(st.integers(0, 4), min_size=3, max_size=3),
        "shared": st.sampled_from(
            [{}, {"qa": "dev"}, {"qa": "dev", "seo": "dev"}, {"seo": None}]  # None: no worker serves it
        ),
        "weights": st.dictionaries(st.sampled_from(TENANTS), st.sampled_from([2, 4, 5]), max_size=2),
    }
)
works = st.lists(
    st.tuples(
        st.sampled_from(TENANTS),
        st.sampled_from(ROLES),
        st.sampled_from([1, 4, 5, 10, 10, 15, 20]),
        st.sampled_from(
            [(None, "role"), (None, "role"), ("repo", "role"), ("site", "role"), ("repo", "tenant")]
        ),
        st.integers(0, 200_000),  # age in milliseconds
    ),
    max_size=8,
)


#: The activities that got a passed-on slot, in all sequences.
PASSED: list[Waiter] = []


class Admission(RuleBasedStateMachine):
    """Runs the same operations on the scripts and on the model."""

    @initialize(values=limits)
    def begin(self, values: dict[str, Any]) -> None:
        client().delete(*client().keys(f"{keys.pointer()}*") or ["none"])
        self.model = Reference(BEGINS, AGEING_SECONDS * 1000, SHARE)
        self.held: dict[str, Grant] = {}
        self.offers: dict[str, Offer] = {}
        self.ids = 0
        self.tell_time()
        self.put(values, keys.new_generation("g1"))
        client().set(keys.pointer(), keys.new_generation("g1"))

    def tell_time(self) -> None:
        client().delete(keys.pointer() + ":clock")
        client().rpush(keys.pointer() + ":clock", self.model.now // 1000, self.model.now % 1000 * 1000)

    def put(self, values: dict[str, Any], generation: str = "") -> None:
        pools = {role: role for role in ROLES} | values["shared"]
        limit: dict[str, Any] = {
            "caps": {f"pair:*:{role}": values["default"] for role in ROLES}
            | values["some"]
            | values["rates"]
            | values["guards"]
            | values["pauses"],
            "weights": values["weights"],
            "pools": {role: pool for role, pool in pools.items() if pool},
        }
        limit["caps"] |= {f"seat:{role}": seats for role, seats in zip(ROLES, values["seats"], strict=True)}
        document = orjson.dumps(limit, option=orjson.OPT_SORT_KEYS)
        scripts.run("limits", generation, document.decode(), document)
        self.model.limit(limit)

    @rule(values=limits)
    def change_limits(self, values: dict[str, Any]) -> None:
        self.put(values)
        self.trade(Exchange())

    @rule(
        work=works,
        released=st.lists(st.integers(0, 9), max_size=4),
        withdrawn=st.lists(st.integers(0, 99), max_size=1),
        overtaking=st.lists(st.integers(0, 9), max_size=2),
        moved=st.lists(st.tuples(st.integers(0, 99), st.sampled_from([1, 5, 10, 12, 20])), max_size=2),
    )
    def exchange(
        self,
        work: list[tuple[Any, ...]],
        released: list[int],
        withdrawn: list[int],
        overtaking: list[int],
        moved: list[tuple[int, int]],
    ) -> None:
        offers = [self.offers[id] for number in overtaking if (id := self.one_of(list(self.held), number))]
        for number, priority in moved:
            if id := self.one_of([*self.offers], number):  # also of work that holds a slot or has ended
                offers.append(self.offers[id]._replace(priority=priority))
        offers += self.offers_of(work)
        self.offers |= {str(offer.activity_id): offer for offer in offers}
        self.trade(
            Exchange(
                offers=offers,
                releases=[
                    Release(UUID(id), self.held[id].grant)
                    for number in released
                    if (id := self.one_of(list(self.held), number))
                ],
                withdrawals=[
                    UUID(id)
                    for number in withdrawn
                    if (id := self.one_of([*self.model.waiting, *self.held], number))
                ],
            )
        )

    def offers_of(self, work: list[tuple[Any, ...]]) -> list[Offer]:
        offers = []
        for tenant, role, priority, group, age in work:
            self.ids += 1
            since = datetime.fromtimestamp((self.model.now - age) / 1000, UTC)
            offer = Offer(UUID(int=self.ids), UUID(tenant), role, priority, since, *group)
            offers.append(offer._replace(pipeline_id=None if age % 3 else PIPELINE))
        return offers

    def one_of(self, ids: list[str], number: int) -> str | None:
        return ids[number % len(ids)] if ids else None

    @rule(
        tenant=st.sampled_from(TENANTS),
        role=st.sampled_from(ROLES),
        urgent=st.booleans(),
        seconds=st.sampled_from([1, 30]),
    )
    def hold(self, tenant: str, role: str, urgent: bool, seconds: int) -> None:
        """A provider refuses work of a role for a while."""
        self.trade(Exchange(holds=[Hold(UUID(tenant), role, urgent, seconds, "provider_limit", "x")]))

    def trade(self, what: Exchange) -> None:
        for hold in what.holds:
            self.model.hold(str(hold.tenant_id), hold.role, hold.urgent, int(hold.seconds * 1000))
        for release in what.releases:
            self.model.release(str(release.activity_id))
        for gone in what.withdrawals:
            self.model.withdraw(str(gone))
        for offer in {offer.activity_id: offer for offer in what.offers}.values():
            self.model.offer(Waiter(*offer.arguments()))  # type: ignore[arg-type]
        granted = self.agrees(what)
        self.held |= {str(grant.activity_id): grant for grant in granted}
        self.held = {id: grant for id, grant in self.held.items() if id in self.model.slots}

    def agrees(self, what: Exchange) -> Sequence[Grant]:
        expected = [waiter.id for waiter in self.model.grant_express()]
        while waiter := self.model.grant():
            expected.append(waiter.id)
        granted = exchange(what)
        assert [str(grant.activity_id) for grant in granted] == expected
        return granted

    @rule(number=st.integers(0, 9), accepted=st.booleans())
    def start(self, number: int, accepted: bool) -> None:
        if id := self.one_of(list(self.held), number):
            slot = self.model.slots[id]
            assert admission.start(UUID(id), self.held[id].grant)
            slot.started = slot.started or self.model.now
            if accepted:
                admission.accept(UUID(id), self.held[id].grant)
                slot.pool = ""

    @rule(milliseconds=st.sampled_from([1, 700, 5_000, 40_000]))
    def wait(self, milliseconds: int) -> None:
        self.model.now += milliseconds
        self.tell_time()

    @rule()
    def audit(self) -> None:
        admission.audit(withdraw_orphans=False)
        self.model.audit()

    @invariant()
    def fits_together(self) -> None:
        scripts.check_structure()


class RunNow(Admission):
    """Two tenants are paused, and people let some of their work run now."""

    def put(self, values: dict[str, Any], generation: str = "") -> None:
        paused = {f"tenant:{tenant}": 0 for tenant in TENANTS[:2]}
        past = {f"past:{scope}": "none" for scope in paused}
        super().put({**values, "pauses": {**past, **values["pauses"], **paused}}, generation)

    @rule(numbers=st.lists(st.integers(0, 99), max_size=4), seconds=st.integers(0, 3))
    def run_now(self, numbers: list[int], seconds: int) -> None:
        ids = {id for number in numbers if (id := self.one_of([*self.model.waiting], number))}
        at = datetime.fromtimestamp(self.model.now // 1000 - seconds, UTC)
        offers = [self.offers[id]._replace(run_now_at=at) for id in sorted(ids)]
        self.offers |= {str(offer.activity_id): offer for offer in offers}
        self.trade(Exchange(offers=offers))


class PassingOn(Admission):
    """Little work and some seats, so that often no work waits."""

    def put(self, values: dict[str, Any], generation: str = "") -> None:
        super().put({**values, "seats": [seats + 1 for seats in values["seats"]]}, generation)

    def offers_of(self, work: list[tuple[Any, ...]]) -> list[Offer]:
        return super().offers_of(
            [
                (*one[:3], (None, "role"), one[4]) if number % 3 else one
                for number, one in enumerate(work[:2], self.ids)
            ]
        )

    @rule(number=st.integers(0, 9), work=works)
    def pass_on(self, number: int, work: list[tuple[Any, ...]]) -> None:
        """Pass a slot on to the following activity. This succeeds only if it would be granted next and no other work waits."""
        if number % 2:
            self.trade(Exchange(withdrawals=[UUID(id) for id in self.model.waiting]))
        if not self.held:
            offers = self.offers_of(work)
            self.offers |= {str(offer.activity_id): offer for offer in offers}
            self.trade(Exchange(offers=offers))
        if not (id := self.one_of(list(self.held), number)):
            return
        if number != 8:
            self.start(number, accepted=number == 9)
        slot = self.model.slots[id]
        ended, self.ids = slot.waiter, self.ids + 1
        follower = replace(
            ended, id=str(UUID(int=self.ids)), since=self.model.now, score=self.model.now + ended.score - ended.since
        )  # fmt: skip
        after = deepcopy(self.model)
        after.release(id)
        after.offer(follower)
        alone = slot.started and slot.pool and not (self.model.waiting or id in self.model.again)
        needs_more = bool(ended.files or ended.group.rpartition("|")[2])
        may = bool(alone and not needs_more and after.grant())

        passed = admission.PassedSlot(UUID(id), self.held[id].grant, UUID(follower.id)).grant()

        assert bool(passed) == may
        if passed:
            after.slots[follower.id].started = after.now
            self.model = after
            del self.held[id]
            self.held[follower.id] = Grant(
                UUID(follower.id), UUID(ended.tenant), ended.role, passed, started=True
            )
            since = datetime.fromtimestamp(follower.since / 1000, UTC)
            self.offers[follower.id] = self.offers[id]._replace(activity_id=UUID(follower.id), since=since)
            PASSED.append(follower)


class OnFiles(Admission):
    """Some of the work declares files. Its order depends on what was examined before, so only forbidden grants are checked."""

    #: The work that was examined before, with these limits.
    in_line: list[Waiter] = []

    def put(self, values: dict[str, Any], generation: str = "") -> None:
        super().put(values, generation)
        self.in_line = []

    def offers_of(self, work: list[tuple[Any, ...]]) -> list[Offer]:
        return [
            offer._replace(files=tuple(sorted({*PATTERNS[number % 7], *PATTERNS[number // 7 % 7]})))
            for offer, (*_, number) in zip(super().offers_of(work), work, strict=True)
        ]

    def agrees(self, what: Exchange) -> Sequence[Grant]:
        granted = exchange(what)
        for grant in granted:
            waiter = self.model.waiting[str(grant.activity_id)]
            assert self.model.may_start(waiter), f"no room for {waiter}"
            assert not self.model.meets_running(waiter), f"others work on the files of {waiter}"
            waiting = [w for w in self.model.in_line_for_files() if w in self.in_line]
            overtaken = [w for w in waiting if w.meets(waiter) and w.comes_before(waiter)]
            assert not overtaken, f"{waiter} has overtaken {overtaken}"
            self.model.begin(waiter)
        startable = [w for w in self.model.waiting.values() if self.model.may_start(w)]
        keeping = self.model.wait_for_files()
        forgotten = [w for w in startable if w not in keeping]
        assert not forgotten, f"nothing keeps {forgotten} from starting"
        self.in_line = self.model.in_line_for_files()
        return granted


class OnFewFiles(OnFiles):
    """Work of one tenant on few sets of files: many wait in one lane, so the first of the lane changes often."""

    def offers_of(self, work: list[tuple[Any, ...]]) -> list[Offer]:
        return [
            offer._replace(tenant_id=UUID(TENANTS[0]), group_key=None, group_scope="role", files=tuple(PATTERNS[number % 4]))
            for offer, (*_, number) in zip(super().offers_of(work), work, strict=True)
        ]  # fmt: skip


@pytest.fixture
def clock_of_the_test(database: None) -> Iterator[None]:
    """Replace the one line of the scripts that reads the time."""

    def changed(text: str) -> str:
        assert text.count(CLOCK_LINE) == 1
        return text.replace(CLOCK_LINE, 'redis.call("LRANGE", KEYS[1] .. ":clock", 0, 1)')

    with redis_clock.admission_changed(changed):
        yield


@pytest.mark.usefixtures("clock_of_the_test")
def test_every_grant_is_the_one_that_the_model_expects(settings: Any) -> None:
    settings.ORCHESTRATOR_AGEING_SECONDS, settings.ORCHESTRATOR_AGED_SHARE = AGEING_SECONDS, SHARE

    run_state_machine_as_test(Admission, settings=_profile())


@pytest.mark.usefixtures("clock_of_the_test")
def test_work_that_ignores_pauses_is_granted_first_and_only_if_everything_else_has_room(
    settings: Any,
) -> None:
    settings.ORCHESTRATOR_AGEING_SECONDS, settings.ORCHESTRATOR_AGED_SHARE = AGEING_SECONDS, SHARE

    run_state_machine_as_test(RunNow, settings=_profile())


@pytest.mark.usefixtures("clock_of_the_test")
def test_a_slot_is_passed_on_only_to_work_that_would_be_granted_next(
    settings: Any,
) -> None:
    settings.ORCHESTRATOR_AGEING_SECONDS, settings.ORCHESTRATOR_AGED_SHARE = AGEING_SECONDS, SHARE
    PASSED.clear()

    run_state_machine_as_test(PassingOn, settings=_profile())

    assert len(PASSED) > 5, "the sequences pass on hardly any slot"


@pytest.mark.usefixtures("clock_of_the_test")
@pytest.mark.parametrize("machine", [OnFiles, OnFewFiles], ids=["many sets of files", "few sets of files"])
def test_work_on_common_files_never_overlaps_is_not_overtaken_and_waits_for_nothing_else(
    machine: type[OnFiles],
) -> None:
    run_state_machine_as_test(machine, settings=_profile())


ONE, TWO = TENANTS[:2]
ROOMY: dict[str, Any] = {
    "rates": {}, "guards": {}, "pauses": {}, "some": {}, "default": 100, "seats": [2, 2, 2], "shared": {}, "weights": {},
}  # fmt: skip


def passing_on(**values: Any) -> PassingOn:
    """Return a machine in which one activity holds a slot and no work waits."""
    machine = PassingOn()
    machine.begin({**ROOMY, **values})
    machine.exchange([(ONE, "dev", 10, (None, "role"), 0)], [], [], [], [])
    return machine


@pytest.mark.usefixtures("clock_of_the_test")
@pytest.mark.parametrize(
    ("values", "passed"),
    [({"rates": {f"rate:{ONE}:dev": "0.01|3"}}, 2), ({"guards": {"starts:dev": 3}}, 2), ({}, 5)],
    ids=["a rate", "starts of all tenants", "nothing"],
)
def test_a_slot_that_is_passed_on_counts_as_a_start_for_rate_limits(
    values: dict[str, Any], passed: int
) -> None:
    PASSED.clear()
    machine = passing_on(**values)

    for _ in range(5):
        machine.pass_on(number=0, work=[])  # as often as the model allows

    assert len(PASSED) == passed


@pytest.mark.usefixtures("clock_of_the_test")
@pytest.mark.parametrize(
    "happen",
    [
        lambda machine: machine.put({**ROOMY, "seats": [-1, 2, 2]}),
        lambda machine: machine.put({**ROOMY, "shared": {"dev": None}}),
        lambda machine: machine.start(0, accepted=True),
        lambda machine: machine.exchange([], [], [], [machine.start(0, accepted=False) or 0], []),
    ],
    ids=["its seat is gone", "nobody serves the role", "its worker waits no longer", "it was woken again"],
)
def test_a_slot_is_not_passed_on_when_its_conditions_have_changed_meanwhile(
    happen: Callable[[PassingOn], None],
) -> None:
    PASSED.clear()
    machine = passing_on()
    happen(machine)

    machine.pass_on(number=0, work=[])

    assert PASSED == []


def contents(root: str) -> dict[str, Any]:
    """Return the values of all keys of a generation."""
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": client().hgetall, b"set": client().smembers, b"string": client().get,
        b"zset": lambda name: client().zrange(name, 0, -1, withscores=True),
    }  # fmt: skip
    return {name: read[client().type(name)](name) for name in client().scan_iter(f"{root}*")}


@pytest.mark.usefixtures("clock_of_the_test")
@pytest.mark.parametrize(("floor", "time"), [(None, 0), ("role:dev", 90), ("domain:", 90), (None, 90)])
def test_a_slot_that_is_passed_on_leaves_the_same_state_as_a_release_and_a_new_offer(
    floor: str | None, time: int
) -> None:
    """`time`: the virtual time of the tenant served last, in the role or the domain, or that of the tenant itself."""
    machine = passing_on(rates={f"rate:{ONE}:dev": "1|5"}, guards={"starts:dev": 9})
    machine.start(0, accepted=False)
    machine.wait(40_000)
    ((id, grant),) = machine.held.items()
    root = keys.generation(client().get(keys.pointer()).decode())
    ((times, _),) = [(name, value) for name, value in contents(root).items() if b":times:" in name]
    domain = times.decode().rpartition(":times:")[2]
    if floor:
        client().hset(f"{root}floors", f"{floor}{domain if floor == 'domain:' else ''}|3", time)
    elif time:
        client().hset(times, f"{ONE}|3", time)
    before = {name: client().dump(name) for name in contents(root)}
    following = machine.offers[id]._replace(
        activity_id=UUID(int=99), since=datetime.fromtimestamp(machine.model.now / 1000, UTC)
    )

    assert admission.PassedSlot(UUID(id), grant.grant, following.activity_id).grant()
    passed_on = contents(root)
    client().delete(*passed_on)
    for name, value in before.items():
        client().restore(name, 0, value)
    changes = Exchange(releases=[Release(UUID(id), grant.grant)], offers=[following])
    exchange(changes, start_roles=["dev"], start=1)

    assert passed_on == contents(root)


@pytest.mark.usefixtures("clock_of_the_test")
def test_a_slot_that_is_released_unused_does_not_change_the_expected_duration() -> None:
    machine = passing_on()
    for _ in range(2):
        machine.start(0, accepted=False)
        machine.wait(40_000)
        machine.pass_on(number=0, work=[])
    root = keys.generation(client().get(keys.pointer()).decode())

    ((id, grant),) = machine.held.items()
    exchange(Exchange(releases=[Release(UUID(id), grant.grant, unused=True)]))

    assert float(client().hget(f"{root}durations", f"{ONE}|dev")) == 40


@pytest.mark.usefixtures("clock_of_the_test")
def test_a_tenant_that_comes_while_slots_are_passed_on_gets_no_credit_for_its_absence() -> None:
    machine = passing_on(seats=[0, 0, 0])
    for _ in range(3):
        machine.wait(40_000)
        machine.pass_on(number=0, work=[])
    work = [(tenant, "dev", 10, (None, "role"), age) for age in (3, 2, 1) for tenant in (ONE, TWO)]
    for one in work:
        machine.exchange([one], [], [], [], [])
    for _ in work:
        machine.start(0, accepted=False)
        machine.wait(5_000)
        machine.exchange([], [0], [], [], [])  # granted in the order of the model

    assert not machine.model.waiting


def test_the_model_and_the_scripts_match_the_same_files(database: None) -> None:
    text = (scripts.FOLDER / "files.lua").read_text(encoding="utf-8")
    call = f"{text}\nreturn files_may_meet(ARGV[1], ARGV[2], 'acme') and 1 or 0"
    for one, other in product(FILES, repeat=2):
        assert bool(client().eval(call, 0, one, other)) == bool(FILES[one] & FILES[other]), (one, other)


def _profile() -> settings:
    common: dict[str, Any] = {
        "deadline": None, "suppress_health_check": list(HealthCheck), "stateful_step_count": 50,
    }  # fmt: skip
    if EXAMPLES:
        return settings(max_examples=EXAMPLES, phases=(Phase.generate,), print_blob=True, **common)
    return settings(max_examples=15, derandomize=True, database=None, phases=(Phase.generate,), **common)
