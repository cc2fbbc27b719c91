"""Erasure: suspends a tenant, and deletes all its rows in PostgreSQL, then its documents, keys and files.

A tombstone with the slug, times and counts stays. It is written first, so an interrupted deletion is recorded, and calling this again
finishes it. Rows are deleted in portions, as the owner of the tables (nobody else may delete from histories), in transactions that
row-level security limits to the tenant.

Suspension comes first and deletes nothing: tokens are refused, nothing starts, and running work is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connections, transaction
from django.db.models import Q
from django.db.models.functions import Now
from psycopg import sql

from activities import cancellation, provider_batches, relay
from activities.activity_tree import ENDED
from activities.exceptions import ActivityError
from activities.maintenance import retention
from activities.models import Activity
from agents.command_line import transcripts
from orchestrator import offboarding
from pipelines import cancellation as pipelines
from pipelines.exceptions import PipelineError
from pipelines.models import PipelineRun, Schedule, ScheduleExecution
from pipelines.models.run import RunState
from pipelines.models.schedule import ExecutionStatus
from pipelines.schedules import beat, executions
from tenants import audit
from tenants import redis as tenant_redis
from tenants.audit import actor_of_command
from tenants.context import OWNER, SYSTEM, system_scope, tenant_scope
from tenants.exceptions import TenantError
from tenants.models import Tenant
from tenants.models.retention import DepartedTenant
from tenants.row_security import tenant_tables
from tenants.signals import tenant_changed

ACTOR = "command:offboard_tenant"
REASON = "the tenant was suspended"
SUSPENDED_AT_ONCE = 500
MOST_ROUNDS = 1_000  # one per level of dependencies; no tree is nearly as deep

Report = Callable[[str], object]


def suspend(tenant: Tenant, report: Report) -> int:
    """Suspend the tenant, and return how much work was stopped. Idempotent.

    Tokens are refused within a second, and grants stop at the leader's next tick.
    """
    with tenant_scope(tenant.pk):
        Tenant.objects.filter(pk=tenant.pk).update(is_active=False)
        tenant.is_active = False
        tenant_changed.send(sender=Tenant, tenant=tenant)
    # Executions first, because the end of a job would start the next batch, and the end of an execution the queued one.
    active = Q(status__in=(ExecutionStatus.RUNNING, ExecutionStatus.QUEUED))
    stopped = _stop_all(tenant.pk, ScheduleExecution, active, executions.cancel, PipelineError)
    running, unfinished = Q(status=RunState.RUNNING), ~Q(status__in=ENDED)
    stopped += _stop_all(tenant.pk, PipelineRun, running, pipelines.cancel_run, PipelineError)
    stopped += _stop_all(tenant.pk, Activity, unfinished, cancellation.cancel, ActivityError)
    relay.flush()
    report(f"{stopped} stopped")
    return stopped


def _stop_all(
    tenant_id: UUID, model: Any, unfinished: Q, cancel: Callable[..., object], refusal: type[Exception]
) -> int:
    """Stop everything. Repeat it until nothing can be stopped, because some work can only end after other work."""
    total = 0
    for _ in range(MOST_ROUNDS):
        stopped, after = 0, UUID(int=0)
        while page := _find_page(tenant_id, model, unfinished, after):
            for key in page:
                # Refused: it has ended meanwhile, or ends together with other work.
                with suppress(refusal):
                    cancel(tenant_id, key, actor=ACTOR, reason=REASON)
                    stopped += 1
            after = page[-1]
        if not stopped:
            break
        total += stopped
    return total


def _find_page(tenant_id: UUID, model: Any, unfinished: Q, after: UUID) -> list[UUID]:
    with tenant_scope(tenant_id):
        rows = model.objects.for_tenant(tenant_id).filter(unfinished, pk__gt=after).order_by("pk")
        return list(rows.values_list("pk", flat=True)[:SUSPENDED_AT_ONCE])


PORTION = 5_000
ROUNDS = 5

_DELETE = sql.SQL(
    "DELETE FROM {table} WHERE tenant_id = {tenant} AND ctid = ANY(ARRAY("
    "SELECT ctid FROM {table} WHERE tenant_id = {tenant} LIMIT {most}))"
)


def find_unfinished(slug: str) -> UUID | None:
    """Return the id of a tenant with this slug whose deletion has not finished, even if its row is already deleted."""
    with system_scope():
        tombstone = DepartedTenant.objects.filter(slug=slug, erased_at=None).first()
    return None if tombstone is None else tombstone.pk


def erase(tenant_id: UUID, slug: str, report: Report) -> dict[str, int]:
    """Delete all data of a suspended tenant, and return the counts by table or store. May be repeated. `TenantError` for an active one."""
    with system_scope():
        if Tenant.objects.filter(pk=tenant_id, is_active=True).exists():
            raise TenantError(f"{slug} is active. Suspend it first.", code="tenant_active")
        DepartedTenant.objects.get_or_create(pk=tenant_id, defaults={"slug": slug})
    for batch in provider_batches.cancel_sent(tenant_id):
        report(f"not cancelled: {batch}; cancel it there")
    steps: list[Callable[[], dict[str, int]]] = [
        lambda: {"admin log": _delete_admin_log(tenant_id), "beat": _delete_beat_rows(tenant_id)},
        lambda: _clear_tables(tenant_id, report),
        lambda: {"redis": delete_from_redis(tenant_id)},
        lambda: {"transcripts": transcripts.delete_all(tenant_id)},
        lambda: {"mongodb": retention.forget_tenant(tenant_id)},
        lambda: {
            "audit trail": audit.forget_chain(tenant_id, slug, actor=actor_of_command("offboard_tenant"))
        },
    ]
    for step in steps:
        total = _add_counts(tenant_id, step())
    with system_scope():
        DepartedTenant.objects.filter(pk=tenant_id).update(erased_at=Now())
    return total


def _add_counts(tenant_id: UUID, counts: dict[str, int]) -> dict[str, int]:
    """Add the counts to those of earlier steps and attempts in the tombstone, and return the totals."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        tombstone = DepartedTenant.objects.select_for_update().get(pk=tenant_id)
        names = sorted({*tombstone.counts, *counts})
        total = {name: tombstone.counts.get(name, 0) + counts.get(name, 0) for name in names}
        DepartedTenant.objects.filter(pk=tenant_id).update(counts=total)
    return total


