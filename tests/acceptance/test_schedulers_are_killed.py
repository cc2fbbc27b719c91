"""Two schedulers, of which one is killed all the time: every nominal time fires exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipelines.models import Firing, Schedule, ScheduleExecution, ScheduleJob
from pipelines.schedules import tending
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.conftest import engine

__all__ = ("engine",)

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

SCHEDULES, TIMES = 200, 5  # a thousand nominal times within five seconds
SECONDS = timedelta(seconds=1)


class Schedulers:
    """Two of them at any moment."""

    def __init__(self, nursery: subprocess.Popen[str]) -> None:
        self.nursery, self.alive, self.killed = nursery, [], 0
        self.alive: list[int] = [self._started(), self._started()]

    def _started(self) -> int:
        assert self.nursery.stdin
        assert self.nursery.stdout
        self.nursery.stdin.write("one more\n")
        self.nursery.stdin.flush()
        return int(self.nursery.stdout.readline())

    def kill_one(self) -> None:
        os.kill(self.alive.pop(0), signal.SIGKILL)
        self.killed += 1
        self.alive.append(self._started())


@contextmanager
def two_schedulers(environment: dict[str, str]) -> Iterator[Schedulers]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.acceptance.schedulers"],
        env=environment, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as nursery:  # fmt: skip
        assert nursery.stdout
        assert nursery.stdout.readline() == "ready\n"
        schedulers = Schedulers(nursery)
        try:
            yield schedulers
        finally:
            for pid in [*schedulers.alive, nursery.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_a_thousand_times_fire_once_each_though_a_scheduler_is_killed_every_moment(
    engine: Engine, tenant: Tenant, process_environment: dict[str, str]
) -> None:
    engine.serve(tenant)
    chance = random.Random(4)
    with two_schedulers(process_environment) as schedulers:
        since = _make_schedules(tenant)
        deadline = time.monotonic() + 60
        while _fired(tenant) < SCHEDULES * TIMES and time.monotonic() < deadline:
            time.sleep(chance.uniform(0.3, 0.9))
            schedulers.kill_one()
    while tending.expand():
        pass

    with tenant_scope(tenant.pk):
        on_record = Firing.objects.for_tenant(tenant.pk).values_list("schedule_id", "nominal_at", "state")
        times = {(schedule, nominal) for schedule, nominal, state in on_record if state == "fired"}
        assert len(on_record) == len(times) == SCHEDULES * TIMES
        assert {nominal for _, nominal in times} == {
            since + number * SECONDS for number in range(1, TIMES + 1)
        }
        assert ScheduleExecution.objects.for_tenant(tenant.pk).count() == SCHEDULES * TIMES
        # Whoever was killed between firing and expanding left work to whoever looked next.
        assert ScheduleJob.objects.for_tenant(tenant.pk).count() == SCHEDULES * TIMES
    assert schedulers.killed >= 5


def _make_schedules(tenant: Tenant) -> datetime:
    """All of them every second, from the second after the returned time on."""
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
