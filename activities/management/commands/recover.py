"""`manage.py recover`: one pass of recovery, for when no worker or beat runs that would do it.

Everything here is what the leader among the workers and beats does all the time; doing it once more, beside them, changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from pymongo.errors import PyMongoError

from activities import budgets, maintenance, outbox, outputs, publishing, relay
from activities.admission import Closed, Exchange, limits, rebuilding
from activities.maintenance import recovery

FLUSH_SECONDS = 30.0  # for handing over what was found, however much it is


class Command(BaseCommand):
    help = "Find whatever was lost between two steps and set it going again, once. Prints what was mended, by kind."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--watch",
            action="store_true",
            help=f"watch the workers for {settings.ORCHESTRATOR_LOST_AFTER_SECONDS:g} s, to find those on other machines that are lost",
        )

    def handle(self, *args: Any, watch: bool, **options: Any) -> None:
        self.mended = 0
        self.undone: list[str] = []
        self._part("workers declared lost", lambda: _declare_lost(watch=watch))
        self._part(
            "runs of ended workers taken back",
            lambda: _until_none_is_left(recovery.reclaim_runs_of_ended_workers),
        )
        self._part(
            "accepted runs ended that were overdue", lambda: _until_none_is_left(recovery.end_overdue_runs)
        )
        self._part("expired activities cancelled", lambda: _until_none_is_left(recovery.expire_stale))
        self._part(
            "reservations of ended runs given back",
            lambda: _until_none_is_left(budgets.release_stale_reservations),
        )
        self._part("activities released that budgets have room for", budgets.release_where_room)
        self._part("delays ended that were over", lambda: _until_none_is_left(outbox.promote))
        self._part("admission (its order and slots in Redis) rebuilt", _reopen_admission)
        self._part("slots mended that had no run, or that no worker took up", _mend_slots)
        self._part(
            "waiting activities offered; those that were in their place stay there", _offer_all, mends=False
        )
        self._part("outputs copied to MongoDB", lambda: _until_none_is_left(outputs.copy_waiting))
        self._tell()

    def _part(self, kind: str, action: Callable[[], int], *, mends: bool = True) -> None:
        try:
            count = action()
        except DatabaseError as error:
            raise CommandError(f"PostgreSQL did not answer: {error}") from error
        except (redis.RedisError, Closed) as error:
            self.undone.append(f"{kind}: Redis does not answer ({type(error).__name__})")
        except PyMongoError as error:
            self.undone.append(f"{kind}: MongoDB does not answer ({type(error).__name__})")
        else:
            self.mended += count if mends else 0
            if count:
                self.stdout.write(f"{count:>7}  {kind}")

    def _tell(self) -> None:
        for line in self.undone:
            self.stderr.write(f"   left  {line}")
        if self.undone:
            raise CommandError(
                "Some parts wait for a server that does not answer; run this again when it does."
            )
        self.stdout.write("Done." if self.mended else "Nothing was lost.")


def _declare_lost(*, watch: bool) -> int:
    """The first look only takes note. A tick later it shows which processes of this machine are gone; others take longer."""
    watcher = recovery.LivenessWatch()
    watcher.find_lost()
    time.sleep(settings.ORCHESTRATOR_LOST_AFTER_SECONDS if watch else settings.ORCHESTRATOR_TICK_SECONDS)
    return sum(recovery.declare_lost(worker) for worker in watcher.find_lost())


def _until_none_is_left(step: Callable[[], int]) -> int:
    total = 0
    while count := step():
        total += count
    return total


def _reopen_admission() -> int:
    """Put the present limits in force, rebuilding first what Redis has lost, unless a process leads and is at it."""
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


def _mend_slots() -> int:
    audit = rebuilding.SlotAudit()
    audit.compare()
    time.sleep(rebuilding.SETTLE_SECONDS)  # what differs only at the first look was on its way
    release, again = audit.compare()
    if release:
        relay.hand_over(release)
    if again:
        publishing.publish(again)
    return len(release.releases) + len(again)


def _offer_all() -> int:
    """Offer everything that waits, since nobody can tell what was forgotten; returns how much that is."""
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
