"""A scrape costs the same few statements however much there is, and reads by index where there is much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from activities import counters, standing
from orchestrator.metrics import asking
from tenants.context import OWNER, SYSTEM, system_scope
from tenants.models import Tenant
from tests.engine import Engine

MANY = 100_000
READ_AT_MOST = 10_000  # rows of one sequential scan

_HISTORY = """
SET LOCAL session_replication_role = replica;
INSERT INTO activities_activity
    (id, tenant_id, name, description, status, assignee_type, agent_role, is_approval_gate, requires_approval, priority, params, metadata,
     round, retry, max_attempts, reviewer_notes, agent_options, wake_reason, fence, attempts, stalls, version, created_at, finished_at)
SELECT gen_random_uuid(), t.id, 'old', '', 'done', 'agent', 'qa', false, false, 10, '{}', '{}', 0, '{}', 3, '', '{}', 'new_task', 1, 1, 0, 4,
       now(), now()
FROM generate_series(1, %(many)s), tenants_tenant t;
INSERT INTO activities_wake (id, tenant_id, activity_id, reason, cause, payload, fingerprint, state, merged, created_at)
SELECT gen_random_uuid(), tenant_id, id, 'new_task', 'wake', '{}', '', 'consumed', 0, now() FROM activities_activity WHERE status = 'done';
INSERT INTO activities_activityrun
    (id, tenant_id, activity_id, status, fence, attempt, wake_reason, "grant", timeout_seconds, beats, agent_version, session_id,
     started_at, ended_at)
SELECT gen_random_uuid(), tenant_id, id, 'completed', 1, 1, 'new_task', id::text, 60, 0, '', '', now(), now()
FROM activities_activity WHERE status = 'done';
"""


@pytest.fixture
def long_history(engine: Engine, tenant: Tenant) -> Iterator[Tenant]:
    """As many activities that are done, and some work that waits, runs and has ended lately."""
    with connections[OWNER].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(_HISTORY % {"many": MANY})
        cursor.execute("COMMIT")
        cursor.execute("ANALYZE activities_activity, activities_wake, activities_activityrun")
    engine.serve(tenant)
    engine.submit(tenant, count=20)
    engine.drain()
    counters.count_fresh()
    engine.submit(tenant, "blog-writer", count=20)
    yield tenant
    with connections[OWNER].cursor() as cursor:
        cursor.execute("TRUNCATE activities_activity, activities_wake, activities_activityrun CASCADE")
        cursor.execute("ANALYZE activities_activity, activities_wake, activities_activityrun")


def _asked() -> list[tuple[str, Any]]:
    """Every statement of a scrape, with its parameters."""
    found: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found.append((sql, params))
        return execute(sql, params, many, context)

    with connections[SYSTEM].execute_wrapper(note):
        for probe in asking.PROBES:
            probe.question()
    return found


def _scans(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The sequential scans of a plan: table, and rows that were read."""
    if plan["Node Type"] == "Seq Scan":
        read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan["Relation Name"], int(read * plan["Actual Loops"])
    for inner in plan.get("Plans", ()):
        yield from _scans(inner)


def test_a_scrape_is_ten_statements_and_reads_no_long_table_from_end_to_end(long_history: Tenant) -> None:
    asked = _asked()

    assert len(asked) == 10
    long = []
    for sql, parameters in asked:
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters or None)
            ((plan,),) = cursor.fetchone()
        long += [(scan, sql) for scan in _scans(plan["Plan"]) if scan[1] > READ_AT_MOST]
    assert long == []


def test_the_figures_are_those_of_one_reading(long_history: Tenant) -> None:
    with system_scope():
        (blog,) = (role for role in standing.standing().roles if role.role == "blog-writer")

    assert (blog.depth, blog.running) == (20, 0)
