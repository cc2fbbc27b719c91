"""Combining: when several threads need the same operation at the same time, one of them performs it for all.

A statement for many rows costs little more than one for a single row. While a thread executes the operation, the requests of other threads
queue up, and the next thread executes it once for all of them. A thread that finds no other one starts immediately, alone.

No thread depends on another one. A thread whose request was not taken within `PATIENCE_SECONDS` executes it alone, and if the combined
operation fails, each thread executes its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from django.conf import settings

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.05

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Item(Generic[T, R]):
    request: T
    is_taken: bool = False
    results: list[R] = field(default_factory=list)  # one, if it was executed together with others


@dataclass(slots=True)
class _Queue(Generic[T, R]):
    """The waiting requests of one kind. The thread that executes them holds `turn`."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    waiting: deque[_Item[T, R]] = field(default_factory=deque)
    users: int = 0


class Combining(Generic[T, R]):
    """Executes requests one by one or combined. Thread-safe.

    `together` executes several requests and returns a result for each. `alone` executes one request, and each one if `together` raises.
    `together` may have taken effect although it raised, so repeating a request with `alone` must be harmless.
    """

    def __init__(self, *, together: Callable[[Sequence[T]], Sequence[R]], alone: Callable[[T], R]) -> None:
        self._together, self._alone = together, alone
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Hashable, _Queue[T, R]] = {}

    def do(self, kind: Hashable, request: T) -> R:
        """Execute the request, alone or together with others of its kind, and return its result. Raises what `alone` raises."""
        if settings.ORCHESTRATOR_RUNS_TOGETHER < 2:
            return self._alone(request)
        item: _Item[T, R] = _Item(request)
        with self._lock:
            queue = self._queues.setdefault(kind, _Queue())
            queue.users += 1
            queue.waiting.append(item)
        try:
            return self._execute(queue, item)
        finally:
            with self._lock:
                queue.users -= 1
                if not queue.users:
                    del self._queues[kind]

    def _execute(self, queue: _Queue[T, R], item: _Item[T, R]) -> R:
        if queue.turn.acquire(timeout=PATIENCE_SECONDS):
            try:
                while not item.is_taken:
                    items = self._take(queue)
                    if len(items) == 1:  # its own, because it waits too, and a batch has room for two
                        return self._alone(item.request)  # meanwhile other requests queue up
                    self._execute_together(items)
            finally:
                queue.turn.release()
        elif not self._withdraw(queue, item):
            with queue.turn:  # wait for the thread that has taken the request
                pass
        return item.results[0] if item.results else self._alone(item.request)

    def _take(self, queue: _Queue[T, R]) -> list[_Item[T, R]]:
        with self._lock:
            count = min(len(queue.waiting), settings.ORCHESTRATOR_RUNS_TOGETHER)
            items = [queue.waiting.popleft() for _ in range(count)]
            for item in items:
                item.is_taken = True
        return items

    def _withdraw(self, queue: _Queue[T, R], item: _Item[T, R]) -> bool:
        """Remove the request from the queue. Returns False if another thread has taken it."""
        with self._lock:
            if item.is_taken:
                return False
            queue.waiting.remove(item)
            return True

    def _execute_together(self, items: Sequence[_Item[T, R]]) -> None:
        try:
            results = self._together([item.request for item in items])
        except Exception as error:  # noqa: BLE001  # executing each alone raises its own error
            facts = {"action": "done_alone", "reason": type(error).__name__, "count": len(items)}
            logger.warning("Done one by one", extra=facts)
            return
        for item, result in zip(items, results, strict=True):
            item.results.append(result)
