"""Whether tenants get their fair share at full size, and whether slots stand idle.

`python -m benchmarks.fairness` measures every clause; `--only shares,waits` some; `--quick` with a tenth of the time. Exit code 1 when a
figure is out of its bounds.

    shares, weights, waits, ageing   the admission scripts on a real server, fast-forwarded: the clock is the benchmark's, so ten
                                     minutes of work pass in seconds. For the limits seats, role and global, each with 4 slots.
    alone                            real worker processes and real time: one tenant, 4 slots, jobs of one second.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import setting

RESULTS = Path(__file__).parent / "results"
A, B = UUID(int=1), UUID(int=2)
SLOTS = 4
LIMITS = ("seat:qa", "role:qa", "global")
AUDIT_MS = 5_000
BEGINS_MS = 1_700_000_000_000
CLOCK_LINE = 'redis.call("TIME")'

#: name of a figure -> its value, and the bounds that it must keep
Figures = dict[str, tuple[float, float, float]]


class Play:
    """Work of known length, played through the admission scripts. Times are milliseconds since the beginning."""

    def __init__(self, limit: str, weights: dict[str, int] | None = None) -> None:
        from activities.admission import keys, scripts
        from tenants.redis import client

        self.client, self.pointer, self.scripts = client(), keys.pointer(), scripts
        self.client.delete(self.pointer)
        self.now, self.ids = 0, 0
        self.lengths: dict[UUID, int] = {}
        self.offered: dict[UUID, tuple[UUID, int]] = {}
        self.ends: list[tuple[int, int, Any]] = []
        self.used: dict[UUID, float] = defaultdict(float)
        self.waits: dict[UUID, list[float]] = defaultdict(list)
        self._tell_time()
        caps = {"pair:*:qa": 1_000, "seat:qa": 1_000} | {limit: SLOTS}
        generation = keys.new_generation(os.urandom(4).hex())
        document = orjson.dumps({"caps": caps, "weights": weights or {}, "pools": {"qa": "qa"}})
        scripts.run("limits", generation, generation, document)
        self.client.set(self.pointer, generation)

    def _tell_time(self) -> None:
        at = BEGINS_MS + self.now
        self.client.delete(self.pointer + ":clock")
        self.client.rpush(self.pointer + ":clock", at // 1000, at % 1000 * 1000)

    def exchange(self, offers: Iterable[tuple[UUID, int, int]] = (), releases: Iterable[Any] = ()) -> None:
        """Offers are of a tenant, its priority and its length. What is granted starts at once and ends after its length."""
        from activities import admission
        from activities.admission import Exchange
        from activities.admission.exchange import Offer, Release

        what = Exchange(releases=[Release(each.activity_id, each.grant) for each in releases])
        since = datetime.fromtimestamp((BEGINS_MS + self.now) / 1000, UTC)
        for tenant, priority, length in offers:
            self.ids += 1
            activity = UUID(int=self.ids)
            self.lengths[activity], self.offered[activity] = length, (tenant, self.now)
            what.offers.append(Offer(activity, tenant, "qa", priority, since, None))
        for grant in admission.exchange(what):
            assert admission.start(grant.activity_id, grant.grant)
            tenant, at = self.offered[grant.activity_id]
            length = self.lengths[grant.activity_id]
            self.waits[tenant].append((self.now - at) / 1000)
            self.used[tenant] += length
            heapq.heappush(self.ends, (self.now + length, grant.activity_id.int, grant))

    def until(
        self, end: int, *, again: Callable[[UUID], tuple[UUID, int, int] | None] = lambda tenant: None
    ) -> None:
        """Go on to a time; `again` is what a tenant offers when work of it has ended."""
        from activities import admission

        audit = self.now + AUDIT_MS
        while self.ends and min(self.ends[0][0], audit) <= end:
            self.now = min(self.ends[0][0], audit)
            self._tell_time()
            if self.now == audit:
                admission.audit(withdraw_orphans=False)
                audit += AUDIT_MS
                continue
            ended = []
            while self.ends and self.ends[0][0] == self.now:
                ended.append(heapq.heappop(self.ends)[2])
            more = [offer for grant in ended if (offer := again(grant.tenant_id))]
            self.exchange(more, ended)
        for at, _, grant in self.ends:
            self.used[grant.tenant_id] -= max(0, at - end)
        self.now = end
        self._tell_time()


def _share(limit: str, minutes: float, *, lengths: tuple[int, int], weight: int = 1) -> float:
    """A's part of the slot-seconds, in per cent, while both have work without end."""
    play = Play(limit, {str(A): weight})
    kinds = {A: (A, 10, lengths[0]), B: (B, 10, lengths[1])}
    play.exchange([kinds[A]] * 50)
    play.exchange([kinds[B]] * 50)
    play.until(int(minutes * 60_000), again=lambda tenant: kinds[tenant])
    return 100 * play.used[A] / (play.used[A] + play.used[B])


def shares(folder: Path, scale: float) -> Figures:
    """Jobs of 10 s and of 1 s, ten minutes."""
    return {
        f"10:1 under {limit}, % for the long": (_share(limit, 10 * scale, lengths=(10_000, 1_000)), 45, 55)
        for limit in LIMITS
    }


def weights(folder: Path, scale: float) -> Figures:
    """Weight 3 and weight 1, jobs of 2 s, ten minutes."""
    return {
        f"3:1 under {limit}, % for weight 3": (
            _share(limit, 10 * scale, lengths=(2_000, 2_000), weight=3),
            70,
            80,
        )
        for limit in LIMITS
    }