def _clear_tables(tenant_id: UUID, report: Report) -> dict[str, int]:
    """Empty the tables, and then delete the tenant's own row.

    Repeat it if rows were found, because a token that is still cached may write for another second.
    """
    counts: dict[str, int] = {}
    for _ in range(ROUNDS):
        total = 0
        for table in offboarding.children_first():
            deleted = _clear_table(table, tenant_id)
            counts[table] = counts.get(table, 0) + deleted
            total += deleted
            if deleted:
                report(f"{table}: {deleted}")
        if not total:
            break
    counts["tenants_tenant"] = _as_owner(
        tenant_id, sql.SQL("DELETE FROM tenants_tenant WHERE id = {}").format(sql.Literal(tenant_id))
    )
    return counts


def _clear_table(table: str, tenant_id: UUID) -> int:
    statement = _DELETE.format(
        table=sql.Identifier(table), tenant=sql.Literal(tenant_id), most=sql.Literal(PORTION)
    )
    total = 0
    while deleted := _as_owner(tenant_id, statement):
        total += deleted
    return total


def _as_owner(tenant_id: UUID, statement: sql.Composable) -> int:
    with transaction.atomic(using=OWNER, durable=True), connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT set_config('app.tenant_id', %s, true)", [str(tenant_id)])
        cursor.execute(statement)
        return int(cursor.rowcount)


def _delete_beat_rows(tenant_id: UUID) -> int:
    """Delete beat's rows of the tenant's schedules. The suspension has deleted that of the monthly job."""
    with tenant_scope(tenant_id):
        schedules = list(Schedule.objects.for_tenant(tenant_id))
        for schedule in schedules:
            beat.forget(schedule)
    return len(schedules)


def _delete_admin_log(tenant_id: UUID) -> int:
    """Delete the admin's log entries about rows of the tenant."""
    kinds = {
        model._meta.db_table: (kind.pk, str(model._meta.pk.column))
        for kind in ContentType.objects.all()
        if (model := kind.model_class()) is not None
    }
    total = 0
    for table in (*offboarding.tables(), "tenants_tenant"):
        if table in kinds and table in tenant_tables():
            key = "id" if table == "tenants_tenant" else "tenant_id"
            statement = sql.SQL(
                "DELETE FROM {log} l USING {table} t"
                " WHERE l.content_type_id = {kind} AND l.object_id = t.{id}::text AND t.{key} = {tenant}"
            ).format(
                log=sql.Identifier(LogEntry._meta.db_table),
                table=sql.Identifier(table),
                kind=sql.Literal(kinds[table][0]),
                id=sql.Identifier(kinds[table][1]),
                key=sql.Identifier(key),
                tenant=sql.Literal(tenant_id),
            )
            total += _as_owner(tenant_id, statement)
    return total


# Data of a tenant in Redis, found by the tenant's id in the names and values of keys. Of shared keys only its members are deleted.


PAGE = 1_000


def delete_from_redis(tenant_id: UUID) -> int:
    """Delete the keys and members of a tenant, and return their number. Raises `redis.RedisError`."""
    retention.remove_from_admission(tenant_id)
    servers = [tenant_redis.client()]
    if settings.CELERY_BROKER_URL.startswith("redis") and settings.CELERY_BROKER_URL != settings.REDIS_URL:
        servers.append(redis.Redis.from_url(settings.CELERY_BROKER_URL, protocol=2))
    needle = str(tenant_id).encode()
    return sum(
        _delete_in(server, key, needle)
        for server in servers
        for key in server.scan_iter(match="*", count=PAGE)
    )


def _delete_in(server: Any, key: bytes, needle: bytes) -> int:
    if needle in key:
        return int(server.delete(key))
    match server.type(key):
        case b"string":
            return int(server.delete(key)) if needle in (server.get(key) or b"") else 0
        case b"list":
            found = {each for each in server.lrange(key, 0, -1) if needle in each}
            return sum(int(server.lrem(key, 0, each)) for each in found)
        case b"hash":
            names = [
                name
                for name, value in server.hscan_iter(key, count=PAGE)
                if needle in name or needle in value
            ]
            return _in_pages(names, server.hdel, key)
        case b"set":
            return _in_pages(
                [each for each in server.sscan_iter(key, count=PAGE) if needle in each], server.srem, key
            )
        case b"zset":
            return _in_pages(
                [each for each, _ in server.zscan_iter(key, count=PAGE) if needle in each], server.zrem, key
            )
    return 0


def _in_pages(members: list[bytes], delete: Callable[..., Any], key: bytes) -> int:
    return sum(int(delete(key, *members[start : start + PAGE])) for start in range(0, len(members), PAGE))
