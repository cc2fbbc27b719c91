"""Branches of a fan-out that settle at the same moment, and what else happens to their step meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import Event

import pytest

from activities import cancellation
from activities.human_tasks import decisions
from activities.maintenance import invariants
from pipelines import progression
from pipelines.cancellation import cancel_run
from pipelines.models import StepRun
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, eventually, simultaneously, somebody_waits_for_a_lock
from tests.flows import BROKEN, Flow, step

pytestmark = pytest.mark.usefixtures("one_at_a_time")

Start = Callable[..., Flow]


@pytest.fixture
def start(engine: Engine, acme: Tenant) -> Iterator[Start]:
    """`start(step, step, ...)`: a run of a pipeline of these steps. All invariants must hold when the test ends."""
    yield lambda *steps, **new: Flow(engine, acme, *steps, **new)
    assert invariants.check() == []


def approvals_of(flow: Flow, step: str = "write") -> list[Callable[[], object]]:
    """Return the calls that settle each branch of a step."""
    branches = flow.activities(step=step, link_kind=None)
    return [partial(decisions.approve, flow.tenant.pk, each.pk, actor="ann") for each in branches]


def write(count: int) -> dict[str, object]:
    return step("write", for_each=str(list(range(count))), requires_approval=True)


def test_branches_that_settle_at_once_start_the_join_once(start: Start) -> None:
    for _ in range(3):
        flow = start(write(6), step("join", "write")).drain(write=None)

        outcomes = simultaneously(*approvals_of(flow))

        assert len(outcomes) == 6
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert flow.row("write").unsettled_branches == 0
        assert len(flow.activities(step="join")) == 1
        flow.drain()
        assert flow.outcome == ("completed", 0)


def test_branches_of_two_steps_that_settle_at_once_start_their_join_once(start: Start) -> None:
    other = step("read", for_each="[1, 2]", requires_approval=True)
    flow = start(write(2), other, step("join", "write", "read")).drain(write=None)

    outcomes = simultaneously(*approvals_of(flow), *approvals_of(flow, "read"))

    assert len(outcomes) == 4
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(flow.activities(step="join")) == 1


def test_a_join_waits_for_a_branch_that_is_retried_while_the_last_one_settles(
    start: Start, acme: Tenant
) -> None:
    for _ in range(3):
        flow = start(
            step("plan"),
            step("write", "plan", for_each="[1, 2]"),
            step("join", "write"),
        ).deliver(2, write=BROKEN)
        (failed,) = flow.activities(step="write", status__in=["failed", "needs_review"])

        simultaneously(
            partial(cancellation.retry, acme.pk, failed.pk, actor="ann"),
            partial(flow.deliver, 1),
        )
        flow.drain(write=None)

        assert flow.branches("write") == ["done", "done"]
        assert flow.states["join"] == "done"
        assert flow.outcome == ("completed", 0)


def test_a_run_that_is_cancelled_while_its_branches_settle_starts_nothing_more(
    start: Start, acme: Tenant
) -> None:
    flow = start(write(4), step("join", "write")).drain(write=None)

    simultaneously(*approvals_of(flow), partial(cancel_run, acme.pk, flow.id, actor="ann"))

    assert flow.run.status == "cancelled"
    assert {each.status for each in flow.activities(step="join")} <= {"cancelled"}


@pytest.mark.parametrize("steps", [write(2), step("write", requires_approval=True), step("write")])
def test_a_step_is_settled_only_while_its_run_is_locked(
    start: Start, acme: Tenant, steps: dict[str, object]
) -> None:
    """Otherwise the result would hold the step, wait for the run, and deadlock with whoever holds the run."""
    flow = start(steps, step("join", "write"))
    settle: Callable[[], object] = partial(flow.deliver, 1)
    if steps.get("requires_approval"):
        settle, *_ = approvals_of(flow.drain(write=None))
    locked = Event()

    def hold_run() -> int:
        with tenant_scope(acme.pk):
            progression.lock_runs(acme.pk).get(pk=flow.id)
            locked.set()
            eventually(somebody_waits_for_a_lock)
            return len(StepRun.objects.filter(run_id=flow.id).select_for_update(nowait=True))

    def settle_meanwhile() -> object:
        assert locked.wait(60)
        return settle()

    held, settled = simultaneously(hold_run, settle_meanwhile)

    assert held == len(flow.rows())
    assert not isinstance(settled, Exception), settled


def test_an_end_that_is_reported_twice_counts_once(start: Start, acme: Tenant) -> None:

    flow = start(write(2), step("join", "write")).drain(write=None)
    first, _ = flow.activities(step="write", link_kind=None)
    decisions.approve(acme.pk, first.pk, actor="ann")

    with tenant_scope(acme.pk):
        progression.advance(flow.engine.get(acme, first.pk))

    assert flow.row("write").unsettled_branches == 1
    assert flow.states == {"write": "active", "join": "pending"}
