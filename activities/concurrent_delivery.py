"""Many slow calls at once by one deliverer: one thread claims and notes, others only wait for receivers.

What is due is offered in turn by whoever calls; a claim may be refused, because others have it or because its tenant or receiver has as
many calls under way as it may. A receiver that takes its time therefore holds one thread, and the deliverer goes on looking for work of
others meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any, TypeVar

Key = TypeVar("Key")
Claim = TypeVar("Claim")

LOOK_SECONDS = 1.0  # between two looks for what became due while calls are under way
DELIVERERS = 2  # of one kind in one process: the second goes on while the first waits for its last answers; the others would only wait

_working: defaultdict[str, threading.BoundedSemaphore] = defaultdict(
    lambda: threading.BoundedSemaphore(DELIVERERS)
)


def carry_out(
    kind: str,
    *,
    due: Callable[[], Iterable[Key]],
    claim: Callable[[Key], Claim | None],
    attempt: Callable[[Claim], Any],
    note: Callable[[Claim, Any], None],
    one_each: bool,
    threads: int,
    limit: int,
    seconds: float,
) -> int:
    """Claim and carry out what is due until nothing is left; returns how many were tried. Nothing is claimed after `seconds` or `limit`.

    `due` gives keys to claim by, in turn; with `one_each` a key with a call under way is not claimed again by this deliverer.

    `attempt` runs in a thread of its own, uses no database and does not raise; the other three run in the caller's thread. Returns 0 at
    once where enough of this process are at it: these look again by themselves.
    """
    working = _working[kind]
    if not working.acquire(blocking=False):
        return 0
    try:
        return _in_turns(due, claim, attempt, note, one_each, threads, limit, time.monotonic() + seconds)
    finally:
        working.release()


def _in_turns(
    due: Callable[[], Iterable[Key]],
    claim: Callable[[Key], Claim | None],
    attempt: Callable[[Claim], Any],
    note: Callable[[Claim, Any], None],
    one_each: bool,
    threads: int,
    limit: int,
    ends: float,
) -> int:
    tried, running = 0, dict[Future[Any], tuple[Key, Claim]]()
    with ThreadPoolExecutor(threads, thread_name_prefix="delivery") as pool:
        while True:
            progress = True
            while progress and len(running) < threads and tried < limit and time.monotonic() < ends:
                progress = False
                under_way = {key for key, _ in running.values()} if one_each else set()
                for key in due():
                    if len(running) >= threads or tried >= limit or time.monotonic() >= ends:
                        break
                    # None when others have it: they go on with it.
                    if key not in under_way and (claimed := claim(key)) is not None:
                        running[pool.submit(copy_context().run, attempt, claimed)] = key, claimed
                        tried, progress = tried + 1, True
            if not running:
                return tried
            ended, _ = wait(running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                note(running.pop(future)[1], future.result())
