"""The system jobs: the table of all recurring work of the leader, with period, owner and time budget.

Each job may run twice or in several processes at once, and is isolated from the others: see `scheduler`. A job keeps its state between two
runs in the term of its leader. The state ends with the term, so that a process that was frozen does not act on old observations.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import redis
from django.conf import settings

from activities import background_tasks, budgets, dead_letters, outbox, outputs, publishing, relay
from activities.admission import limits, rebuilding
from activities.human_tasks import deadlines
from activities.maintenance import counters, leader, platform_checks, recovery, retention
from tenants import channels
from tenants import retention as tenant_retention
from tenants.events import log

logger = logging.getLogger(__name__)

TICK = 0.0  # a period: `ORCHESTRATOR_TICK_SECONDS`
LETTER_PATIENCE = timedelta(seconds=15)
LETTER_TURN_SECONDS = 2.0


@dataclass(slots=True)
class Term:
    """One term of one leader, with the state of its jobs."""

    epoch: int
    watch: recovery.LivenessWatch = field(default_factory=recovery.LivenessWatch)
    heartbeats: recovery.HeartbeatWatch = field(default_factory=recovery.HeartbeatWatch)
    slots: rebuilding.SlotAudit = field(default_factory=rebuilding.SlotAudit)
    reminder: background_tasks.Reminder = field(default_factory=background_tasks.Reminder)
    monitor: platform_checks.PlatformMonitor = field(default_factory=platform_checks.PlatformMonitor)
    is_open: bool = False  # whether admission was open at the last check
    closed_since: float | None = None
    sweep_from: UUID | None = None

    def confirm(self) -> None:
        """Raise `LeadLost` if this term has ended. Call it before acting on earlier observations."""
        leader.confirm(self.epoch)


@dataclass(frozen=True, slots=True)
class SystemJob:
    """One row of the table. `work` returns how much it did, or whether it did anything.

    `period`: seconds between two runs, or `TICK`. `owner`: the module that implements it. `budget`: the time limit of one statement in
    seconds; locks are awaited for at most `scheduler.LOCK_SECONDS`. `when`: a condition that is checked before each run.
    """

    name: str
    period: float
    owner: str
    budget: float
    work: Callable[[Term], object]
    when: Callable[[Term], bool] = field(default=lambda term: True)

    @property
    def every(self) -> float:
        return self.period or settings.ORCHESTRATOR_TICK_SECONDS


def _find_lost_workers(term: Term) -> int:
    lost = recovery.declare_all_lost(term.watch.find_lost(), confirm=term.confirm)
    return lost + recovery.reclaim_runs_of_ended_workers()


def _find_silent_agents(term: Term) -> int:
    return recovery.reclaim_silent_runs(term.heartbeats, confirm=term.confirm)


def _keep_admission_open(term: Term) -> bool:
    """Rebuild admission if it is closed, and return whether that happened.

    It waits `SETTLE_SECONDS` after Redis was wiped, so that claims of earlier grants can commit first.
    """
    try:
        term.is_open = rebuilding.is_open()
    except redis.RedisError:
        term.is_open = False
        raise
    if term.is_open:
        term.closed_since = None
        return False
    now = time.monotonic()
    term.closed_since = term.closed_since or now
    if now - term.closed_since < rebuilding.SETTLE_SECONDS:
        return False
    rebuilding.rebuild(epoch=term.epoch, confirm=term.confirm)
    term.is_open = True
    return True


def _audit_slots(term: Term) -> int:
    release, again = term.slots.compare()
    term.confirm()  # because the result depends on an earlier observation
    if release:
        logger.warning(
            "Slots without a run released",
            extra={"action": "slots_mended", "count": len(release.releases)},
        )
        relay.hand_over(release)
    if again:
        publishing.publish(again)
    return len(release.releases) + len(again)


def _offer_forgotten(term: Term) -> int:
    """Offer the next pages of forgotten work, and continue there in the next run."""
    offered, term.sweep_from = recovery.offer_forgotten(after=term.sweep_from)
    while term.sweep_from is not None and offered < _OFFERED_AT_ONCE:
        more, term.sweep_from = recovery.offer_forgotten(after=term.sweep_from)
        offered += more
    return offered


_OFFERED_AT_ONCE = 2_500


def _copy_outputs(term: Term) -> int:
    copied = 0
    for _ in range(10):
        portion = outputs.copy_waiting(older_than=outputs.SPOOLED_FOR)
        copied += portion
        if portion < outputs.COPIED_AT_ONCE:
            break
    return copied


def _handle_dead_letters(term: Term) -> int:
    # Workers handle dead letters from a queue. If none serves it, the leader handles them a little later.
    if not dead_letters.unhandled_since(LETTER_PATIENCE):
        return 0
    return dead_letters.handle_waiting(within=LETTER_TURN_SECONDS)


def _open(term: Term) -> bool:
    return term.is_open


#: Jobs that are due together start in this order. Periods and budgets are in seconds.
JOBS: tuple[SystemJob, ...] = (
    SystemJob("admission", TICK, "activities.admission.rebuilding", 30.0, _keep_admission_open),
    SystemJob("delays", TICK, "activities.outbox", 5.0, lambda term: outbox.promote()),
    SystemJob("limits", TICK, "activities.admission.limits", 5.0, lambda term: limits.refresh(), when=_open),
    SystemJob("stragglers", TICK, "activities.relay", 5.0, lambda term: relay.grant_waiting(), when=_open),
    SystemJob("lost workers", TICK, "activities.maintenance.recovery", 5.0, _find_lost_workers),
    SystemJob("overdue runs", TICK, "activities.maintenance.recovery", 5.0, lambda term: recovery.end_overdue_runs()),
    SystemJob("expired work", TICK, "activities.maintenance.recovery", 5.0, lambda term: recovery.expire_stale()),
    SystemJob("deadlines", TICK, "activities.human_tasks.deadlines", 5.0, lambda term: deadlines.pass_due()),
    SystemJob("events", TICK, "tenants.events.log", 10.0, lambda term: log.number_all()),
    SystemJob("hints", 1.0, "activities.background_tasks", 5.0, lambda term: term.reminder.remind()),
    SystemJob("outputs", 1.0, "activities.outputs", 10.0, _copy_outputs),
    SystemJob("slots", 5.0, "activities.admission.rebuilding", 10.0, _audit_slots, when=_open),
    SystemJob("forgotten work", 5.0, "activities.maintenance.recovery", 10.0, _offer_forgotten, when=_open),
    SystemJob("counters", 2.0, "activities.maintenance.counters", 30.0, lambda term: counters.count_fresh()),
    SystemJob("obsolete approvals", 5.0, "activities.maintenance.recovery", 5.0, lambda term: recovery.withdraw_obsolete_approvals()),
    SystemJob("silent agents", 5.0, "activities.maintenance.recovery", 5.0, _find_silent_agents),
    SystemJob("dead letters", 5.0, "activities.dead_letters", 5.0, _handle_dead_letters),
    SystemJob("conditions", TICK, "activities.maintenance.platform_checks", 10.0, lambda term: term.monitor.check_due()),
    SystemJob("estimates", 30.0, "activities.budgets", 10.0, lambda term: budgets.estimate_again()),
    SystemJob("channels", 60.0, "tenants.channels", 10.0, lambda term: channels.expire_due()),
    SystemJob("expiring channels", 600.0, "tenants.channels", 10.0, lambda term: channels.announce_expiring()),
    SystemJob("generations", 600.0, "activities.admission.rebuilding", 10.0, lambda term: rebuilding.forget_old_generations()),
    SystemJob("ended workers", 600.0, "activities.maintenance.recovery", 30.0, lambda term: recovery.forget_ended_workers()),
    SystemJob("old events", 600.0, "tenants.events.log", 30.0, lambda term: log.purge_logs()),
    SystemJob("retention", 600.0, "tenants.retention", 30.0, lambda term: tenant_retention.arrange()),
    SystemJob("departed tenants", 600.0, "activities.maintenance.retention", 30.0, lambda term: retention.clean_up_departed()),
)  # fmt: skip

_registered: dict[str, SystemJob] = {}


def register(name: str, work: Callable[[], object], *, period: float, owner: str, budget: float) -> None:
    """Add a job of an app above this one, when the process starts. A second call with the same name replaces the job."""
    _registered[name] = SystemJob(name, period, owner, budget, lambda term: work())


def table() -> tuple[SystemJob, ...]:
    """Return all jobs, with those of the apps above last."""
    return (*JOBS, *_registered.values())
