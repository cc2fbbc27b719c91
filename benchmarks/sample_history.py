"""The data of a system after a long time: many tenants with many activities in every state, inserted directly into the tables."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections, transaction

from activities.models import Activity, ActivityRun
from activities.submission import NewActivity, submit
from agents.models import Agent
from tenants.context import OWNER, tenant_scope
from tenants.models import Tenant

TABLES = "activities_activity, activities_wake, activities_activityevent, activities_activityrun"
ROLES = 5

# UUIDv7: begins with the time in milliseconds.
_ID = """(lpad(to_hex((extract(epoch FROM {at}) * 1000)::bigint), 12, '0') || '7' || substr(md5(random()::text), 1, 3)
    || '8' || substr(md5(random()::text), 1, 15))::uuid"""
# One every two minutes. Of ten, seven are done, one has failed, one waits and one is cancelled.
_COPIES = """
SET LOCAL session_replication_role = replica;
CREATE TEMPORARY TABLE sample ON COMMIT DROP AS
SELECT {id_then} AS id, tenant.id AS tenant_id, number, now() - number * interval '2 minutes' AS at,
       (%(roles)s::text[])[1 + number %% {roles}] AS agent_role,
       CASE number %% 10 WHEN 7 THEN 'failed' WHEN 8 THEN 'created' WHEN 9 THEN 'cancelled' ELSE 'done' END AS status
FROM generate_series(1, %(each)s) AS number, unnest(%(tenants)s::uuid[]) AS tenant (id);

INSERT INTO activities_activity
SELECT copy.* FROM activities_activity a, sample c, jsonb_populate_record(a, jsonb_build_object(
    'id', c.id, 'tenant_id', c.tenant_id, 'name', 'Article ' || c.number, 'status', c.status, 'agent_role', c.agent_role,
    'indexed_status', CASE c.status WHEN 'created' THEN 'open' ELSE c.status END,
    'created_at', c.at, 'updated_at', c.at, 'started_at', CASE WHEN c.status <> 'created' THEN c.at END,
    'finished_at', CASE WHEN c.status <> 'created' THEN c.at + interval '1 minute' END)) AS copy
WHERE a.id = %(model)s;

INSERT INTO activities_wake
SELECT copy.* FROM activities_wake w, sample c, jsonb_populate_record(w, jsonb_build_object(
    'id', {id_of_c}, 'tenant_id', c.tenant_id, 'activity_id', c.id, 'created_at', c.at,
    'state', CASE WHEN c.status = 'created' THEN 'pending' ELSE 'consumed' END)) AS copy
WHERE w.activity_id = %(model)s;

INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, detail, at)
SELECT c.tenant_id, c.id, 2, CASE c.status WHEN 'done' THEN 'complete' WHEN 'failed' THEN 'fail' ELSE 'cancel' END,
       'in_progress', c.status, 'worker', '{{}}', c.at + interval '1 minute'
FROM sample c WHERE c.status <> 'created';

INSERT INTO activities_activityrun
SELECT copy.* FROM activities_activityrun r, sample c, jsonb_populate_record(r, jsonb_build_object(
    'id', {id_of_c}, 'tenant_id', c.tenant_id, 'activity_id', c.id, 'started_at', c.at, 'ended_at', c.at + interval '1 minute',
    'status', CASE c.status WHEN 'done' THEN 'completed' ELSE 'failed' END)) AS copy
WHERE r.activity_id = %(model)s AND c.status <> 'created';

DELETE FROM activities_activityrun WHERE activity_id = %(model)s;
"""


def fill(tenants: Sequence[Tenant], each: int) -> None:
    """Create `each` activities for every tenant, with wakes, runs and events, and update the planner's statistics."""
    roles = list(Agent.objects.filter(enabled=True).order_by("role").values_list("role", flat=True)[:ROLES])
    parameters = {
        "model": _model(tenants[0], roles[0]),
        "each": each,
        "roles": roles,
        "tenants": [t.pk for t in tenants],
    }
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        ids = {
            "id_then": _ID.format(at="(now() - number * interval '2 minutes')"),
            "id_of_c": _ID.format(at="c.at"),
        }
        cursor.execute(_COPIES.format(roles=len(roles), **ids), parameters)
        cursor.execute(f"ANALYZE {TABLES}")


def clear() -> None:
    """Delete all activities of all tenants, and update the planner's statistics."""
    with connections[OWNER].cursor() as cursor:
        cursor.execute(f"TRUNCATE {TABLES} CASCADE")
        cursor.execute(f"ANALYZE {TABLES}")


def _model(tenant: Tenant, role: str) -> object:
    """Create the activity, with a wake and a run, that the others are copied from. Returns its id."""
    with tenant_scope(tenant.pk):
        (created,) = submit([NewActivity(name="Article", agent_role=role)], actor="bench")
        activity = Activity.objects.get(pk=created.id)
        ActivityRun.objects.create(
            tenant=tenant, activity=activity, status="failed", fence=1, attempt=1, wake_reason="new_task", grant="",
            timeout_seconds=60, ended_at=activity.created_at,
        )  # fmt: skip
    return activity.pk