def waits(folder: Path, scale: float) -> Figures:
    """A queues 1,000 jobs of 10 s, B 20 jobs of 1 s five seconds later: how long B's wait."""
    figures: Figures = {}
    for limit in LIMITS:
        play = Play(limit)
        play.exchange([(A, 10, 10_000)] * 1_000)
        play.until(5_000)
        play.exchange([(B, 10, 1_000)] * 20)
        play.until(200_000)
        waited = statistics.quantiles(play.waits[B], n=20)[18] if len(play.waits[B]) == 20 else 1e9
        figures[f"B's wait p95 under {limit}, s"] = (waited, 0, 20)
    return figures


def ageing(folder: Path, scale: float) -> Figures:
    """Band 1 never runs dry with jobs of 1 s; when does a job of priority 20 start? The bound of the test is 60 s."""
    figures: Figures = {}
    for limit in LIMITS:
        play = Play(limit)
        play.exchange([(A, 1, 1_000)] * 50)
        play.exchange([(B, 20, 1_000)])
        play.until(120_000, again=lambda tenant: (A, 1, 1_000) if tenant == A else None)
        figures[f"band 20 waits under {limit}, s"] = (play.waits[B][0] if play.waits[B] else 1e9, 0, 60)
    return figures


def alone(folder: Path, scale: float) -> Figures:
    """One tenant, 4 slots of real workers, jobs of one second."""
    from activities.models import ActivityRun
    from activities.submission import NewActivity, submit
    from benchmarks import scenarios
    from tenants.context import tenant_scope
    from tenants.redis import client

    # What was played before still holds slots of this role, and leaves them only when they look forgotten.
    client().flushdb()

    count = max(24, int(200 * scale))
    tenant = scenarios._tenant(f"alone-{os.urandom(4).hex()}", agent="one_second", cap=SLOTS)
    with setting.our_workers(folder / "ours.log", processes=1, threads=SLOTS):
        scenarios._wait_for_workers(1)
        with tenant_scope(tenant.pk):
            submit(
                [NewActivity(name="alone", agent_role=scenarios.ROLE) for _ in range(count)], actor="bench"
            )
        setting.wait(
            lambda: scenarios._left(scenarios.Activity, tenant, ["created", "assigned", "in_progress"]) == 0
        )
    with tenant_scope(tenant.pk):
        runs = list(ActivityRun.objects.filter(tenant=tenant).values_list("started_at", "ended_at"))
    begun, ended = sorted(start for start, _ in runs), sorted(end for _, end in runs)
    # The first four find free slots; each later one takes the slot that came back first.
    gaps = [(start - end).total_seconds() * 1000 for start, end in zip(begun[SLOTS:], ended, strict=False)]
    busy = sum((end - start).total_seconds() for start, end in runs)
    span = (ended[-1] - begun[0]).total_seconds() * SLOTS
    return {
        "utilisation alone, %": (100 * busy / span, 95, 100),
        "freed slot in use again p95, ms": (statistics.quantiles(gaps, n=20)[18], -1e9, 100),
    }


ALL: dict[str, Callable[[Path, float], Figures]] = {
    "shares": shares, "weights": weights, "waits": waits, "ageing": ageing, "alone": alone,
}  # fmt: skip


def _with_a_clock_of_its_own() -> Callable[[], None]:
    """From now on the scripts read the time that the benchmark tells; the rest of them is as it is. Returns how to undo it."""
    from activities.admission import scripts

    real = scripts._source
    text = real("exchange")
    if text.count(CLOCK_LINE) != 1:
        sys.exit("the scripts ask for the time in another way than this benchmark knows")

    def source(name: str) -> str:
        return real(name).replace(CLOCK_LINE, 'redis.call("LRANGE", KEYS[1] .. ":clock", 0, 1)')

    def undo() -> None:
        scripts._source = real
        scripts._sha.cache_clear()

    scripts._source = source  # type: ignore[assignment]
    scripts._sha.cache_clear()
    return undo


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help=f"some of {', '.join(ALL)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time; nothing is stored")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(ALL)
    if unknown := set(wanted) - set(ALL):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    console, figures = Console(), dict[str, tuple[float, float, float]]()
    with setting.servers() as folder, Progress(console=console) as progress:
        task = progress.add_task("measuring", total=len(wanted))
        for name in wanted:
            progress.update(task, description=name)
            undo = _with_a_clock_of_its_own() if name != "alone" else lambda: None
            try:
                figures |= ALL[name](folder, 0.1 if options.quick else 1.0)
            finally:
                undo()
            progress.advance(task)
    failed = _show(console, figures)
    if not options.quick:
        _store(figures)
    sys.exit(1 if failed else 0)


def _show(console: Console, figures: Figures) -> list[str]:
    table = Table("figure", "value", "at least", "at most", "")
    failed = [name for name, (value, least, most) in figures.items() if not least <= value <= most]
    for name, (value, least, most) in figures.items():
        bound = "" if least < -1e8 else f"{least:g}"
        table.add_row(name, f"{value:.1f}", bound, f"{most:g}", "FAILED" if name in failed else "ok")
    console.print(table)
    return failed


def _store(figures: Figures) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-fairness.json"
    before = json.loads(path.read_text())["figures"] if path.exists() else {}
    found = {
        name: {"value": round(value, 2), "least": least, "most": most}
        for name, (value, least, most) in figures.items()
    }
    command = "python -m benchmarks.fairness"
    path.write_text(
        json.dumps({"title": "fairness", "command": command, "figures": before | found}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
