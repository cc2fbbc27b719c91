"""Runs of agents that answer at once are claimed and recorded together, with the same rows as one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Barrier, Event
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from django.db.utils import OperationalError

from activities import admission, cancellation, dispatch, outputs, quick_work, relay
from activities.admission import Grant
from activities.maintenance import invariants
from activities.models import Activity, ActivityEvent, ActivityRun, OutputSpool, Wake
from activities.models.run import own_wake_of
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError, RetryableAgentError
from pipelines import versions
from pipelines.models import PipelineRun, StepRun
from pipelines.submission import NewRun, start_runs
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, eventually, in_another_thread, simultaneously
from tests.spending import make_budget

SEATS = 32


@pytest.fixture
def relief() -> None:
    """Requested by tests whose calls hang; in all others no thread takes over, however slow the machine."""


@pytest.fixture
def acme(
    request: pytest.FixtureRequest,
    engine: Engine,
    tenant: Tenant,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Tenant]:
    """The tenant, whose work counts as quick however slow the machine is."""
    if "relief" not in request.fixturenames:
        monkeypatch.setattr(quick_work.QuickWork, "_start_relief", lambda self: None)
    settings.ORCHESTRATOR_CONTINUE_SECONDS = 600.0
    monkeypatch.setattr(quick_work, "QUICK_SECONDS", 1e6)
    monkeypatch.setattr(quick_work, "SAMPLES", 0)
    monkeypatch.setattr(dispatch.QUICK_WORK, "times", quick_work.CallTimes())
    engine.lease.concurrency = SEATS
    engine.replace_worker()
    engine.serve(tenant, max_concurrency=SEATS)
    dispatch.QUICK_WORK.times.note((tenant.pk, "qa"), 0.0)
    yield tenant
    assert invariants.check() == []


def deliver_at_once(engine: Engine) -> None:
    """Deliver all queued messages as to a process that has only one free thread for quick work."""
    messages = []
    while (message := engine.take()) is not None:
        messages.append(message)
    now = monotonic()
    dispatch.QUICK_WORK.leave_to_others(
        quick_work.HeldGrant(dispatch.read_message(**each), now) for each in messages[1:]
    )
    dispatch.receive(**messages[0])
    relay.flush()
    engine.drain()


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of activities that each statement claimed."""
    counts: list[int] = []
    claim = dispatch.transitions.claim

    def count_and_claim(wanted: Any, **more: Any) -> Any:
        counts.append(len(wanted))
        return claim(wanted, **more)

    monkeypatch.setattr(dispatch.transitions, "claim", count_and_claim)
    return counts


def statuses(tenant: Tenant, ids: list[UUID]) -> Counter[str]:
    with tenant_scope(tenant.pk):
        return Counter(Activity.objects.filter(pk__in=ids).values_list("status", flat=True))


