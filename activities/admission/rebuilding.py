"""Rebuilds admission from PostgreSQL after a wipe of Redis, and audits its slots.

While the pointer is missing, every script answers "closed": nothing is granted, so no cap can be exceeded. The leader writes a new
generation, with the slots of all live runs and all waiting work, and opens it in one step with its epoch. A leader that was frozen during
the rebuild cannot open an outdated generation, because its epoch is over.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import orjson
import redis
from django.conf import settings
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from activities.admission import keys, limits, scripts
from activities.admission.exchange import CLAIM_SECONDS, Exchange, Grant, Offer, Release, band_of, lane_key_of
from activities.models import Activity, ActivityRun, Wake, WorkerProcess
from agents.exceptions import BudgetSpent
from agents.models import AgentConfig
from tenants import clock
from tenants.context import system_scope
from tenants.identifiers import first_id_at
from tenants.redis import client

logger = logging.getLogger(__name__)

PAGE = 1_000
WINDOW = timedelta(seconds=60)  # of the runaway guard; lua/library.lua has it too.
LONGEST_WINDOW = timedelta(hours=1)  # how far back starts are counted when a rate limit is restored
# A claim whose slot was confirmed before the wipe, or before an audit, commits within this time. After it, the run can be counted.
SETTLE_SECONDS = 2 * CLAIM_SECONDS


def is_open() -> bool:
    """Whether a generation is in force. Raises `redis.RedisError` if there is no answer."""
    try:
        return keys.is_current(client().get(keys.pointer()))
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        scripts.invalidate(f"pointer: {error}")
        return False


def rebuild(*, epoch: int = 0, confirm: Callable[[], None] = lambda: None) -> str:
    """Write a new generation from PostgreSQL and open it. Only for the leader, in its epoch. Returns the name of the generation.

    `confirm` raises if the epoch is over. Raises `scripts.Closed` if Redis was wiped meanwhile, or a later leader was faster. Then the
    written generation stays closed.
    """
    generation = keys.new_generation(secrets.token_hex(4))
    client().set(f"{keys.generation(generation)}epoch", epoch)
    limits.refresh(generation=generation)
    _restore_starts(generation)
    held = _restore_runs(generation)
    waiting = _restore_waiting(generation)
    confirm()
    if not scripts.run("open", generation, epoch):
        raise scripts.Closed
    logger.warning(
        "Admission rebuilt", extra={"action": "admission_rebuilt", "held": held, "waiting": waiting}
    )
    return generation


def _restore_runs(generation: str) -> int:
    with system_scope():
        runs = list(_live_runs())
        live = {run.activity_id for run in runs}
        runs += [run for run in _runs_still_called() if run.activity_id not in live]
    for start in range(0, len(runs), PAGE):
        _restore(generation, hold=[_slot_of(run) for run in runs[start : start + PAGE]])
    return len(runs)


def _restore_starts(generation: str) -> None:
    """Count recent starts against rate limits, so that a wipe of Redis does not allow them a second time.

    A token bucket gets at least its capacity minus the starts within the time that it takes to fill. Times before `LONGEST_WINDOW` are not
    counted as refill.
    """
    with system_scope():
        runs = _recent(ActivityRun.objects.select_related("activity"), WINDOW)
        late = list(runs.annotate(age=Now() - F("started_at")))
        tokens: list[list[object]] = [
            [str(config.tenant_id), config.agent_id, _tokens_of(config)]
            for config in AgentConfig.objects.exclude(rate={}).only("tenant_id", "agent_id", "rate")
        ]
    starts: list[list[object]] = [
        [str(run.tenant_id), run.activity.agent_role, run.grant, int(run.age.total_seconds() * 1000)]
        for run in late
    ]
    for start in range(0, len(starts), PAGE):
        _restore(generation, starts=starts[start : start + PAGE])
    _restore(generation, tokens=tokens)


def _tokens_of(config: AgentConfig) -> float:
    per_second, capacity = float(config.rate["per_second"]), float(config.rate["capacity"])
    window = min(timedelta(seconds=capacity / per_second), LONGEST_WINDOW)
    started = _recent(
        ActivityRun.objects.filter(tenant_id=config.tenant_id, activity__agent_role=config.agent_id), window
    )[: math.ceil(capacity)].count()
    return max(0.0, min(capacity, window.total_seconds() * per_second) - started)


def _recent(runs: QuerySet[ActivityRun], within: timedelta) -> QuerySet[ActivityRun]:
    """Select runs that started within this time. Their ids come from the clock of a worker, which may be off by `LONGEST_WINDOW`."""
    earliest = first_id_at(clock.now() - within - LONGEST_WINDOW)
    return runs.filter(pk__gte=earliest, started_at__gt=Now() - within)


def _restore_waiting(generation: str) -> int:
    total, after = 0, None
    while True:
        with system_scope():
            wakes = Wake.objects.filter(state="pending", due_at=None)
            page = list(
                (wakes.filter(pk__gt=after) if after else wakes)
                .order_by("pk")
                .values_list("pk", "activity_id")[:PAGE]
            )
            # Selected by key only: with a filter by status, PostgreSQL might read everything that waits.
            rows = Activity.objects.filter(pk__in={activity for _, activity in page})
            activities = [row for row in rows if row.status == "created" and row.assignee_type == "agent"]
        _restore(
            generation,
            offer=[Offer.of(activity) for activity in activities],
        )
        total += len(activities)
        if len(page) < PAGE:
            return total
        after = page[-1][0]


def _live_runs() -> QuerySet[ActivityRun]:
    return ActivityRun.objects.filter(status="running", parked=False).select_related("activity")


def _slot_of(run: ActivityRun) -> list[object]:
    activity = run.activity
    seated = 0 if run.accepted_at else 1
    return [
        str(activity.id), str(run.tenant_id), activity.agent_role, band_of(activity.priority),
        lane_key_of(activity), run.grant, seated, "\n".join(activity.files),
    ]  # fmt: skip


def _restore(
    generation: str,
    *,
    hold: Sequence[list[object]] = (),
    offer: Sequence[Offer] = (),
    starts: Sequence[list[object]] = (),
    tokens: Sequence[list[object]] = (),
) -> None:
    document = {
        "hold": hold, "offer": [item.arguments() for item in offer], "starts": starts, "tokens": tokens
    }  # fmt: skip
    if scripts.run("restore", generation, orjson.dumps(document)) < 0:
        raise scripts.Closed


def _calls_under_way(slots: set[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
    """Return the slots of ended runs for whose agents a live worker still waits. They are in use until it releases them."""
    if not slots:
        return set()
    with system_scope():
        over = _runs_still_called().filter(
            activity_id__in=[activity for activity, _ in slots], grant__in=[grant for _, grant in slots]
        )
        return {*over.values_list("activity_id", "grant")} & slots


def _runs_still_called() -> QuerySet[ActivityRun]:
    """Select runs of live workers that were suspended, cancelled or stopped by a budget. Their slots are released when the call ends."""
    living = WorkerProcess.objects.filter(pk=OuterRef("worker_id"), ended_at=None)
    over = Q(status="cancelled") | ~Q(ended_by_tool="") | Q(status="failed", error__code=BudgetSpent.code)
    return (
        ActivityRun.objects.filter(Exists(living), over).exclude(status="running").select_related("activity")
    )


@dataclass(slots=True)
class SlotAudit:
    """Compares held slots with live runs. A difference is repaired if it is seen twice in a row; once may be a matter of timing."""

    orphans: set[tuple[UUID, str]] = field(default_factory=set)  # slots without a run, seen once
    missing: set[tuple[UUID, str]] = field(default_factory=set)  # runs without a slot, seen once

    def compare(self) -> tuple[Exchange, list[Grant]]:
        """Return slots to release, and grants to publish again because no worker has started them.

        Raises `scripts.Closed`, also if the data in Redis is inconsistent.
        """
        scripts.check_structure()
        # Redis first: a run that commits between the two reads is then seen as live, and its slot not as an orphan.
        slots = scripts.audit(withdraw_orphans=True)
        with system_scope():
            runs = {(run.activity_id, run.grant): run for run in _live_runs()}
        started = {(slot.activity_id, slot.grant) for slot in slots if slot.started}
        orphans = started - runs.keys()
        orphans -= _calls_under_way(orphans)
        # Until the end of a run that passes its slot on is committed, the run has no slot, and that slot has no run.
        missing = runs.keys() - started
        release = Exchange(releases=[Release(*key) for key in orphans & self.orphans])
        lost = missing & self.missing
        self.orphans, self.missing = orphans - self.orphans, missing - self.missing
        for slot in slots:
            run = runs.get((slot.activity_id, slot.grant))
            if slot.seated and run is not None and run.accepted_at:
                scripts.accept(slot.activity_id, slot.grant)  # its worker could not release the seat
        if lost:
            _restore("", hold=[_slot_of(runs[key]) for key in lost])
        overdue = settings.ORCHESTRATOR_REPUBLISH_SECONDS
        again = [
            Grant(slot.activity_id, slot.tenant_id, slot.role, slot.grant, False)
            for slot in slots
            if not slot.started and slot.age_seconds > overdue
        ]
        return release, again


def find_remains(tenant_id: UUID) -> Exchange:
    """Return the changes that remove what a deleted tenant still has in admission: its slots and its waiting work.

    None while admission is closed, because it is then rebuilt without the tenant. Raises `redis.RedisError`.
    """
    current = client().get(keys.pointer())
    try:
        slots = [slot for slot in scripts.audit(withdraw_orphans=False) if slot.tenant_id == tenant_id]
    except scripts.Closed:
        return Exchange()
    entries = f"{keys.generation(current.decode())}entries" if isinstance(current, bytes) else ""
    waiting = [
        UUID(activity_id.decode())
        for activity_id, place in client().hscan_iter(entries, count=PAGE)
        if str(tenant_id).encode() in place
    ]
    # Withdrawn as well: an activity that was offered during its run waits as soon as its slot is released.
    return Exchange(
        releases=[Release(slot.activity_id, slot.grant) for slot in slots],
        withdrawals=[*waiting, *(slot.activity_id for slot in slots)],
    )


def forget_old_generations() -> int:
    """Delete the keys of earlier generations. Returns how many."""
    current, deleted = client().get(keys.pointer()), 0
    if not isinstance(current, bytes):
        return 0
    keep = keys.generation(current.decode()).encode()
    for key in client().scan_iter(match=f"{keys.pointer()}:*", count=1000):
        if not key.startswith(keep):
            deleted += client().unlink(key)
    return deleted
