"""Which rows the hot path reads, counted by PostgreSQL.

A plan is kept as long as its connection, whatever its tables held when it was made. So each statement, trigger and check of a foreign key
must find its rows by key in any plan.
"""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from django.db import connections
from django.db.models.functions import Now

from activities import dispatch, outbox, relay
from activities.admission import Grant
from activities.models import Wake
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import RetryableAgentError
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.events import log
from tenants.models import Tenant
from tests.engine import Engine

PATIENCE_SECONDS = 300.0  # of a busy machine; what is counted are rows
WAITING = 5_000
RUNS = 20
STEPS = [
    {"id": "first", "agent_role": "dev"},
    {"id": "each", "agent_role": "dev", "for_each": "params.numbers", "depends_on": ["first"]},
    {"id": "joined", "agent_role": "dev", "depends_on": ["each"]},
]
ACTIVITIES = RUNS * 5  # three branches of the step in the middle


def answer(request: AgentRequest) -> AgentResult:
    """The last step of a run succeeds when it is tried again."""
    if request.pipeline_step == "joined" and request.attempt == 1:
        raise RetryableAgentError("Not yet.", code="not_yet")
    return Completed(Output(content="done"))


def analyze() -> None:
    """Also rid tables of what earlier tests have deleted: the planner looks at the ends of indexes, through all that is dead there."""
    with connections["owner"].cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def rows_read() -> Counter[str]:
    """How many rows of each table and index were read so far."""
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
    """Returns what is read for it, without the test's own search for delays that it lets be over."""
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("statistics", ["from before the plans", "newer than the plans"])
def test_what_a_plan_reads_does_not_grow_with_what_waits_and_what_has_ended(
    engine: Engine, tenant: Tenant, statistics: str
) -> None:
    engine.agent.behaviour, engine.patience = answer, PATIENCE_SECONDS
    engine.serve(tenant)
    engine.serve(tenant, "qa", paused=True)
    versions.save(tenant.pk, {"key": "chain", "name": "Chain", "steps": STEPS}, actor="test")
    connections.close_all()
    analyze()
    engine.submit(tenant, count=2)
    run_pipelines(engine, tenant, 1)  # every statement has its plan
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
    over = rows_read()
    with tenant_scope(tenant.pk):
        numbered = log.position_of_log(tenant.pk)[1] - before_numbering

    assert len(engine.agent.calls) == (RUNS + 1) * 6
    in_upkeep = over - ended
    assert in_bulk.total() < 6 * WAITING, in_bulk.most_common(5)
    assert in_steps.total() < 100 * ACTIVITIES, in_steps.most_common(5)
    assert numbered > WAITING
    # A page reads once more what the pages before it have deleted, as long as somebody's snapshot may still see that.
    assert in_upkeep.total() < 20 * numbered, in_upkeep.most_common(5)


def test_who_looks_for_what_woke_one_activity_reads_no_others(engine: Engine, tenant: Tenant) -> None:
    engine.patience = PATIENCE_SECONDS
    engine.serve(tenant, "qa", paused=True)
    analyze()  # of empty tables
    ids = engine.submit(tenant, count=500)
    dispatch._offer_if_woken(Grant(ids[0], tenant.pk, "qa", "grant", started=True))  # whatever is read once

    def read_by_a_look(activity_id: UUID) -> int:
        before = rows_read()
        dispatch._offer_if_woken(Grant(activity_id, tenant.pk, "qa", "grant", started=True))
        read = rows_read() - before
        looked_at = {"activities_activity", "activities_wake"}
        return sum(rows for name, rows in read.items() if name.partition(".")[0] in looked_at)

    # What other connections have read is told late, so one of several looks may seem to have read it.
    assert 0 < min(map(read_by_a_look, ids[250:253])) < 20
