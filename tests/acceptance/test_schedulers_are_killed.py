"""Two schedulers, of which one is killed again and again, fire every nominal time exactly once."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta

import pytest

from pipelines.models import Firing, Schedule, ScheduleExecution, ScheduleJob
from pipelines.schedules import system_jobs
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.forked_processes import forks
from tests.integration.conftest import engine

__all__ = ("engine",)

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

SCHEDULES, TIMES = 100, 5  # nominal times, within five seconds
SECONDS = timedelta(seconds=1)


def test_hundreds_of_nominal_times_fire_once_each_while_a_scheduler_is_killed_again_and_again(
    engine: Engine, tenant: Tenant, process_environment: dict[str, str]
) -> None:
    engine.serve(tenant)
    chance = random.Random(4)
    with forks("fire_schedules", process_environment) as schedulers:
        schedulers.start()
        schedulers.start()
        killed = 0
        since = _make_schedules(tenant)
        deadline = time.monotonic() + 60
        while _fired(tenant) < SCHEDULES * TIMES and time.monotonic() < deadline:
            time.sleep(chance.uniform(0.3, 0.9))
            schedulers.kill(schedulers.alive[0])
            schedulers.start()
            killed += 1
    while system_jobs.expand():
        pass

    with tenant_scope(tenant.pk):
        recorded = Firing.objects.for_tenant(tenant.pk).values_list("schedule_id", "nominal_at", "state")
        times = {(schedule, nominal) for schedule, nominal, state in recorded if state == "fired"}
        assert len(recorded) == len(times) == SCHEDULES * TIMES
        assert {nominal for _, nominal in times} == {
            since + number * SECONDS for number in range(1, TIMES + 1)
        }
        assert ScheduleExecution.objects.for_tenant(tenant.pk).count() == SCHEDULES * TIMES
        # A scheduler that was killed between firing and expanding left the expansion to the next one.
        assert ScheduleJob.objects.for_tenant(tenant.pk).count() == SCHEDULES * TIMES
    assert killed >= 5


def _make_schedules(tenant: Tenant) -> datetime:
    """Create schedules that fire every second, from the second after the returned time on."""
    since = datetime.now(UTC).replace(microsecond=0) + SECONDS
    with tenant_scope(tenant.pk):
        Schedule.objects.bulk_create(
            Schedule(
                tenant=tenant, name=f"s{number}", target_type="agent", agent_role="qa", interval_ms=1_000, overlap="allow",
                looked_until=since, next_run_at=since + SECONDS, end_at=since + TIMES * SECONDS, catch_up={"up_to": 0},
            )
            for number in range(SCHEDULES)
        )  # fmt: skip
    return since


def _fired(tenant: Tenant) -> int:
    with tenant_scope(tenant.pk):
        return Firing.objects.for_tenant(tenant.pk).filter(state="fired").count()
