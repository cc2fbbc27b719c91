"""A scrape of metrics takes a constant number of statements and scans no long table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections, transaction

from activities.maintenance import counters
from orchestrator import metrics
from tenants.context import OWNER, SYSTEM
from tenants.models import Tenant
from tests.engine import Engine
from tests.plans import recorded_statements, sequential_scans

READ_AT_MOST = 10_000  # rows of one sequential scan
MANY = 12_000

#: Copies one finished activity with its wake and its run.
_HISTORY = """
SET LOCAL session_replication_role = replica;
CREATE TEMPORARY TABLE ids ON COMMIT DROP AS SELECT gen_random_uuid() AS id FROM generate_series(1, %(many)s);
INSERT INTO activities_activity
SELECT made.* FROM activities_activity a, ids, jsonb_populate_record(a, jsonb_build_object('id', ids.id)) made;
INSERT INTO activities_wake
SELECT made.* FROM activities_wake w, ids,
    jsonb_populate_record(w, jsonb_build_object('id', gen_random_uuid(), 'activity_id', ids.id)) made;
INSERT INTO activities_activityrun
SELECT made.* FROM activities_activityrun r, ids,
    jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid(), 'activity_id', ids.id)) made;
"""


@pytest.fixture
def long_history(engine: Engine, tenant: Tenant) -> Iterator[Tenant]:
    """A tenant with thousands of finished activities, some that ended lately, and some that wait."""
    engine.serve(tenant)
    engine.submit(tenant)
    engine.drain()
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute(_HISTORY % {"many": MANY})
        cursor.execute("ANALYZE activities_activity, activities_wake, activities_activityrun")
    engine.submit(tenant, count=20)
    engine.drain()
    counters.count_fresh()
    engine.submit(tenant, "blog-writer", count=20)
    yield tenant
    with connections[OWNER].cursor() as cursor:
        cursor.execute("TRUNCATE activities_activity, activities_wake, activities_activityrun CASCADE")
        cursor.execute("ANALYZE activities_activity, activities_wake, activities_activityrun")


def test_a_scrape_takes_twelve_statements_and_scans_no_long_table(long_history: Tenant) -> None:
    with recorded_statements(SYSTEM) as statements:
        for probe, _ in metrics.SOURCES:
            probe.question()

    assert len(statements) == 12
    (blog,) = (role for role in metrics.SOURCES[0][0].question().roles if role.role == "blog-writer")
    assert (blog.depth, blog.running) == (20, 0)
    scans = [
        (sql, scan)
        for alias, sql, params in statements
        if (scan := sequential_scans(alias, sql, params, more_than=READ_AT_MOST))
    ]
    assert scans == []
