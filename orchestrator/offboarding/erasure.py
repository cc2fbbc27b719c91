"""Erasing a tenant: every row in PostgreSQL, then every document, key and file. What stays is a tombstone: a slug, times and counts.

The tombstone is written first, so a deletion that dies half-way is on record and is finished by calling this again. Rows go in portions,
as the owner of the tables (histories may be deleted from by nobody else), in transactions that row security confines to the tenant.

A tenant is suspended first: its tokens open nothing, nothing of it starts, and what runs is told to stop. That deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connections, transaction
from django.db.models.functions import Now
from psycopg import sql

from activities import cancellation, relay
from activities.activity_tree import ENDED
from activities.exceptions import ActivityError
from activities.maintenance import retention
from activities.models import Activity
from agents.command_line import transcripts
from orchestrator import offboarding
from pipelines import cancellation as pipelines
from pipelines.exceptions import PipelineError
from pipelines.models import PipelineRun, Schedule
from pipelines.models.run import RunState
from pipelines.schedules import beat
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
MOST_ROUNDS = 1_000  # one for each level of what waits for each other; no tree is nearly as deep

Find = Callable[[UUID, UUID], list[UUID]]  # a page of what goes on, after this id
Stop = Callable[[UUID, UUID], bool]  # whether it could be told to


def suspend(tenant: Tenant, tell: Tell) -> int:
    """Idempotent. Tokens are refused within a second, grants stop at the leader's next tick; returns how much work was told to stop."""
    with tenant_scope(tenant.pk):
        Tenant.objects.filter(pk=tenant.pk).update(is_active=False)
        tenant.is_active = False
        tenant_changed.send(sender=Tenant, tenant=tenant)
    stopped = _until_none_moves(tenant.pk, _running, _stop_run) + _until_none_moves(
        tenant.pk, _open, _stop_work
    )
    relay.flush()
    tell(f"{stopped} told to stop")
    return stopped


def _until_none_moves(tenant_id: UUID, find: Find, stop: Stop) -> int:
    """Some end with others, and some can end only after others: so again, until a whole round moves nothing."""
    total = 0
    for _ in range(MOST_ROUNDS):
        moved = _stop_each(tenant_id, find, stop)
        if not moved:
            break
        total += moved
    return total


def _stop_each(tenant_id: UUID, find: Find, stop: Stop) -> int:
    """Once each, page by page; returns how many could be."""
    moved, after = 0, UUID(int=0)
    while found := find(tenant_id, after):
        moved += sum(stop(tenant_id, each) for each in found)
        after = found[-1]
    return moved


def _running(tenant_id: UUID, after: UUID) -> list[UUID]:
    with tenant_scope(tenant_id):
        rows = PipelineRun.objects.for_tenant(tenant_id).filter(status=RunState.RUNNING, pk__gt=after)
        return list(rows.order_by("pk").values_list("pk", flat=True)[:SUSPENDED_AT_ONCE])


def _open(tenant_id: UUID, after: UUID) -> list[UUID]:
    with tenant_scope(tenant_id):
        rows = Activity.objects.for_tenant(tenant_id).exclude(status__in=ENDED).filter(pk__gt=after)
        return list(rows.order_by("pk").values_list("pk", flat=True)[:SUSPENDED_AT_ONCE])


def _stop_run(tenant_id: UUID, run_id: UUID) -> bool:
    try:
        pipelines.cancel_run(tenant_id, run_id, actor=ACTOR, reason=REASON)
    except PipelineError:
        return False
    return True


def _stop_work(tenant_id: UUID, activity_id: UUID) -> bool:
    try:
        cancellation.cancel(tenant_id, activity_id, actor=ACTOR, reason=REASON)
    except ActivityError:
        return False  # It has ended meanwhile, or ends with another.
    return True


PORTION = 5_000
ROUNDS = 5

Tell = Callable[[str], object]

_DELETE = sql.SQL(
    "DELETE FROM {table} WHERE tenant_id = {tenant} AND ctid = ANY(ARRAY("
    "SELECT ctid FROM {table} WHERE tenant_id = {tenant} LIMIT {most}))"
)


class StillActive(TenantError):
    """The tenant was not suspended before."""

    code = "tenant_active"
    status = 409


def find_unfinished(slug: str) -> UUID | None:
    """The id of a tenant of this slug whose deletion was begun and has not ended, if its row is gone already."""
    with system_scope():
        begun = DepartedTenant.objects.filter(slug=slug, erased_at=None).first()
    return None if begun is None else begun.pk


