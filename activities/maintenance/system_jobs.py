"""The system jobs: everything that the leader does again and again, in one table with its period, its owner and its time budget.

Each job may be done twice or by several processes at once, and each is done apart from the others: see `scheduler`. What a job has to
remember between two of its runs belongs to the term of its leader and is forgotten with it, so that nobody acts on what they saw before
they were frozen.
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

from activities import background_tasks, dead_letters, outbox, outputs, publishing, relay
from activities.admission import limits, rebuilding
from activities.human_tasks import deadlines
from activities.maintenance import leader
from tenants import channels
from tenants import retention as tenant_retention
from tenants.events import log

from . import counters, platform_checks, recovery, retention

logger = logging.getLogger(__name__)

TICK = 0.0  # a period: `ORCHESTRATOR_TICK_SECONDS`
LETTER_PATIENCE = timedelta(seconds=15)
LETTER_TURN_SECONDS = 2.0


@dataclass(slots=True)
class Term:
    """One term of one leader, and what its jobs remember."""

    epoch: int
    watch: recovery.LivenessWatch = field(default_factory=recovery.LivenessWatch)
    heartbeats: recovery.HeartbeatWatch = field(default_factory=recovery.HeartbeatWatch)
    slots: rebuilding.SlotAudit = field(default_factory=rebuilding.SlotAudit)
    reminder: background_tasks.Reminder = field(default_factory=background_tasks.Reminder)
    lookout: platform_checks.Lookout = field(default_factory=platform_checks.Lookout)
    is_open: bool = False  # admission, at the last look
    closed_since: float | None = None
    sweep_from: UUID | None = None

    def confirm(self) -> None:
        """Raise `LeadLost` unless this term goes on: for what acts on something that was seen earlier in it."""
        leader.confirm(self.epoch)


@dataclass(frozen=True, slots=True)
class SystemJob:
    """One row of the table. `work` returns whether it has done anything, or how much.

    `period`: seconds between two runs, or `TICK`. `owner`: the module that does it. `budget`: seconds that one statement of it may
    take; a lock is waited for at most `scheduler.LOCK_SECONDS`. `when`: asked before each run.
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
    lost = sum(recovery.declare_lost(worker, confirm=term.confirm) for worker in term.watch.find_lost())
    return lost + recovery.reclaim_runs_of_ended_workers()


def _find_silent_agents(term: Term) -> int:
    return recovery.reclaim_silent_runs(term.heartbeats, confirm=term.confirm)


def _keep_admission_open(term: Term) -> bool:
    """Whether it was rebuilt. A wiped Redis is left alone for a moment, so that claims granted before the wipe can commit."""
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
    term.confirm()  # what follows acts on what was seen at two looks
    if release:
        logger.warning(
            "Slots without a run given back",
            extra={"action": "slots_mended", "count": len(release.releases)},
        )
        relay.hand_over(release)
    if again:
        publishing.publish(again)
    return len(release.releases) + len(again)


def _offer_forgotten(term: Term) -> int:
    """A page at a time: there is more where the last one was full, and then a second is enough."""
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


def _tell_of_dead_letters(term: Term) -> int:
    # They have a queue of their own. Where no worker takes from it, people are told all the same, a little later.
    if not dead_letters.unhandled_since(LETTER_PATIENCE):
        return 0
    return dead_letters.handle_waiting(within=LETTER_TURN_SECONDS)


def _open(term: Term) -> bool:
    return term.is_open


#: In the order in which jobs that are due together begin. Periods and budgets are seconds.
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
    SystemJob("silent agents", 5.0, "activities.maintenance.recovery", 5.0, _find_silent_agents),
    SystemJob("dead letters", 5.0, "activities.dead_letters", 5.0, _tell_of_dead_letters),
    SystemJob("conditions", TICK, "activities.maintenance.platform_checks", 10.0, lambda term: term.lookout.look()),
    SystemJob("channels", 60.0, "tenants.channels", 10.0, lambda term: channels.expire_due()),
    SystemJob("expiring channels", 600.0, "tenants.channels", 10.0, lambda term: channels.announce_expiring()),
    SystemJob("generations", 600.0, "activities.admission.rebuilding", 10.0, lambda term: rebuilding.forget_old_generations()),
    SystemJob("ended workers", 600.0, "activities.maintenance.recovery", 30.0, lambda term: recovery.forget_ended_workers()),
    SystemJob("old events", 600.0, "tenants.events.log", 30.0, lambda term: log.purge_logs()),
    SystemJob("retention", 600.0, "tenants.retention", 30.0, lambda term: tenant_retention.arrange()),
    SystemJob("departed tenants", 600.0, "activities.maintenance.retention", 30.0, lambda term: retention.look_after_departed()),
)  # fmt: skip

_added: dict[str, SystemJob] = {}


def register(name: str, work: Callable[[], object], *, period: float, owner: str, budget: float) -> None:
    """A job of an app above the engine. It says so when the process starts; a name given again replaces what it stood for."""
    _added[name] = SystemJob(name, period, owner, budget, lambda term: work())


def table() -> tuple[SystemJob, ...]:
    """All jobs, those of the apps above last."""
    return (*JOBS, *_added.values())
