"""Threads whose runs start or end at the same moment share statements and exchanges, with the same results as alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event, Lock
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from activities import cancellation, combining, dispatch, publishing, relay
from activities.admission import Grant, scripts
from activities.combining import Combining
from activities.execution import claims
from activities.maintenance import invariants
from activities.models import Activity
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from tenants.context import SYSTEM, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, eventually, in_another_thread, simultaneously
from tests.spending import make_budget

THREADS = 6


@pytest.fixture
def acme(engine: Engine, tenant: Tenant, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenant]:
    """Its calls are not quick, so each run has its own thread, and threads continue as long as work waits."""
    settings.ORCHESTRATOR_CONTINUE_SECONDS = 600.0
    monkeypatch.setattr(combining, "PATIENCE_SECONDS", 20.0)
    monkeypatch.setattr(dispatch.QUICK_WORK, "is_quick", lambda grant: False)
    engine.serve(tenant, max_concurrency=THREADS)
    yield tenant
    relay.flush()
    assert invariants.check() == []
    assert scripts.audit(withdraw_orphans=False) == []


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Record for how many threads each shared statement and each shared exchange was."""
    counts: dict[str, list[int]] = {}
    for name, one in (
        ("CLAIMING", claims.CLAIMING), ("RECORDING", dispatch.RECORDING), ("EXCHANGING", dispatch.EXCHANGING)
    ):  # fmt: skip
        _count(monkeypatch, one, counts.setdefault(name, []))
        _let_others_gather(monkeypatch, one)
    return counts


def _count(monkeypatch: pytest.MonkeyPatch, one: Combining[Any, Any], counts: list[int]) -> None:
    together = one._together

    def counted(what: Sequence[Any]) -> Sequence[Any]:
        counts.append(len(what))
        return together(what)

    monkeypatch.setattr(one, "_together", counted)


def _let_others_gather(monkeypatch: pytest.MonkeyPatch, one: Combining[Any, Any]) -> None:
    """Hold the first call until all others wait."""
    alone, lock, is_first = one._alone, Lock(), Event()

    def waiting(what: Any) -> Any:
        with lock:
            is_mine = not is_first.is_set()
            is_first.set()
        if is_mine:
            eventually(lambda: sum(len(line.waiting) for line in one._queues.values()) == THREADS - 1)
        return alone(what)

    monkeypatch.setattr(one, "_alone", waiting)


def deliver_side_by_side(engine: Engine) -> None:
    messages = [message for _ in range(THREADS) if (message := engine.take())]
    assert len(messages) == THREADS
    outcomes = simultaneously(*[lambda message=message: dispatch.receive(**message) for message in messages])
    assert outcomes == [None] * THREADS


def statuses(tenant: Tenant) -> Counter[str]:
    with tenant_scope(tenant.pk):
        return Counter(Activity.objects.values_list("status", flat=True))


def test_runs_that_begin_or_end_at_the_same_moment_share_statements_and_exchanges(
    engine: Engine, acme: Tenant, sizes: dict[str, list[int]]
) -> None:
    engine.submit(acme, count=THREADS)
    deliver_side_by_side(engine)

    assert statuses(acme) == {"done": THREADS}
    assert {name: numbers[0] for name, numbers in sizes.items()} == dict.fromkeys(sizes, THREADS - 1)