def test_activities_granted_at_the_same_moment_are_claimed_and_recorded_together(
    engine: Engine, acme: Tenant, claims: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_again: list[Any] = []
    monkeypatch.setattr(dispatch, "_note_superseded", recorded_again.append)
    ids = engine.submit(acme, count=80)

    deliver_at_once(engine)

    assert statuses(acme, ids) == {"done": 80}
    assert len(engine.agent.calls) == 80
    assert max(claims) == SEATS // quick_work.THREADS
    with tenant_scope(acme.pk):
        assert set(ActivityRun.objects.values_list("status", flat=True)) == {"completed"}
    assert recorded_again == []


def test_a_cancellation_during_the_calls_affects_only_its_own_run(engine: Engine, acme: Tenant) -> None:
    ids = engine.submit(acme, count=60)
    cancelled: list[UUID] = []

    def behaviour(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 40:
            cancelled.append(request.activity_id)
            in_another_thread(lambda: cancellation.cancel(acme.pk, request.activity_id, actor="Ann"))
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour
    deliver_at_once(engine)

    assert statuses(acme, ids) == {"done": 59, "cancelled": 1}
    assert engine.status(acme, cancelled[0]) == "cancelled"


def test_an_answer_that_postgresql_refuses_fails_only_its_own_activity(engine: Engine, acme: Tenant) -> None:
    ids = engine.submit(acme, count=60)

    def behaviour(request: AgentRequest) -> AgentResult:
        refused = len(engine.agent.calls) == 40
        return Completed(Output(content="no text: \x00" if refused else "done"))

    engine.agent.behaviour = behaviour
    with pytest.MonkeyPatch.context() as lax:
        lax.setattr("agents.response_parser.require_well_formed", lambda result: None)
        deliver_at_once(engine)

    assert statuses(acme, ids) == {"done": 59, "failed": 1}
    with tenant_scope(acme.pk):
        assert Activity.objects.get(status="failed").error["code"] == "internal_error"


def test_failures_and_accepted_runs_among_quick_answers_are_each_recorded(
    engine: Engine, acme: Tenant
) -> None:
    def behaviour(request: AgentRequest) -> AgentResult:
        number = int(request.name.rpartition(" ")[2])
        if number % 10 == 1:
            raise RetryableAgentError("Not now.", code="not_now")
        if number % 10 == 2:
            raise PermanentAgentError("Never.", code="never")
        return Accepted() if number % 10 == 3 else Completed(Output(content=str(number)))

    engine.agent.behaviour = behaviour
    ids = engine.submit(acme, count=60)
    deliver_at_once(engine)

    assert statuses(acme, ids) == {"done": 42, "created": 6, "failed": 6, "in_progress": 6}
    done = engine.get(acme, ids[17])
    stored = outputs.read(acme.pk, done.output_ref)
    assert stored is not None
    assert stored.content == "17"


def test_runs_behind_a_hanging_call_are_taken_over_by_other_threads(
    engine: Engine, acme: Tenant, relief: None
) -> None:
    """The call ends only after all others of its group have been recorded."""
    ids = engine.submit(acme, count=60)
    under_way: list[int] = []

    def behaviour(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 40:
            under_way.append(statuses(acme, ids)["in_progress"])
            in_another_thread(lambda: eventually(lambda: statuses(acme, ids)["in_progress"] == 1, 60))
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour
    deliver_at_once(engine)
    eventually(lambda: engine.drain() or statuses(acme, ids)["done"] == 60, 60)

    assert under_way[0] > 1
    assert len(engine.agent.calls) == 60


def test_runs_that_were_taken_over_are_held_until_their_new_thread_has_them(
    engine: Engine, acme: Tenant, relief: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow call ends before the new thread begins. A worker that shuts down waits for all runs that are held."""
    ids = engine.submit(acme, count=8)
    is_taken_over, has_ended, held = Event(), Event(), list[set[UUID]]()
    start = quick_work._start

    def start_late(name: str, work: Callable[[Any], None], what: Any) -> None:
        if isinstance(what, quick_work.Group):  # else grants that no thread has run yet
            is_taken_over.set()
            assert has_ended.wait(60)
            held.append({run.claimed.run.run_id for run in what.unfinished()} & engine.lease.runs.keys())
        start(name, work, what)

    def behaviour(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 1:
            assert is_taken_over.wait(60)
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour
    monkeypatch.setattr(quick_work, "_start", start_late)
    messages = [engine.take() or {} for _ in ids]
    dispatch._run(
        [quick_work.HeldGrant(dispatch.read_message(**each), monotonic()) for each in messages],
        engine.lease,
        0.0,
    )
    has_ended.set()
    eventually(lambda: engine.drain() or statuses(acme, ids)["done"] == len(ids), 60)

    assert [len(each) for each in held] == [7]
    assert not engine.lease.runs


def test_runs_of_a_role_that_has_become_slow_are_called_in_parallel(
    engine: Engine, acme: Tenant, relief: None
) -> None:
    """The calls of one group wait for each other, so in sequence they would never end."""
    ids = engine.submit(acme, count=SEATS // quick_work.THREADS)
    together = Barrier(8)

    def behaviour(request: AgentRequest) -> AgentResult:
        if 4 < len(engine.agent.calls) <= 12:
            together.wait(20)
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour
    deliver_at_once(engine)
    eventually(lambda: engine.drain() or statuses(acme, ids)["done"] == len(ids), 60)

    assert not together.broken
    assert len(engine.agent.calls) == len(ids)


def test_an_error_that_cannot_be_recorded_does_not_affect_others_of_its_group(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = engine.submit(acme, count=20)
    record = dispatch._record

    def fail_to_record(claimed: Any, outcome: Any) -> None:
        if isinstance(outcome, PermanentAgentError):
            raise OperationalError("gone")
        record(claimed, outcome)

    def behaviour(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 5:
            raise PermanentAgentError("Never.", code="never")
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour
    monkeypatch.setattr(dispatch, "_record", fail_to_record)
    with pytest.raises(OperationalError):
        deliver_at_once(engine)
    relay.flush()

    counts = statuses(acme, ids)
    assert counts["in_progress"] == 1
    assert counts["done"] >= SEATS // quick_work.THREADS - 1
    slots = admission.audit(withdraw_orphans=False)
    assert "done" not in {engine.status(acme, slot.activity_id) for slot in slots}


def test_grants_left_to_threads_with_hanging_calls_are_run_by_others(
    engine: Engine, acme: Tenant, relief: None
) -> None:
    first = engine.submit(acme)
    message = engine.take()
    assert message is not None

    def behaviour(request: AgentRequest) -> AgentResult:
        if request.activity_id == first[0]:
            late = in_another_thread(lambda: engine.submit(acme, count=3))
            in_another_thread(engine.drain)
            in_another_thread(lambda: eventually(lambda: statuses(acme, late)["done"] == 3, 60))
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(quick_work, "THREADS", 1)
        engine.lease.concurrency = 10
        dispatch.receive(**message)

    assert engine.status(acme, first[0]) == "done"


def test_only_as_many_activities_are_claimed_as_the_budget_allows(engine: Engine, acme: Tenant) -> None:
    make_budget(acme, "25", unit="runs")
    ids = engine.submit(acme, count=60)

    deliver_at_once(engine)

    assert statuses(acme, ids) == {"done": 25, "created": 35}


def test_concurrent_deliveries_of_the_same_messages_in_opposite_orders_run_each_once(
    engine: Engine, acme: Tenant
) -> None:
    engine.submit(acme, count=12)
    messages = []
    while (message := engine.take()) is not None:
        messages.append(message)
    held = [
        Grant(UUID(each["activity"]), UUID(each["tenant"]), each["role"], each["grant"], started=True)
        for each in messages
    ]

    def run(grants: list[Grant]) -> Callable[[], Any]:
        now = monotonic()
        return lambda: dispatch._run(
            [quick_work.HeldGrant(grant, now) for grant in grants], engine.lease, now
        )

    simultaneously(run(held), run(held[::-1]))
    relay.flush()

    assert len(engine.agent.calls) == 12


# Recording together leaves the same rows as one by one, in any order.

STEPS: dict[str, list[dict[str, Any]]] = {
    "chain": [{"id": "a"}, {"id": "b", "depends_on": ["a"]}, {"id": "c", "depends_on": ["b"]}],
    "diamond": [
        {"id": "a"},
        {"id": "b", "depends_on": ["a"]},
        {"id": "c", "depends_on": ["a"]},
        {"id": "d", "depends_on": ["b", "c"]},
    ],
    "parallel": [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d", "depends_on": ["a", "b", "c"]}],
    "fan": [
        {"id": "a"},
        {"id": "each", "depends_on": ["a"], "for_each": "params.numbers"},
        {"id": "joined", "depends_on": ["each"]},
    ],
    "failing": [
        {"id": "a"},
        {"id": "breaks", "depends_on": ["a"]},
        {"id": "spared", "depends_on": ["breaks"], "on_upstream_failure": "continue"},
        {"id": "lost", "depends_on": ["breaks"]},
    ],
    "chosen": [
        {"id": "a"},
        {"id": "left", "depends_on": ["a"], "when": "params.numbers[0] == 1"},
        {"id": "right", "depends_on": ["a"], "when": "params.numbers[0] == 2"},
        {"id": "both", "depends_on": ["left", "right"]},
    ],
    "approved": [{"id": "a", "requires_approval": True}, {"id": "b", "depends_on": ["a"]}],
}


def answer_by_step(request: AgentRequest) -> AgentResult:
    if request.pipeline_step == "breaks":
        raise PermanentAgentError("It broke.", code="broke")
    return Completed(Output(content=f"{request.pipeline_step}", data={"params": dict(request.params)}))


def rows_of(tenant: Tenant) -> list[Any]:
    """All rows of the runs, without ids and times."""
    with tenant_scope(tenant.pk):
        counts = []
        for run in PipelineRun.objects.order_by("labels__number"):
            activities = list(Activity.objects.filter(pipeline_run_id=run.pk))
            names = {activity.pk: (activity.step, activity.branch, activity.round) for activity in activities}
            outputs_of = {
                spooled.activity_id: (spooled.content, spooled.data)
                for spooled in OutputSpool.objects.filter(activity_id__in=names)
            }
            counts.append(
                {
                    "run": (run.status, run.failed, run.unsettled, run.finished_at is not None),
                    "steps": sorted(
                        (row.step, row.branch, row.status, row.reason, names.get(row.activity_id), row.output_ref is not None,
                         row.unsettled_branches, row.failed_branches, row.settled_at is not None)
                        for row in StepRun.objects.filter(run_id=run.pk)
                    ),
                    "activities": sorted(
                        (names[row.pk], row.status, row.fence, row.attempts, row.version, row.priority, row.link_kind or "",
                         row.finished_at is not None, outputs_of.get(row.pk))
                        for row in activities if row.agent_role
                    ),
                    "history": sorted(
                        (names[event.activity_id], event.seq, event.verb, event.source or "", event.target, event.actor,
                         event.run_id is not None)
                        for event in ActivityEvent.objects.filter(activity_id__in=names)
                    ),
                    "wakes": sorted(
                        (names[wake.activity_id], wake.reason, wake.state, wake.run_id is not None)
                        for wake in (
                            *Wake.objects.filter(activity_id__in=names),
                            *filter(None, map(own_wake_of, ActivityRun.objects.filter(activity_id__in=names))),
                        )
                    ),
                }
            )  # fmt: skip
    return counts


def test_recording_together_leaves_the_same_rows_as_one_by_one(
    engine: Engine, acme: Tenant, make_tenant: Callable[..., Tenant], settings: Any, claims: list[int]
) -> None:
    engine.agent.behaviour = answer_by_step
    mixed = [(key, numbers) for key in STEPS for numbers in ([1, 2, 3], [2], [3, 1])]
    chance = random.Random(1)
    rows = []
    for tenant, together in ((acme, 1), (make_tenant(), 16), (make_tenant(), 16)):
        engine.serve(tenant, max_concurrency=SEATS)
        settings.ORCHESTRATOR_RUNS_TOGETHER = together
        dispatch.QUICK_WORK.times.note((tenant.pk, "qa"), 0.0)
        order = list(enumerate(mixed))
        chance.shuffle(order)
        for key, steps in STEPS.items():
            definition = {"key": key, "name": key, "steps": [{"agent_role": "qa", **step} for step in steps]}
            versions.save(tenant.pk, definition, actor="test")
        for number, (key, numbers) in order:
            labels = {"number": f"{number:03}"}
            start_runs(tenant.pk, key, [NewRun(params={"numbers": numbers}, labels=labels)], actor="test")
        claims.clear()
        deliver_at_once(engine)
        assert (max(claims) > 1) == (together > 1)
        rows.append(rows_of(tenant))

    one_by_one, *all_together = rows
    assert len(one_by_one) == len(mixed)
    assert all_together == [one_by_one, one_by_one]


def test_work_that_was_woken_during_a_relieved_call_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    superseded = [object(), object()]
    offered: list[object] = []
    monkeypatch.setattr(dispatch, "_call_and_record", lambda group: superseded)
    monkeypatch.setattr(dispatch, "_offer_if_woken", offered.append)

    dispatch._relieve(quick_work.Group([]))

    assert offered == superseded
