"""Counting: each event of the history is added up once, however many processes do it and whenever they are killed.

Events are numbered by a sequence when they are written, and seen when their transaction commits, which may be in another order. So a turn
first notes the newest event that it sees. What is up to that event is counted once all transactions that had begun by then are over: no
event can appear there any more. Numbers and mark move in one transaction, under the mark's lock.

PostgreSQL numbers transactions for the whole server, so one that writes for long holds the counters up even from another database.
The mark says both when a leader last looked and up to when the counters are complete, so that the two faults can be told apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.db import transaction

from activities import states
from activities.counters.bounds import ATTEMPTS, DURATIONS, INFINITY
from tenants.context import SYSTEM
from tenants.sql import Statement

BATCH = 2_000  # events in one transaction
BATCHES = 5  # in one turn: more than the engine writes meanwhile, and less than half a second

_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "counters"
_MARK, _COUNT, _MOVE, _NOTE = (Statement.load(_FOLDER, name) for name in ("mark", "count", "move", "note"))

_WORDS: dict[str, Any] = {
    "settled": sorted(states.SETTLED),
    "running": sorted(states.RUNNING),
    "durations": list(DURATIONS),
    "attempts": list(ATTEMPTS),
}


def count_fresh() -> int:
    """Add up what can be added up now; returns how many events were looked at. Any number of processes may do it at once."""
    counted = 0
    for _ in range(BATCHES):
        advanced, events = _turn()
        counted += events
        if not advanced:
            break
    return counted


def note(name: str, *, role: str = "", status: str = "") -> None:
    """Count one thing that is no event of an activity. In the transaction of what happened, as the system."""
    _NOTE.run({"name": name, "role": role, "status": status, "le": INFINITY}, using=SYSTEM)


def _turn() -> tuple[bool, int]:
    """One batch. Whether there may be more to do, and how many events it held."""
    with transaction.atomic(using=SYSTEM):
        found = _MARK.run({}, using=SYSTEM)
        if not found:
            return False, 0  # another process is at it
        mark = found[0]
        until = min(mark.seen, mark.counted + BATCH) if mark.over else mark.counted
        if until > mark.counted:
            _COUNT.run({"after": mark.counted, "until": until} | _WORDS, using=SYSTEM)
        whole = until == mark.seen
        newer = whole and mark.newest > mark.seen
        seen, barrier = (mark.newest, mark.transaction) if newer else (mark.seen, mark.barrier)
        moved = (until, seen) != (mark.counted, mark.seen)
        if moved or mark.stale:
            place = {"counted": until, "seen": seen, "barrier": barrier}
            _MOVE.run(place | {"whole": whole, "newer": newer}, using=SYSTEM)
        return moved, until - mark.counted
