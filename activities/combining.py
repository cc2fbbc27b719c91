"""Combining: threads that want the same done at the same moment have one of them do it for all.

A statement for many costs little more than a statement for one. So while a thread is at it, others that come gather, and the next does it
for all of them. Nobody waits on purpose: a thread that finds nobody at it begins at once, alone.

Nobody depends on others either. What takes longer than `PATIENCE_SECONDS` is waited for no longer by those it has not begun with, and when
it cannot be done for all, each does its own alone.
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
    what: T
    is_taken: bool = False
    results: list[R] = field(default_factory=list)  # the one, when it was done together with others


@dataclass(slots=True)
class _Line(Generic[T, R]):
    """Those that want the same kind of thing done. `turn` is held by the one who does it."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    waiting: deque[_Item[T, R]] = field(default_factory=deque)
    users: int = 0


class Combining(Generic[T, R]):
    """`together` does it for several and returns a result for each; `alone` does it for one, and for each when `together` raises.

    That may have been done although it raised, so `alone` must be harmless to repeat. Safe for threads.
    """

    def __init__(self, *, together: Callable[[Sequence[T]], Sequence[R]], alone: Callable[[T], R]) -> None:
        self._together, self._alone = together, alone
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Hashable, _Line[T, R]] = {}

    def do(self, kind: Hashable, what: T) -> R:
        """Do it alone or with others of its kind, whichever comes first. Raises what `alone` raises."""
        if settings.ORCHESTRATOR_RUNS_TOGETHER < 2:
            return self._alone(what)
        item: _Item[T, R] = _Item(what)
        with self._lock:
            line = self._lines.setdefault(kind, _Line())
            line.users += 1
            line.waiting.append(item)
        try:
            return self._done(line, item)
        finally:
            with self._lock:
                line.users -= 1
                if not line.users:
                    del self._lines[kind]

    def _done(self, line: _Line[T, R], item: _Item[T, R]) -> R:
        if line.turn.acquire(timeout=PATIENCE_SECONDS):
            try:
                while not item.is_taken:
                    items = self._take(line)
                    if len(items) == 1 and items[0] is item:
                        return self._alone(item.what)  # meanwhile others gather
                    self._do_together(items)
            finally:
                line.turn.release()
        elif not self._withdraw(line, item):
            with line.turn:  # of the one who does it
                pass
        return item.results[0] if item.results else self._alone(item.what)

    def _take(self, line: _Line[T, R]) -> list[_Item[T, R]]:
        with self._lock:
            count = min(len(line.waiting), settings.ORCHESTRATOR_RUNS_TOGETHER)
            items = [line.waiting.popleft() for _ in range(count)]
            for item in items:
                item.is_taken = True
        return items

    def _withdraw(self, line: _Line[T, R], item: _Item[T, R]) -> bool:
        """False when somebody does it already."""
        with self._lock:
            if item.is_taken:
                return False
            line.waiting.remove(item)
            return True

    def _do_together(self, items: Sequence[_Item[T, R]]) -> None:
        try:
            results = self._together([item.what for item in items])
        except Exception as error:  # noqa: BLE001  # each alone says what is wrong with it
            facts = {"action": "done_alone", "reason": type(error).__name__, "count": len(items)}
            logger.warning("Done one by one", extra=facts)
            return
        for item, result in zip(items, results, strict=True):
            item.results.append(result)
