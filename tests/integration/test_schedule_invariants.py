"""The invariants of schedules hold for intact data and report each kind of damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

import activities
from activities import states
from activities.maintenance import invariants
from agents import scheduler_settings
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError
from pipelines.schedules import executions, firing
from tenants.models import Tenant
from tests.damage import without_guards
from tests.engine import Engine
from tests.scheduling import HOUR, NOON, fire, make_pipeline, make_schedule, statuses, tickers
from tests.scheduling import executions as of_tenant


def _behave(request: AgentRequest) -> AgentResult:
    if request.params.get("ticker") == "T00001":
        raise PermanentAgentError("there is no data", code="no_data")
    return Completed(Output(content="done"))


@pytest.fixture
def work(engine: Engine, tenant: Tenant) -> Iterator[Tenant]:
    """Executions in every state: success, partial, queued, running in batches, skipped and cancelled."""
    engine.serve(tenant)
    scheduler_settings.forget()
    engine.agent.behaviour = _behave
    tickers(tenant, 3)
    future = {"looked_until": NOON, "end_at": NOON + 6 * HOUR}
    source = "db:ticker:all:id?batchSize=1&staggerDelay=0"
    fire(make_schedule(tenant, "partial", params={"ticker": source}, **future), NOON + HOUR)
    fire(
        make_schedule(tenant, "runs", pipeline=make_pipeline(tenant), params={"ticker": source}, **future),
        NOON + HOUR,
    )
    fire(
        make_schedule(
            tenant,
            "once",
            repeat="once",
            start_at=NOON,
            after_once="delete",
            looked_until=NOON - firing.INSTANT,
        ),
        NOON,
    )
    engine.drain()
    statuses(tenant)
    batches = make_schedule(
        tenant, "batches", overlap="queue_one", params={"ticker": f"{source}&batch_gate=completion"}, **future
    )
    for hour in (1, 2, 3):
        fire(batches, NOON + hour * HOUR)
    off = make_schedule(tenant, "off", **future)
    fire(off, NOON + 5 * HOUR + timedelta(minutes=5))
    executions.cancel(tenant.pk, of_tenant(tenant)[-1].pk, actor="ann")
    statuses(tenant)
    with without_guards() as run:  # Their end is past, so nothing of them is due.
        run("UPDATE pipelines_schedule SET next_run_at = NULL")
    yield tenant
    scheduler_settings.forget()


def _broken() -> list[str]:
    return [violation.invariant for violation in invariants.check(quiesced=True)]


def test_intact_schedules_break_no_invariant(work: Tenant) -> None:
    assert sorted({execution.status for execution in of_tenant(work)}) == [
        "cancelled", "partial", "queued", "running", "success",
    ]  # fmt: skip
    assert _broken() == []


AGO = "clock_timestamp() - interval '5 minutes'"
DAMAGE = {
    "a time that fired has no execution": ("I31", "DELETE FROM pipelines_scheduleexecution WHERE status = 'partial'"),
    "an execution has no record of its time": ("I31", "DELETE FROM pipelines_firing WHERE state = 'fired'"),
    "a time still waits though its execution does not": (
        "I31", "UPDATE pipelines_firing SET state = 'queued' WHERE state = 'fired'",
    ),
    "a row of skipped times holds one that fired": (
        "I31", "UPDATE pipelines_firing SET last_at = nominal_at + interval '1 day', count = 24 WHERE state = 'skipped'",
    ),
    "an execution that has ended has not finished": (
        "I31", "UPDATE pipelines_scheduleexecution SET finished_at = NULL WHERE status = 'partial'",
    ),
    "a job goes on though its execution has finished": (
        "I31",
        "UPDATE pipelines_scheduleexecution SET status = 'success', finished_at = clock_timestamp() WHERE status = 'running'",
    ),
    "the work of a job is gone": (
        "I31", "UPDATE pipelines_schedulejob SET activity_id = gen_random_uuid() WHERE state = 'enqueued'",
    ),
    "a job did not hear that its activity failed": (
        "I31", "UPDATE pipelines_schedulejob SET state = 'done' WHERE state = 'failed'",
    ),
    "a job did not hear that its run has ended": (
        "I31", "UPDATE pipelines_schedulejob SET state = 'failed' WHERE pipeline_run_id IS NOT NULL AND state = 'done'",
    ),
    "a time has come and nobody looks": (
        "I32", f"UPDATE pipelines_schedule SET enabled = true, next_run_at = {AGO} WHERE name = 'off'",
    ),
    "an execution is not expanded": (
        "I32",
        f"UPDATE pipelines_scheduleexecution SET expanded_at = NULL, touched_at = {AGO} WHERE status = 'running'",
    ),
    "an execution does not end": (
        "I32",
        f"UPDATE pipelines_scheduleexecution SET status = 'cancelled', expanded_at = {AGO} WHERE status = 'running'",
    ),
    "one that waits is forgotten": (
        "I32",
        f"UPDATE pipelines_scheduleexecution SET started_at = {AGO}, schedule_id = gen_random_uuid() WHERE status = 'queued'",
    ),
}  # fmt: skip


class _Undone(Exception):
    pass


def _count_violations(invariant: str, damage: str) -> int:
    """How many rows the invariant's question returns after this damage, which is undone afterwards."""
    text = (Path(activities.__file__).parent / "sql" / "invariants" / f"{invariant.lower()}.sql").read_text()
    settled = ", ".join(f"'{status}'" for status in sorted(states.SETTLED))
    question = text % {"settled": f"ARRAY[{settled}]::text[]", "patience": "60"}
    execution = -1
    with suppress(_Undone), without_guards() as run:
        assert run(damage), "the damage must be done for the test to mean anything"
        execution = run(question)
        raise _Undone
    return execution


def test_each_kind_of_damage_to_schedules_breaks_its_invariant(work: Tenant) -> None:
    intact = {
        _count_violations(invariant, "UPDATE pipelines_schedule SET version = version")
        for invariant in ("I31", "I32")
    }

    undetected = [
        damage for damage, (invariant, damage) in DAMAGE.items() if not _count_violations(invariant, damage)
    ]

    assert (intact, undetected) == ({0}, [])
    assert _broken() == []
