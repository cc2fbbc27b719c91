"""Processes cache the configuration until it changes, and no longer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models.functions import Now

from activities.admission import limits, rebuilding
from activities.models import WorkerProcess
from agents import configuration
from agents.models import Agent, AgentConfig, AgentVersionDeployment, PlatformConfig, Skill
from tenants import caches
from tenants.caches import ConfigurationCache
from tenants.context import OWNER, system_scope, tenant_scope
from tenants.models import Budget, ConfigurationChange, Pause, PauseKind, Plan, Tenant
from tests.engine import eventually, in_another_thread
from tests.integration.isolation.sending import counted

#: Other tests share the server, and some of them build large tables in one transaction; in seconds.
LONGEST_TRANSACTION = 200.0
#: `tgtype` of a trigger for each row, after INSERT, DELETE and UPDATE.
AFTER_ANY_CHANGE_OF_A_ROW = 1 + 4 + 8 + 16
NO_CONFIGURATION = {"tenants_configurationchange", WorkerProcess._meta.db_table}


@pytest.fixture
def cache(database: None) -> ConfigurationCache[object]:
    """Return a cache that checks for changes at every read, as if a second had passed."""
    return ConfigurationCache(check_seconds=0.0)


@pytest.fixture(autouse=True)
def restore_the_agents(database: None) -> Iterator[None]:
    before = {row["role"]: row for row in Agent.objects.values()}
    yield
    for role, row in before.items():
        Agent.objects.filter(role=role).update(**row)
    AgentVersionDeployment.objects.filter(deployed_by="test").delete()


def is_read_again(cache: ConfigurationCache[object], tenant_id: Any, name: str = "qa") -> bool:
    fresh = object()
    return cache.get(tenant_id, name, lambda: fresh) is fresh


def settle(cache: ConfigurationCache[object], *whose: Any) -> None:
    """Wait until all changes are processed, because notes are read again while an older transaction runs on the server."""
    for tenant_id in whose:
        eventually(lambda tenant_id=tenant_id: not is_read_again(cache, tenant_id), LONGEST_TRANSACTION)  # type: ignore[misc]


def of_tenant(tenant: Tenant, change: Callable[[Tenant], object]) -> Callable[[], object]:
    def run() -> object:
        with tenant_scope(tenant.pk):
            return change(tenant)

    return run


OF_ONE_TENANT: dict[str, Callable[[Tenant], object]] = {
    "its settings of a role": lambda t: AgentConfig.objects.create(
        tenant=t, agent_id="qa", timeout_seconds=9
    ),
    "a skill": lambda t: Skill.objects.create(tenant=t, key="house", name="House", kind="skill", content="x"),
    "a budget": lambda t: Budget.objects.create(
        tenant=t, name="All", cap=1, unit="usd", period="month", period_start="2026-01-01"
    ),
    "a pause": lambda t: Pause.objects.create(
        tenant=t, kind=PauseKind.PROVIDER, subject="x", name="x", paused_by="x"
    ),
    "the tenant": lambda t: Tenant.objects.filter(pk=t.pk).update(max_concurrency=7),
}
OF_ALL: dict[str, Callable[[], object]] = {
    "an agent": lambda: Agent.objects.filter(role="qa").update(timeout_seconds=9),
    "a version in production": lambda: AgentVersionDeployment.objects.create(
        agent_id="qa", version="7.7.7", environment="staging", deployed_by="test"
    ),
    "a setting of the platform": lambda: PlatformConfig.objects.create(
        key="scheduler", value={"enabled": True}
    ),
    "a plan": lambda: Plan.objects.create(key="small", name="Small"),
}


@pytest.mark.parametrize("what", OF_ONE_TENANT)
def test_a_change_of_one_tenant_is_read_again_and_others_keep_their_cache(
    cache: ConfigurationCache[object], tenant: Tenant, other_tenant: Tenant, what: str
) -> None:
    whose = (tenant.pk, other_tenant.pk, None)
    assert all(is_read_again(cache, each) for each in whose)
    settle(cache, *whose)

    in_another_thread(of_tenant(tenant, OF_ONE_TENANT[what]))

    assert is_read_again(cache, tenant.pk)
    assert not is_read_again(cache, other_tenant.pk)
    assert is_read_again(cache, None)
    settle(cache, *whose)


@pytest.mark.parametrize("what", OF_ALL)
def test_a_change_for_all_tenants_is_read_again_by_all(
    cache: ConfigurationCache[object], tenant: Tenant, what: str
) -> None:
    settle(cache, tenant.pk)

    in_another_thread(OF_ALL[what])

    assert is_read_again(cache, tenant.pk)
    settle(cache, tenant.pk)


def test_deletions_are_changes_and_figures_of_agents_and_budgets_are_not(
    cache: ConfigurationCache[object], tenant: Tenant
) -> None:
    with tenant_scope(tenant.pk):
        config = AgentConfig.objects.create(tenant=tenant, agent_id="qa", timeout_seconds=9)
        OF_ONE_TENANT["a budget"](tenant)
    settle(cache, tenant.pk)

    Agent.objects.filter(role="qa").update(health="healthy", health_failures=3)
    with tenant_scope(tenant.pk):
        Budget.objects.for_tenant(tenant).update(spent=3)
        budget = Budget.objects.get()
        budget.reserved = 2
        budget.save()
        config.save()
    assert not is_read_again(cache, tenant.pk)

    with tenant_scope(tenant.pk):
        config.delete()
    assert is_read_again(cache, tenant.pk)
    settle(cache, tenant.pk)
    with tenant_scope(tenant.pk):
        Budget.objects.for_tenant(tenant).update(agent_role="qa")
    assert is_read_again(cache, tenant.pk)
    settle(cache, tenant.pk)
    with tenant_scope(tenant.pk):
        Budget.objects.for_tenant(tenant).update(deleted_at=Now())
    assert is_read_again(cache, tenant.pk)


def test_every_table_with_settings_or_limits_records_its_changes(tenant: Tenant) -> None:
    with counted() as queries:
        configuration.settings_for(tenant.pk, "qa")
        limits.current()
    read = set(
        re.findall(r'(?:FROM|JOIN) "?((?:tenants|agents|activities|pipelines)_\w+)', " ".join(queries))
    )
    with connections[OWNER].cursor() as cursor:
        cursor.execute(
            """SELECT tgrelid::regclass::text, bit_or(tgtype::int) FROM pg_trigger
               WHERE tgname IN ('configuration', 'configuration_updated') GROUP BY 1"""
        )
        noted = dict(cursor.fetchall())

    assert read - NO_CONFIGURATION == noted.keys()
    assert set(noted.values()) == {AFTER_ANY_CHANGE_OF_A_ROW}


def test_a_read_during_a_change_sees_it_once_it_has_committed(
    cache: ConfigurationCache[object], tenant: Tenant, other_tenant: Tenant
) -> None:
    def change() -> None:
        of_tenant(tenant, OF_ONE_TENANT["its settings of a role"])()

    settle(cache, tenant.pk, other_tenant.pk)
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("UPDATE agents_agent SET timeout_seconds = 9 WHERE role = 'qa'")
        # Later transactions commit before it, so their changes are seen before it.
        in_another_thread(change)
        assert in_another_thread(lambda: is_read_again(cache, tenant.pk))
        assert not in_another_thread(lambda: is_read_again(cache, other_tenant.pk))

    assert is_read_again(cache, other_tenant.pk)


def test_values_read_in_a_transaction_that_changed_configuration_are_not_cached(
    cache: ConfigurationCache[object], tenant: Tenant, other_tenant: Tenant
) -> None:
    settle(cache, tenant.pk)

    with tenant_scope(tenant.pk):
        OF_ONE_TENANT["its settings of a role"](tenant)
        assert is_read_again(cache, tenant.pk)
        transaction.set_rollback(True)

    assert is_read_again(cache, tenant.pk)
    settle(cache, tenant.pk)


def test_values_read_before_a_change_that_another_thread_has_seen_are_not_cached(
    cache: ConfigurationCache[object], tenant: Tenant
) -> None:
    settle(cache, tenant.pk)

    def slow_read() -> object:
        in_another_thread(of_tenant(tenant, OF_ONE_TENANT["its settings of a role"]))
        assert in_another_thread(lambda: is_read_again(cache, tenant.pk))
        return "as it was before"

    assert cache.get(tenant.pk, "dev", slow_read) == "as it was before"

    assert is_read_again(cache, tenant.pk, "dev")


def test_a_process_checks_for_changes_once_a_second_however_much_it_caches(
    tenant: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = [(whose.pk, role) for whose in (tenant, other_tenant) for role in ("qa", "dev")]
    now = [monotonic()]
    monkeypatch.setattr(caches.time, "monotonic", lambda: now[0])

    def nothing_is_read() -> bool:
        now[0] += 1.01
        with counted() as queries:
            for each in roles:
                configuration.settings_for(*each)
        return len(queries) == 1

    eventually(nothing_is_read)

    with counted() as queries:
        for _ in range(5):
            for each in roles:
                configuration.settings_for(*each)
            now[0] += 0.19
    assert queries == []
    assert nothing_is_read()


def test_limits_are_recomputed_only_when_configuration_or_workers_have_changed(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[limits.Workers] = []
    whole = limits._limits

    def counting(workers: limits.Workers) -> limits.Limits:
        computed.append(workers)
        return whole(workers)

    def is_computed_again() -> bool:
        computed.clear()
        limits.refresh()
        return bool(computed)

    monkeypatch.setattr(limits, "_limits", counting)
    rebuilding.rebuild()
    eventually(lambda: not is_computed_again())

    computed.clear()
    assert [limits.refresh() for _ in range(3)] == [False] * 3
    assert computed == []

    in_another_thread(of_tenant(tenant, OF_ONE_TENANT["the tenant"]))
    assert [limits.refresh() for _ in range(2)] == [True, False]
    assert computed

    eventually(lambda: not is_computed_again())
    with system_scope():
        WorkerProcess.objects.create(host="h", pid=1, pid_started=1.0, roles=["qa"], concurrency=2)
    assert [limits.refresh() for _ in range(2)] == [True, False]
    assert len(computed) == 1


def test_a_cache_that_was_not_checked_for_half_an_hour_is_dropped(
    cache: ConfigurationCache[object], tenant: Tenant
) -> None:
    settle(cache, tenant.pk)
    known = cache._snapshot
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT %s - interval '31 minutes'", [known.at])
        ((long_ago,),) = cursor.fetchall()

    cache._snapshot = caches._Snapshot(known.horizon, long_ago, known.checked_at, known.values)

    assert is_read_again(cache, tenant.pk)


def test_change_records_of_another_server_are_ignored_and_old_ones_are_deleted(
    cache: ConfigurationCache[object], tenant: Tenant
) -> None:
    ahead = 2**40
    with connections[OWNER].cursor() as cursor:
        cursor.execute("DELETE FROM tenants_configurationchange")
        cursor.execute(
            "INSERT INTO tenants_configurationchange (transaction, concerns, noted_at) VALUES"
            " (%s, NULL, now() - interval '25 hours'), (%s, NULL, now() - interval '23 hours')",
            [ahead, ahead + 1],
        )
    settle(cache, tenant.pk)

    of_tenant(tenant, OF_ONE_TENANT["its settings of a role"])()

    remaining = ConfigurationChange.objects.order_by("id").values_list("transaction", "concerns")
    assert [whose for number, whose in remaining if number != ahead + 1] == [tenant.pk]
    assert len(remaining) == 2
