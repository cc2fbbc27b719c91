"""Shares of tenants under each kind of limit, waits, and idle slots.

All scenarios but `alone` run the real admission scripts on a real server with simulated time: the scripts read the benchmark's clock, so
ten minutes of work pass in seconds. They test three limits with 4 slots each: seats of workers, the role, and the platform.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID

import orjson

from activities import admission
from activities.admission import Exchange, Grant, keys, scripts
from activities.admission.exchange import Offer, Release
from activities.models import ActivityRun
from activities.submission import NewActivity, submit
from benchmarks import environment
from benchmarks.figures import Figures, percentile
from benchmarks.workload import ROLE, is_done, make_tenant, wait_for_workers
from tenants.context import tenant_scope
from tenants.redis import client

A, B = UUID(int=1), UUID(int=2)
SLOTS = 4
LIMITS = ("seat:qa", "role:qa", "global")
AUDIT_MS = 5_000
START_MS = 1_700_000_000_000
CLOCK_LINE = 'redis.call("TIME")'

#: Figures and the values between which they must lie.
BOUNDS = {
    **{f"10:1 under {limit}, % for the long": (45.0, 55.0) for limit in LIMITS},
    **{f"3:1 under {limit}, % for weight 3": (70.0, 80.0) for limit in LIMITS},
    **{f"B's wait p95 under {limit}, s": (0.0, 20.0) for limit in LIMITS},
    **{f"band 20 waits under {limit}, s": (0.0, 60.0) for limit in LIMITS},
    "utilisation alone, %": (95.0, 100.0),
    "freed slot in use again p95, ms": (-1_000.0, 100.0),
}
NEVER = 1e9  # seconds; work that did not start


class Simulation:
    """Activities of known length that pass through the admission scripts. Times are milliseconds since the start."""

    def __init__(self, limit: str, weights: dict[str, int] | None = None) -> None:
        self.client, self.pointer = client(), keys.pointer()
        self.client.delete(self.pointer)
        self.now, self.ids = 0, 0
        self.lengths: dict[UUID, int] = {}
        self.offered: dict[UUID, tuple[UUID, int]] = {}
        self.ends: list[tuple[int, int, Grant]] = []
        self.used: dict[UUID, float] = defaultdict(float)
        self.waits: dict[UUID, list[float]] = defaultdict(list)
        self._set_clock()
        caps = {"pair:*:qa": 1_000, "seat:qa": 1_000} | {limit: SLOTS}
        generation = keys.new_generation(os.urandom(4).hex())
        document = orjson.dumps({"caps": caps, "weights": weights or {}, "pools": {"qa": "qa"}})
        scripts.run("limits", generation, generation, document)
        self.client.set(self.pointer, generation)

    def _set_clock(self) -> None:
        at = START_MS + self.now
        self.client.delete(self.pointer + ":clock")
        self.client.rpush(self.pointer + ":clock", at // 1000, at % 1000 * 1000)

    def exchange(self, offers: Iterable[tuple[UUID, int, int]] = (), ended: Iterable[Grant] = ()) -> None:
        """Offer activities (tenant, priority, length) and release ended ones. Granted ones start now and end after their length."""
        changes = Exchange(releases=[Release(each.activity_id, each.grant) for each in ended])
        since = datetime.fromtimestamp((START_MS + self.now) / 1000, UTC)
        for tenant, priority, length in offers:
            self.ids += 1
            activity = UUID(int=self.ids)
            self.lengths[activity], self.offered[activity] = length, (tenant, self.now)
            changes.offers.append(Offer(activity, tenant, ROLE, priority, since, None))
        for grant in admission.exchange(changes):
            assert admission.start(grant.activity_id, grant.grant)
            tenant, at = self.offered[grant.activity_id]
            length = self.lengths[grant.activity_id]
            self.waits[tenant].append((self.now - at) / 1000)
            self.used[tenant] += length
            heapq.heappush(self.ends, (self.now + length, grant.activity_id.int, grant))

    def run_until(
        self, end: int, *, next_offer: Callable[[UUID], tuple[UUID, int, int] | None] = lambda tenant: None
    ) -> None:
        """Advance the time. `next_offer`: what a tenant offers when one of its activities has ended."""
        audit = self.now + AUDIT_MS
        while self.ends and min(self.ends[0][0], audit) <= end:
            self.now = min(self.ends[0][0], audit)
            self._set_clock()
            if self.now == audit:
                admission.audit(withdraw_orphans=False)
                audit += AUDIT_MS
                continue
            ended = []
            while self.ends and self.ends[0][0] == self.now:
                ended.append(heapq.heappop(self.ends)[2])
            self.exchange([offer for grant in ended if (offer := next_offer(grant.tenant_id))], ended)
        for at, _, grant in self.ends:
            self.used[grant.tenant_id] -= max(0, at - end)
        self.now = end
        self._set_clock()


@contextmanager
def _simulated_clock() -> Iterator[None]:
    """Make the scripts read the simulation's clock. Everything else in them is unchanged."""
    original = scripts._source
    if original("exchange").count(CLOCK_LINE) != 1:
        sys.exit(f"The scripts do not read the time by {CLOCK_LINE}, which this benchmark replaces.")

    def source(name: str) -> str:
        return original(name).replace(CLOCK_LINE, 'redis.call("LRANGE", KEYS[1] .. ":clock", 0, 1)')

    scripts._source = source  # type: ignore[assignment]
    scripts._sha.cache_clear()
    try:
        yield
    finally:
        scripts._source = original
        scripts._sha.cache_clear()


