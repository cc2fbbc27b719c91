"""`manage.py recover`: runs recovery once, for when no worker or beat is running.

The leader among the workers and beats does the same all the time. It is safe to run this at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from pymongo.errors import PyMongoError

from activities import budgets, maintenance, outbox, outputs, publishing, relay
from activities.admission import Closed, Exchange, limits, rebuilding
from activities.maintenance import recovery

FLUSH_SECONDS = 30.0  # for the relay to hand over everything, however much it is


class Command(BaseCommand):
    help = "Find work that was lost between two steps and start it again, once. Prints what was repaired, by kind."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--watch",
            action="store_true",
            help=f"observe the workers for {settings.ORCHESTRATOR_LOST_AFTER_SECONDS:g} s, to find lost workers on other machines too",
        )

    def handle(self, *args: Any, watch: bool, **options: Any) -> None:
        self.repaired = 0
        self.skipped: list[str] = []
        self._step("workers declared lost", lambda: _declare_lost(watch=watch))
        self._step("runs of ended workers reclaimed", lambda: _repeat(recovery.reclaim_runs_of_ended_workers))
        self._step("overdue runs ended", lambda: _repeat(recovery.end_overdue_runs))
        self._step("expired activities cancelled", lambda: _repeat(recovery.expire_stale))
        self._step("reservations of ended runs released", lambda: _repeat(budgets.release_stale_reservations))
        self._step("activities released that budgets have room for", budgets.release_where_room)
        self._step("delays ended that had passed", lambda: _repeat(outbox.promote))
        self._step("admission (its order and slots in Redis) rebuilt", _reopen_admission)
        self._step("slots repaired that had no run, or were not claimed by a worker", _repair_slots)
        self._step(
            "waiting activities offered; those already in line keep their place", _offer_all, repairs=False
        )
        self._step("outputs copied to MongoDB", lambda: _repeat(outputs.copy_waiting))
        for line in self.skipped:
            self.stderr.write(f"skipped  {line}")
        if self.skipped:
            raise CommandError("Some steps need a server that does not answer; run this again when it does.")
        self.stdout.write("Done." if self.repaired else "Nothing was lost.")

    def _step(self, kind: str, action: Callable[[], int], *, repairs: bool = True) -> None:
        try:
            count = action()
        except (redis.RedisError, Closed) as error:
            self.skipped.append(f"{kind}: Redis does not answer ({type(error).__name__})")
        except PyMongoError as error:
            self.skipped.append(f"{kind}: MongoDB does not answer ({type(error).__name__})")
        else:
            self.repaired += count if repairs else 0
            if count:
                self.stdout.write(f"{count:>7}  {kind}")


def _declare_lost(*, watch: bool) -> int:
    """Observe the workers twice. Dead processes on this machine are found after a tick; on other machines it takes longer."""
    watcher = recovery.LivenessWatch()
    watcher.find_lost()
    time.sleep(settings.ORCHESTRATOR_LOST_AFTER_SECONDS if watch else settings.ORCHESTRATOR_TICK_SECONDS)
    return recovery.declare_all_lost(watcher.find_lost())


def _repeat(step: Callable[[], int]) -> int:
    """Call the step until it finds nothing, and return the total."""
    total = 0
    while count := step():
        total += count
    return total


def _reopen_admission() -> int:
    """Apply the current limits. If Redis has lost its data, rebuild it, unless a leader exists, which does it."""
    if rebuilding.is_open():
        limits.refresh()
        return 0
    leader = maintenance.Leader()
    if not leader.campaign():
        return 0
    try:
        time.sleep(rebuilding.SETTLE_SECONDS)
        rebuilding.rebuild(epoch=leader.epoch, confirm=lambda: maintenance.confirm(leader.epoch))
    finally:
        leader.resign()
    return 1


def _repair_slots() -> int:
    audit = rebuilding.SlotAudit()
    audit.compare()
    time.sleep(rebuilding.SETTLE_SECONDS)  # a difference that disappears meanwhile was a claim in progress
    release, again = audit.compare()
    if release:
        relay.hand_over(release)
    if again:
        publishing.publish(again)
    return len(release.releases) + len(again)


def _offer_all() -> int:
    """Offer everything that waits, because it is unknown what was forgotten. Returns the number of activities."""
    total, after = 0, None
    while True:
        count, after = recovery.offer_forgotten(after=after)
        total += count
        if after is None:
            break
    relay.release_and_acquire(Exchange())
    if not relay.flush(FLUSH_SECONDS):
        raise redis.TimeoutError
    return total
