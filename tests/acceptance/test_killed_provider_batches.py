"""Sixty results of provider batches count once each, though the process that handles the batches is killed twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

import pytest

from activities.maintenance import invariants
from activities.models import Activity, ActivityEvent, ActivityRun, OutputSpool
from agents import outbound
from agents.governor import providers
from benchmarks.fake_provider import FakeProvider, Turn
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import batching
from tests.engine import Engine, eventually
from tests.forked_processes import forks
from tests.integration.conftest import engine

__all__ = ("engine",)

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(300),
    # `find_spec` does not load it, because every process of the suite imports this file.
    pytest.mark.skipif(
        not find_spec("anthropic"), reason="pip install orchestrator[llm] for the adapter batch"
    ),
]

WORK, SIZE, UNLUCKY = 60, 15, 6


@pytest.fixture
def provider(settings: Any) -> Iterator[FakeProvider]:
    with FakeProvider() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
        providers._noted.clear()
        yield running
    outbound.close_connections()


def fails_once(unlucky: set[str]) -> Any:
    """Answer each activity by its name. Those in `unlucky` fail the first time."""

    def answer(body: Mapping[str, Any]) -> Turn | str:
        name = body["messages"][0]["content"]
        ours = next((each for each in unlucky if f"{each}\n" in f"{name}\n"), None)
        if ours is None:
            return Turn("Done.")
        unlucky.discard(ours)
        return "api_error"

    return answer


def test_each_batch_result_counts_once_though_the_process_that_handles_batches_is_killed_twice(
    engine: Engine, tenant: Tenant, provider: FakeProvider, process_environment: dict[str, str]
) -> None:
    environment = {
        **process_environment,
        "AGENT_EGRESS_ALLOW": provider.place,
        "ORCHESTRATOR_BATCH_SIZE": str(SIZE),
        "ORCHESTRATOR_BATCH_AGE_SECONDS": "0.5",
        "ORCHESTRATOR_BATCH_POLL_SECONDS": "0.1",
        "ORCHESTRATOR_BATCH_LEASE_SECONDS": "2",
    }
    batches, began = provider.batches, datetime.now(UTC) - timedelta(minutes=1)
    batches.answering = fails_once({f"work {number}" for number in range(0, WORK, WORK // UNLUCKY)})
    batching.serve(engine, tenant, provider)
    ids = engine.submit(tenant, count=WORK, priority=20)
    engine.drain()

    with forks("process_batches", environment) as running:
        batches.held.set()
        first = running.start()
        eventually(lambda: batches.batches, 30)
        running.kill(first)  # the provider has the batch, and the process did not get its name
        batches.held.clear()
        batches.released.set()

        second = running.start(SIZE + SIZE // 2)
        assert running.read_line() == "stopped"
        running.kill(second)  # some answers of a batch were stored, and others not

        running.start()
        eventually(lambda: count(tenant, "done") == WORK - UNLUCKY, 60)
        engine.make_due(tenant)
        engine.drain()
        eventually(lambda: count(tenant, "done") == WORK, 60)
        # Slots are released after the results are committed, which may still be going on.
        eventually(lambda: invariants.check(quiesced=True, since=began) == [], 30)

    sent = Counter(request["custom_id"] for request in batches.requests())
    sizes = [len(batch.requests) for batch in batches.batches.values()]
    assert set(sent.values()) == {1}
    assert (len(sent), sizes[:4], max(sizes)) == (WORK + UNLUCKY, [SIZE] * 4, SIZE)
    with tenant_scope(tenant.pk):
        ends = Counter(ActivityEvent.objects.filter(verb="complete").values_list("activity_id", flat=True))
        tries = Counter(ActivityRun.objects.values_list("activity_id", flat=True))
        assert OutputSpool.objects.count() == WORK
    assert ends == dict.fromkeys(ids, 1)
    assert Counter(tries.values()) == {1: WORK - UNLUCKY, 2: UNLUCKY}
    assert Counter(item.state for item in batching.items(tenant)) == {"answered": WORK, "failed": UNLUCKY}
    assert {batch.sendings for batch in batching.batches(tenant)} == {1}


def count(tenant: Tenant, status: str) -> int:
    with tenant_scope(tenant.pk):
        return Activity.objects.filter(status=status).count()