def _share_of_a(limit: str, minutes: float, *, lengths: tuple[int, int], weight: int = 1) -> float:
    """Return A's share of the slot-seconds, in per cent, while both tenants always have waiting work."""
    simulation = Simulation(limit, {str(A): weight})
    kinds = {A: (A, 10, lengths[0]), B: (B, 10, lengths[1])}
    simulation.exchange([kinds[A]] * 50)
    simulation.exchange([kinds[B]] * 50)
    simulation.run_until(int(minutes * 60_000), next_offer=lambda tenant: kinds[tenant])
    return 100 * simulation.used[A] / (simulation.used[A] + simulation.used[B])


def shares(folder: Path, scale: float) -> Figures:
    """Simulate ten minutes with jobs of 10 s of one tenant and of 1 s of the other."""
    return {
        f"10:1 under {limit}, % for the long": _share_of_a(limit, 10 * scale, lengths=(10_000, 1_000))
        for limit in LIMITS
    }


def weights(folder: Path, scale: float) -> Figures:
    """Simulate ten minutes with jobs of 2 s of a tenant with weight 3 and one with weight 1."""
    return {
        f"3:1 under {limit}, % for weight 3": _share_of_a(limit, 10 * scale, lengths=(2_000, 2_000), weight=3)
        for limit in LIMITS
    }


def waits(folder: Path, scale: float) -> Figures:
    """Simulate A's 1,000 jobs of 10 s, and B's 20 jobs of 1 s that are offered five seconds later. Measures how long B's wait."""
    figures: Figures = {}
    for limit in LIMITS:
        simulation = Simulation(limit)
        simulation.exchange([(A, 10, 10_000)] * 1_000)
        simulation.run_until(5_000)
        simulation.exchange([(B, 10, 1_000)] * 20)
        simulation.run_until(200_000)
        seconds = simulation.waits[B]
        figures[f"B's wait p95 under {limit}, s"] = percentile(seconds, 95) if len(seconds) == 20 else NEVER
    return figures


def ageing(folder: Path, scale: float) -> Figures:
    """Simulate work of priority 1 that always waits, and one job of priority 20. Measures when that one starts."""
    figures: Figures = {}
    for limit in LIMITS:
        simulation = Simulation(limit)
        simulation.exchange([(A, 1, 1_000)] * 50)
        simulation.exchange([(B, 20, 1_000)])
        simulation.run_until(120_000, next_offer=lambda tenant: (A, 1, 1_000) if tenant == A else None)
        figures[f"band 20 waits under {limit}, s"] = next(iter(simulation.waits[B]), NEVER)
    return figures


def alone(folder: Path, scale: float) -> Figures:
    """Run jobs of one second of one tenant with 4 slots, on real workers and in real time."""
    client().flushdb()  # simulated work of this role still holds slots
    count = max(24, int(200 * scale))
    tenant = make_tenant("alone", endpoint="benchmarks.agents:one_second", cap=SLOTS)
    with environment.workers(folder, processes=1, threads=SLOTS):
        wait_for_workers(1)
        with tenant_scope(tenant.pk):
            submit([NewActivity(name="alone", agent_role=ROLE) for _ in range(count)], actor="bench")
        environment.wait_until(partial(is_done, tenant))
    with tenant_scope(tenant.pk):
        runs = list(ActivityRun.objects.filter(tenant=tenant).values_list("started_at", "ended_at"))
    starts, ends = sorted(start for start, _ in runs), sorted(end for _, end in runs)
    # The first four find free slots. Each later one takes the slot that was released first.
    gaps = [(start - end).total_seconds() * 1000 for start, end in zip(starts[SLOTS:], ends, strict=False)]
    busy = sum((end - start).total_seconds() for start, end in runs)
    available = (ends[-1] - starts[0]).total_seconds() * SLOTS
    return {
        "utilisation alone, %": 100 * busy / available,
        "freed slot in use again p95, ms": percentile(gaps, 95),
    }


def _simulated(scenario: Callable[[Path, float], Figures]) -> Callable[[Path, float], Figures]:
    def run(folder: Path, scale: float) -> Figures:
        with _simulated_clock():
            return scenario(folder, scale)

    return run


SCENARIOS: dict[str, Callable[[Path, float], Figures]] = {
    "shares": _simulated(shares),
    "weights": _simulated(weights),
    "waits": _simulated(waits),
    "ageing": _simulated(ageing),
    "alone": alone,
}
