"""The keeper: a thread in every worker and beat process that keeps things going. One of them leads at a time.

The lead is an advisory lock of PostgreSQL. It only saves work: everything the keeper does may be done twice or by several. While any
worker or beat process lives, delays are promoted, lost workers found, forgotten work offered, Redis rebuilt, outputs copied.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError, close_old_connections, connections
from pymongo.errors import PyMongoError

from activities import (
    conditions,
    counters,
    deadletters,
    deadlines,
    errands,
    forgetting,
    outputs,
    promotion,
    publishing,
    recovery,
    relay,
    upkeep,
)
from activities.admission import Closed, limits, rebuilding
from tenants import channels, tracing
from tenants.context import SYSTEM
from tenants.events import keeping
from tenants.retention import purging

logger = logging.getLogger(__name__)

LEADER_LOCK = 0x6F726368  # "orch"; never change it: old and new code must agree.
AUDIT_SECONDS = 5.0
SWEEP_SECONDS = 5.0
COPY_SECONDS = 1.0
REMIND_SECONDS = 1.0
COUNT_SECONDS = 2.0
CHANNEL_SECONDS = 60.0
TIDY_SECONDS = 600.0
LETTER_SECONDS = 5.0
LETTER_PATIENCE = timedelta(seconds=15)
LETTER_TURN_SECONDS = 2.0


@dataclass(slots=True)
class Every:
    """Says when something is due again."""

    seconds: float
    last: float = -1e9

    def due(self, now: float) -> bool:
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


@dataclass(slots=True)
class Keeper:
    """One pass after another until `stopped` is set."""

    stopped: threading.Event = field(default_factory=threading.Event)
    watch: recovery.LivenessWatch = field(default_factory=recovery.LivenessWatch)
    heartbeats: recovery.HeartbeatWatch = field(default_factory=recovery.HeartbeatWatch)
    slots: rebuilding.SlotAudit = field(default_factory=rebuilding.SlotAudit)
    reminder: errands.Reminder = field(default_factory=errands.Reminder)
    lookout: conditions.Lookout = field(default_factory=conditions.Lookout)
    leads: bool = False
    passes: int = 0
    lead_session: int = 0
    closed_since: float | None = None
    sweep_from: UUID | None = None
    audit_due: Every = field(default_factory=lambda: Every(AUDIT_SECONDS))
    sweep_due: Every = field(default_factory=lambda: Every(SWEEP_SECONDS))
    silence_due: Every = field(default_factory=lambda: Every(AUDIT_SECONDS))
    copy_due: Every = field(default_factory=lambda: Every(COPY_SECONDS))
    remind_due: Every = field(default_factory=lambda: Every(REMIND_SECONDS))
    count_due: Every = field(default_factory=lambda: Every(COUNT_SECONDS))
    letters_due: Every = field(default_factory=lambda: Every(LETTER_SECONDS))
    channels_due: Every = field(default_factory=lambda: Every(CHANNEL_SECONDS))
    tidy_due: Every = field(default_factory=lambda: Every(TIDY_SECONDS))

    def run(self) -> None:
        while not self.stopped.wait(settings.ORCHESTRATOR_TICK_SECONDS):
            try:
                close_old_connections()
                self.leads = self._take_lead()
                if self.leads:
                    self.passes += 1
                    with structlog.contextvars.bound_contextvars(keeper_pass=self.passes):
                        self.tick()
            except DatabaseError as error:
                self.leads = False
                logger.warning(
                    "Keeper cannot reach PostgreSQL",
                    extra={"action": "keeper_waits", "reason": str(error).strip()},
                )
        connections.close_all()

    def tick(self) -> None:
        """Everything that is due. A part that fails does not keep the others from their turn."""
        now = time.monotonic()
        _try("lost workers", self._find_lost_workers)
        _try("delays", promotion.promote)
        _try("deadlines", deadlines.pass_due)
        for name, part in upkeep.PARTS.items():
            _try(name, part)
        _try("events", keeping.number_all)
        if self._admission_is_open(now):
            _try("limits", limits.refresh)
            _try("stragglers", relay.grant_waiting)
            if self.audit_due.due(now):
                _try("slots", self._audit_slots)
            if self.sweep_due.due(now):
                _try("forgotten work", self._offer_forgotten)
        if self.silence_due.due(now):
            _try("silent agents", self._find_silent_agents)
        if self.copy_due.due(now):
            _try("outputs", self._copy_outputs)
        if self.remind_due.due(now):
            _try("hints", self.reminder.remind)
        if self.count_due.due(now):
            _try("counters", counters.count_fresh)
        _try("conditions", self.lookout.look)
        if self.letters_due.due(now):
            _try("dead letters", self._tell_of_dead_letters)
        if self.channels_due.due(now):
            _try("channels", channels.expire_due)
        if self.tidy_due.due(now):
            self._tidy()

    def _tidy(self) -> None:
        _try("generations", rebuilding.forget_old_generations)
        _try("ended workers", recovery.forget_ended_workers)
        _try("old events", keeping.purge)
        _try("retention", purging.arrange)
        _try("departed tenants", forgetting.look_after_departed)

    def _take_lead(self) -> bool:
        """The lock belongs to the database session: it ends with the connection, so a dead leader is replaced at the next tick."""
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute(
                "SELECT pg_backend_pid(), CASE WHEN pg_backend_pid() = %s THEN true ELSE pg_try_advisory_lock(%s) END",
                [self.lead_session, LEADER_LOCK],
            )
            session, leads = cursor.fetchone()
        self.lead_session = session if leads else 0
        return bool(leads)

    def _find_lost_workers(self) -> int:
        lost = sum(recovery.declare_lost(worker) for worker in self.watch.lost())
        reclaimed = recovery.reclaim_runs_of_ended_workers()
        return lost + reclaimed + recovery.end_overdue_runs() + recovery.expire_stale()

    def _tell_of_dead_letters(self) -> int:
        # They have a queue of their own. Where no worker takes from it, people are told all the same, a little later.
        if not deadletters.unhandled_since(LETTER_PATIENCE):
            return 0
        return deadletters.handle_waiting(within=LETTER_TURN_SECONDS)

    def _find_silent_agents(self) -> int:
        return recovery.reclaim_silent_runs(self.heartbeats)

    def _admission_is_open(self, now: float) -> bool:
        try:
            if rebuilding.is_open():
                self.closed_since = None
                return True
            self.closed_since = self.closed_since or now
            if now - self.closed_since < rebuilding.SETTLE_SECONDS:
                return False
            tracing.attempt("keeper admission", rebuilding.rebuild)
        except redis.RedisError as error:
            logger.warning(
                "Redis does not answer", extra={"action": "redis_away", "reason": type(error).__name__}
            )
            return False
        return True

    def _audit_slots(self) -> int:
        release, again = self.slots.compare()
        if release:
            logger.warning(
                "Slots without a run given back",
                extra={"action": "slots_mended", "count": len(release.releases)},
            )
            relay.hand_over(release)
        if again:
            publishing.publish(again)
        return len(release.releases) + len(again)

    def _offer_forgotten(self) -> int:
        offered, self.sweep_from = recovery.offer_forgotten(after=self.sweep_from)
        if self.sweep_from is not None:
            self.sweep_due.last = -1e9  # More pages: go on at the next tick.
        return offered

    def _copy_outputs(self) -> int:
        copied = 0
        for _ in range(10):
            portion = outputs.copy_waiting(older_than=outputs.KEPT_AT_HAND)
            copied += portion
            if portion < outputs.COPIED_AT_ONCE:
                break
        return copied


def _try(name: str, part: Callable[[], object]) -> None:
    """What a part returns says whether it has done anything, which is worth a trace."""
    try:
        tracing.attempt(f"keeper {name}", part)
    except (redis.RedisError, Closed, PyMongoError) as error:
        logger.warning(
            "A part of the keeper waits",
            extra={"action": "keeper_part_waits", "reason": type(error).__name__},
        )
    except DatabaseError:
        raise
    except Exception:
        logger.exception("A part of the keeper failed", extra={"action": "keeper_part_failed"})


_keeper: Keeper | None = None


def begin() -> None:
    """Start the keeper of this process, once."""
    global _keeper
    if _keeper is None:
        _keeper = Keeper()
        threading.Thread(target=_keeper.run, name="keeper", daemon=True).start()


def end() -> None:
    global _keeper
    if _keeper is not None:
        _keeper.stopped.set()
        _keeper = None
