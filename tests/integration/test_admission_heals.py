"""Admission notices within an audit that one of its keys is lost or damaged, rebuilds itself, and all work continues."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
import redis

from activities import relay, tasks, wait_reasons
from activities.admission import Closed, keys, rebuilding, scripts
from activities.maintenance import system_jobs
from activities.models import Activity
from agents.contracts import Accepted
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tests.engine import Engine
from tests.upkeep import new_leader

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_at_a_time")]

ROUNDS = 6  # one detects the damage, the next one rebuilds
ADMISSION_JOBS = [
    job
    for job in system_jobs.JOBS
    if job.name in ("admission", "limits", "stragglers", "slots", "forgotten work")
]
FAMILIES = (
    "entries", "queue:*", "lanes", "lanes:*", "parked", "parked:*", "ready:*", "places:*", "tenants", "waiting", "backlog",
    "slots", "used", "held", "unstarted", "caps", "weights", "pools", "digest", "limits_version", "times:*", "floors", "durations",
    "since_aged", "grants", "epoch", "files", "file_uses", "holders:*", "claims:*",
)  # fmt: skip


class UncontestedTerm(system_jobs.Term):
    """A term of leadership that no other process competes for."""

    def confirm(self) -> None:
        pass


def delete_key(key: bytes) -> None:
    client().delete(key)


def replace_by_another_type(key: bytes) -> None:
    as_list = client().type(key) == b"string"
    client().delete(key)
    client().rpush(key, "junk") if as_list else client().set(key, "junk")


def fill_with_junk(key: bytes) -> None:
    kind = client().type(key)
    if kind == b"hash":
        client().hset(key, mapping=dict.fromkeys(client().hkeys(key), "junk"))
    elif kind == b"zset":
        client().zadd(key, {"junk": -1})
    elif kind == b"set":
        client().sadd(key, "junk")
    else:
        client().set(key, "junk")


@pytest.fixture(autouse=True)
def _settings(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(relay, "RETRY_SECONDS", 0.01)
    settings.ORCHESTRATOR_AGEING_SECONDS = 0.0
    settings.ORCHESTRATOR_MAX_CONCURRENCY = 3


def keep_busy(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> None:
    """Create a generation with every kind of key: limits of all scopes are full and work waits at each of them."""
    engine.submit(other_tenant, "dev", files=["src/a.py"])
    engine.submit(other_tenant, "dev", files=["src/**"])
    engine.submit(tenant, "qa", 2)
    engine.submit(tenant, "dev", 2, group_key="repo")
    engine.submit(other_tenant, "seo")
    engine.submit(other_tenant, "seo", priority=1)
    engine.submit(other_tenant, "seo")
    engine.deliver()


def damage_keys(family: str, damage: Callable[[bytes], None]) -> int:
    root = keys.generation(client().get(keys.pointer()).decode())
    found_keys = list(client().scan_iter(root + family))
    for key in found_keys:
        damage(key)
    return len(found_keys)


def everything_finishes(engine: Engine) -> bool:
    """Run some rounds of the leader's admission jobs; a round takes an installation at most five seconds."""
    engine.patience = 0.25  # short, because nothing is granted while admission is closed
    term = UncontestedTerm(epoch=1)
    for _ in range(ROUNDS):
        for job in ADMISSION_JOBS:
            with suppress(Closed):
                if job.when(term):
                    job.work(term)
        engine.drain()
        with system_scope():
            if not Activity.objects.exclude(status="done").exists():
                return True
    return False


@pytest.fixture
def two_tenants(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> tuple[Tenant, Tenant]:
    with tenant_scope(other_tenant.pk):
        Tenant.objects.filter(pk=other_tenant.pk).update(weight=2)
    for each in (tenant, other_tenant):
        engine.serve(each, max_concurrency=10)
    engine.serve(tenant, "qa", max_concurrency=1)
    return tenant, other_tenant


@pytest.mark.parametrize("damage", [delete_key, replace_by_another_type, fill_with_junk])
def test_work_goes_on_after_any_of_its_keys_was_lost_or_spoiled(
    engine: Engine, two_tenants: tuple[Tenant, Tenant], damage: Callable[[bytes], None]
) -> None:
    for family in FAMILIES:
        keep_busy(engine, *two_tenants)
        assert damage_keys(family, damage) > 0, family

        assert everything_finishes(engine), family


@pytest.mark.parametrize("damage", [delete_key, replace_by_another_type, fill_with_junk])
def test_work_goes_on_after_the_pointer_was_lost_or_spoiled(
    engine: Engine, two_tenants: tuple[Tenant, Tenant], damage: Callable[[bytes], None]
) -> None:
    keep_busy(engine, *two_tenants)

    damage(keys.pointer().encode())

    assert everything_finishes(engine)


def test_no_cap_is_exceeded_by_what_was_granted_before_the_slots_were_lost(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa", max_concurrency=2)
    engine.agent.behaviour = lambda request: Accepted()
    engine.submit(tenant, "qa", 5)
    engine.drain()

    damage_keys("slots", delete_key)
    for _ in range(ROUNDS):
        new_leader().tick()
        relay.flush()
        engine.drain()

    assert len(engine.agent.calls) == 2


@pytest.mark.parametrize("family", ["files", "file_uses", "holders:*", "used"])
@pytest.mark.parametrize("damage", [delete_key, fill_with_junk])
def test_work_on_files_stays_apart_from_running_work_after_an_audit(
    engine: Engine, tenant: Tenant, family: str, damage: Callable[[bytes], None]
) -> None:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    engine.submit(tenant, files=["src/**"])
    engine.drain()

    damage_keys(family, damage)
    for _ in range(ROUNDS):
        new_leader().tick()
        relay.flush()
    engine.submit(tenant, "dev", files=["src/a.py"])
    (elsewhere,) = engine.submit(tenant, "dev", files=["docs/**"])
    engine.drain()

    assert [call.activity_id for call in engine.agent.calls[1:]] == [elsewhere]


def test_a_run_holds_its_slot_after_redis_has_gone_back_to_the_time_before_its_start(
    engine: Engine, tenant: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    engine.serve(tenant)
    engine.submit(tenant)
    message = engine.take()
    assert message is not None
    snapshot = {key: client().dump(key) for key in client().scan_iter()}
    tasks.run(**message)
    relay.flush()
    client().flushdb()
    for key, value in snapshot.items():
        client().restore(key, 0, value)

    audit = rebuilding.SlotAudit()
    for _ in range(2):  # because only differences that are seen twice are repaired
        audit.compare()

    assert [slot.started for slot in scripts.audit(withdraw_orphans=False)] == [True]


def test_the_wait_reason_says_that_admission_is_being_rebuilt(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant, "qa", max_concurrency=1)
    ids = engine.submit(tenant, "qa", 2)
    damage_keys("slots", replace_by_another_type)

    reason = wait_reasons.why(tenant.pk, ids[1])

    assert (reason.code, reason.detail) == ("queued", wait_reasons.REBUILT)


def test_a_redis_that_refuses_commands_does_not_invalidate_the_generation(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def evalsha(self, *_: Any) -> None:
            raise redis.exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots")

    before = client().get(keys.pointer())
    monkeypatch.setattr(scripts, "client", Refusing)

    with pytest.raises(redis.exceptions.ResponseError):
        scripts.start(UUID(int=1), "grant")

    assert client().get(keys.pointer()) == before
