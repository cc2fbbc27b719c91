"""The number of rows that the frequent statements read, counted by PostgreSQL.

A connection keeps its plans, however its tables change. So each statement, trigger and foreign key must read its rows by key in any plan.
"""

from __future__ import annotations

import math
from collections import Counter
from uuid import UUID

import pytest
from django.db import connections
from django.db.models.functions import Now

from activities import backlog, dispatch, outbox, relay
from activities.admission import Grant
from activities.models import Wake
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import RetryableAgentError
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.caches import TtlCache
from tenants.context import tenant_scope
from tenants.events import log
from tenants.models import Tenant
from tests.engine import Engine

PATIENCE_SECONDS = 300.0  # for a busy machine; the tests count rows
WAITING = 5_000
RUNS = 20
STEPS = [
    {"id": "first", "agent_role": "dev"},
    {"id": "each", "agent_role": "dev", "for_each": "params.numbers", "depends_on": ["first"]},
    {"id": "joined", "agent_role": "dev", "depends_on": ["each"]},
]
ACTIVITIES = RUNS * 5  # three branches of the step in the middle


def answer(request: AgentRequest) -> AgentResult:
    """Let the last step of each run fail once."""
    if request.pipeline_step == "joined" and request.attempt == 1:
        raise RetryableAgentError("Not yet.", code="not_yet")
    return Completed(Output(content="done"))


def analyze() -> None:
    """Analyze, and remove dead rows of earlier tests, which the planner reads at the ends of indexes."""
    with connections["owner"].cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def rows_read() -> Counter[str]:
    """The number of rows read so far from each table and index."""
    assert relay.flush(PATIENCE_SECONDS)
    for alias in ("default", "system"):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
    with connections["owner"].cursor() as cursor:
        cursor.execute(
            "SELECT relname, seq_tup_read FROM pg_stat_user_tables"
            " UNION ALL SELECT relname || '.' || indexrelname, idx_tup_read FROM pg_stat_user_indexes"
        )
        return Counter(dict(cursor.fetchall()))


def run_pipelines(engine: Engine, tenant: Tenant, count: int) -> Counter[str]:
    """Run this many pipelines; return the rows read for them, without those read by the test's own update."""
    before = rows_read()
    for _ in range(count):
        start_run(tenant.pk, "chain", NewRun(params={"numbers": [1, 2, 3]}), actor="test")
    engine.drain()
    first = rows_read() - before
    with tenant_scope(tenant.pk):
        Wake.objects.filter(state="pending", due_at__isnull=False).update(due_at=Now())
    before = rows_read()
    outbox.promote()
    engine.drain()
    return first + (rows_read() - before)


@pytest.fixture
def one_count_of_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what waits once: on a slow machine it would be counted again every half minute, which reads all of it."""
    monkeypatch.setattr(backlog, "CACHE_SECONDS", math.inf)
    monkeypatch.setattr(backlog, "_counts", TtlCache(seconds=math.inf, entries=10))


@pytest.mark.usefixtures("one_count_of_the_backlog")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("statistics", ["from before the plans", "newer than the plans"])
def test_the_rows_read_do_not_grow_with_waiting_and_ended_work(
    engine: Engine, tenant: Tenant, statistics: str
) -> None:
    engine.agent.behaviour, engine.patience = answer, PATIENCE_SECONDS
    engine.serve(tenant)
    engine.serve(tenant, "qa", paused=True)
    versions.save(tenant.pk, {"key": "chain", "name": "Chain", "steps": STEPS}, actor="test")
    connections.close_all()
    analyze()
    engine.submit(tenant, count=2)
    run_pipelines(engine, tenant, 1)  # so that every statement has a plan
    log.number_unread(tenant.pk)
    if statistics == "newer than the plans":
        analyze()

    before = rows_read()
    engine.submit(tenant, count=WAITING)
    in_bulk = rows_read() - before
    in_steps = run_pipelines(engine, tenant, RUNS)
    ended = rows_read()
    with tenant_scope(tenant.pk):
        before_numbering = log.position_of_log(tenant.pk)[1]
    log.number_unread(tenant.pk)
    after_numbering = rows_read()
    with tenant_scope(tenant.pk):
        numbered = log.position_of_log(tenant.pk)[1] - before_numbering

    assert len(engine.agent.calls) == (RUNS + 1) * 6
    in_upkeep = after_numbering - ended
    assert in_bulk.total() < 6 * WAITING, in_bulk.most_common(5)
    assert in_steps.total() < 100 * ACTIVITIES, in_steps.most_common(5)
    assert numbered > WAITING
    # A page reads the rows that earlier pages deleted as well, while a snapshot may still see them.
    assert in_upkeep.total() < 20 * numbered, in_upkeep.most_common(5)


def test_checking_the_wakes_of_one_activity_reads_no_others(engine: Engine, tenant: Tenant) -> None:
    engine.patience = PATIENCE_SECONDS
    engine.serve(tenant, "qa", paused=True)
    analyze()  # while the tables are empty
    ids = engine.submit(tenant, count=500)
    dispatch._offer_if_woken(Grant(ids[0], tenant.pk, "qa", "grant", started=True))  # fills caches

    def rows_read_by_a_check(activity_id: UUID) -> int:
        before = rows_read()
        dispatch._offer_if_woken(Grant(activity_id, tenant.pk, "qa", "grant", started=True))
        read = rows_read() - before
        tables = {"activities_activity", "activities_wake"}
        return sum(rows for name, rows in read.items() if name.partition(".")[0] in tables)

    # Reads of other connections are counted late and may seem to belong to one of the checks.
    assert 0 < min(map(rows_read_by_a_check, ids[250:253])) < 20