def in_two_waves(engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let each thread run two calls: the second ones wait for each other. Return the messages that were sent."""
    engine.submit(acme, count=2 * THREADS)
    sent: list[Any] = []
    monkeypatch.setattr(publishing, "publish", sent.extend)
    together, lock = Barrier(THREADS), Lock()

    def behaviour(request: AgentRequest) -> AgentResult:
        with lock:
            is_second = len(engine.agent.calls) > THREADS
        if is_second:
            together.wait(20)
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour
    deliver_side_by_side(engine)
    assert statuses(acme) == {"done": 2 * THREADS}
    return sent


def test_each_thread_continues_with_one_of_the_grants_of_their_common_exchange(
    engine: Engine, acme: Tenant, sizes: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_two_waves(engine, acme, monkeypatch) == []
    assert sizes["EXCHANGING"][0] == THREADS - 1


def test_each_thread_releases_its_own_slot_even_if_another_recorded_its_run(
    engine: Engine, acme: Tenant, sizes: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that another thread released would be granted by a message."""
    monkeypatch.setattr(dispatch.EXCHANGING, "do", lambda kind, wanted: dispatch._exchange_alone(wanted))

    assert in_two_waves(engine, acme, monkeypatch) == []
    assert sizes["RECORDING"][0] == THREADS - 1


def test_a_run_that_was_cancelled_meanwhile_is_refused_and_the_others_count(
    engine: Engine, acme: Tenant, sizes: dict[str, list[int]]
) -> None:
    withdrawn = engine.submit(acme, count=THREADS)[3]

    def behaviour(request: AgentRequest) -> AgentResult:
        if request.activity_id == withdrawn:
            in_another_thread(lambda: cancellation.cancel(acme.pk, withdrawn, actor="Ann"))
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour
    deliver_side_by_side(engine)

    assert statuses(acme) == {"done": THREADS - 1, "cancelled": 1}


@contextmanager
def lock_on(activity_id: UUID) -> Iterator[Callable[[], None]]:
    """Lock the row of an activity in another thread until the yielded function is called."""
    held, end = Event(), Event()

    def hold() -> None:
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT FROM activities_activity WHERE id = %s FOR UPDATE", [activity_id])
            held.set()
            end.wait(60)
            cursor.execute("ROLLBACK")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(_closing, hold)
        assert held.wait(60)
        try:
            yield end.set
        finally:
            end.set()


def _closing(action: Callable[[], None]) -> None:
    try:
        action()
    finally:
        connections.close_all()


def test_a_locked_row_holds_up_only_its_own_run(
    engine: Engine, acme: Tenant, sizes: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is released when the others are done, so a wait for it would never end."""
    ids = engine.submit(acme, count=THREADS)
    all_called = Barrier(THREADS + 1)

    def behaviour(request: AgentRequest) -> AgentResult:
        all_called.wait(20)
        all_called.wait(20)
        if request.activity_id == ids[2]:
            eventually(lambda: dispatch.RECORDING._queues)  # the first to record is another
        return Completed(Output(content="done"))

    def lock() -> None:
        all_called.wait(20)
        with lock_on(ids[2]) as unlock:
            all_called.wait(20)
            eventually(lambda: statuses(acme)["done"] == THREADS - 1)
            unlock()

    engine.agent.behaviour = behaviour
    messages = [message for _ in range(THREADS) if (message := engine.take())]
    outcomes = simultaneously(
        lock, *[lambda message=message: dispatch.receive(**message) for message in messages]
    )

    assert outcomes == [None] * (THREADS + 1)
    assert statuses(acme) == {"done": THREADS}
    assert sizes["RECORDING"][0] == THREADS - 1


def test_a_locked_row_holds_up_only_its_own_claim(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    _count(monkeypatch, claims.CLAIMING, sizes)
    _let_others_gather(monkeypatch, claims.CLAIMING)
    ids = engine.submit(acme, count=THREADS)
    messages = [message for _ in range(THREADS) if (message := engine.take())]

    def deliver(message: dict[str, str]) -> None:
        if message["activity"] == str(ids[2]):
            eventually(lambda: claims.CLAIMING._queues)  # the first to claim is another
        dispatch.receive(**message)

    def unlock_after_the_others(unlock: Callable[[], None]) -> None:
        eventually(lambda: statuses(acme)["done"] == THREADS - 1)
        unlock()

    with lock_on(ids[2]) as unlock:
        outcomes = simultaneously(
            lambda: unlock_after_the_others(unlock),
            *[lambda message=message: deliver(message) for message in messages],
        )

    assert outcomes == [None] * (THREADS + 1)
    assert statuses(acme) == {"done": THREADS}
    assert sizes[0] == THREADS - 1


def test_a_slot_that_was_withdrawn_meanwhile_affects_only_its_own_claim(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = engine.submit(acme, count=THREADS)
    _let_others_gather(monkeypatch, claims.CLAIMING)
    monkeypatch.setattr(claims, "CLAIM_SECONDS", -1.0)
    is_held, asked = claims.slot_is_held, list[UUID]()

    def withdrawn_after_the_claim(grant: Grant) -> bool:
        asked.append(grant.activity_id)
        # The message asks first, then the claim, before and after its statement.
        is_withdrawn = grant.activity_id == ids[2] and asked.count(ids[2]) == 3
        return not is_withdrawn and is_held(grant)

    monkeypatch.setattr(claims, "slot_is_held", withdrawn_after_the_claim)
    deliver_side_by_side(engine)
    engine.make_due(acme)
    engine.drain()

    assert statuses(acme) == {"done": THREADS}
    assert [len(engine.runs(acme, activity_id)) for activity_id in ids] == [
        2 if activity_id == ids[2] else 1 for activity_id in ids
    ]


def test_work_that_is_claimed_together_is_claimed_as_far_as_its_budget_allows(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_budget(acme, "4", unit="runs")
    engine.submit(acme, count=THREADS)
    _let_others_gather(monkeypatch, claims.CLAIMING)
    deliver_side_by_side(engine)

    assert statuses(acme) == {"done": 4, "created": THREADS - 4}