def erase(tenant_id: UUID, slug: str, tell: Tell) -> dict[str, int]:
    """Delete everything of a suspended tenant; returns how many by table or place. May be called again. Raises `StillActive`."""
    with system_scope():
        if Tenant.objects.filter(pk=tenant_id, is_active=True).exists():
            raise StillActive(f"{slug} is active. Suspend it first.")
        DepartedTenant.objects.get_or_create(pk=tenant_id, defaults={"slug": slug})
    steps: list[Callable[[], dict[str, int]]] = [
        lambda: {"admin log": _forget_admin_log(tenant_id), "beat": _forget_beat(tenant_id)},
        lambda: _clear_tables(tenant_id, tell),
        lambda: {"redis": forget_in_redis(tenant_id)},
        lambda: {"transcripts": transcripts.delete_all(tenant_id)},
        lambda: {"mongodb": retention.forget_tenant(tenant_id)},
        lambda: {
            "audit trail": audit.forget_chain(tenant_id, slug, actor=actor_of_command("offboard_tenant"))
        },
    ]
    for step in steps:
        total = _note(tenant_id, step())
    with system_scope():
        DepartedTenant.objects.filter(pk=tenant_id).update(erased_at=Now())
    return total


def _note(tenant_id: UUID, counts: dict[str, int]) -> dict[str, int]:
    """Added to what earlier steps and attempts deleted; returns the sum."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        stone = DepartedTenant.objects.select_for_update().get(pk=tenant_id)
        names = sorted({*stone.counts, *counts})
        total = {name: stone.counts.get(name, 0) + counts.get(name, 0) for name in names}
        DepartedTenant.objects.filter(pk=tenant_id).update(counts=total)
    return total


def _clear_tables(tenant_id: UUID, tell: Tell) -> dict[str, int]:
    """Again, if somebody wrote in the last second of a remembered token; the tenant's own row goes when nothing refers to it."""
    counts: dict[str, int] = {}
    for _ in range(ROUNDS):
        found = 0
        for table in offboarding.children_first():
            deleted = _clear_table(table, tenant_id)
            counts[table] = counts.get(table, 0) + deleted
            found += deleted
            if deleted:
                tell(f"{table}: {deleted}")
        if not found:
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


def _forget_beat(tenant_id: UUID) -> int:
    """Beat's rows of the tenant's schedules. The monthly job's went when the tenant was suspended."""
    with tenant_scope(tenant_id):
        schedules = list(Schedule.objects.for_tenant(tenant_id))
        for schedule in schedules:
            beat.forget(schedule)
    return len(schedules)


def _forget_admin_log(tenant_id: UUID) -> int:
    """What the admin noted about the tenant's rows, as it names them."""
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


# What Redis holds of a tenant: found by the tenant's id, in names of keys and in whatever they hold. Redis is never the truth, so
# nothing is lost if a key of several tenants goes; but members of shared keys are taken out one by one.


PAGE = 1_000


def forget_in_redis(tenant_id: UUID) -> int:
    """Delete them; returns how many keys and members went. Raises `redis.RedisError`."""
    servers = [tenant_redis.client()]
    if settings.CELERY_BROKER_URL.startswith("redis") and settings.CELERY_BROKER_URL != settings.REDIS_URL:
        servers.append(redis.Redis.from_url(settings.CELERY_BROKER_URL, protocol=2))
    mark = str(tenant_id).encode()
    return sum(
        _forget_in(server, key, mark) for server in servers for key in server.scan_iter(match="*", count=PAGE)
    )


def _forget_in(server: Any, key: bytes, mark: bytes) -> int:
    if mark in key:
        return int(server.delete(key))
    forget = _BY_TYPE.get(server.type(key))
    return 0 if forget is None else forget(server, key, mark)


def _from_text(server: Any, key: bytes, mark: bytes) -> int:
    return int(server.delete(key)) if mark in (server.get(key) or b"") else 0


def _from_list(server: Any, key: bytes, mark: bytes) -> int:
    return sum(int(server.lrem(key, 0, each)) for each in server.lrange(key, 0, -1) if mark in each)


def _from_hash(server: Any, key: bytes, mark: bytes) -> int:
    found = [name for name, value in server.hscan_iter(key, count=PAGE) if mark in name or mark in value]
    return _in_pages(found, lambda page: server.hdel(key, *page))


def _from_set(server: Any, key: bytes, mark: bytes) -> int:
    found = [each for each in server.sscan_iter(key, count=PAGE) if mark in each]
    return _in_pages(found, lambda page: server.srem(key, *page))


def _from_sorted_set(server: Any, key: bytes, mark: bytes) -> int:
    found = [each for each, _ in server.zscan_iter(key, count=PAGE) if mark in each]
    return _in_pages(found, lambda page: server.zrem(key, *page))


def _in_pages(found: Iterable[bytes], forget: Callable[[list[bytes]], Any]) -> int:
    members = list(found)
    return sum(int(forget(members[start : start + PAGE])) for start in range(0, len(members), PAGE))


_BY_TYPE: dict[bytes, Callable[[Any, bytes, bytes], int]] = {
    b"string": _from_text,
    b"list": _from_list,
    b"hash": _from_hash,
    b"set": _from_set,
    b"zset": _from_sorted_set,
}
