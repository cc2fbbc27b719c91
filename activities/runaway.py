"""The runaway guard: a worker starts agents of a role at most so often within a minute, so that a loop costs little before people see it.

It is meant for agents whose every start is dear. Which kinds it holds for by default, and how often they may start, is
`ORCHESTRATOR_STARTS_PER_MINUTE`; a role's option `starts_per_minute` says otherwise. When a role has had its starts, this worker's door for
it closes until the first of them is a minute old. Nothing is lost, no attempt is used up, and other workers go on.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from django.conf import settings

from activities import doors
from agents.contracts import AdapterSettings

WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class Guard:
    """Counts the starts of this process."""

    clock: Callable[[], float] = time.monotonic
    starts: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    closed: dict[str, float] = field(default_factory=dict)  # by role: when to open again
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, role: str, limit: int) -> float | None:
        """A start of the role; None when it has had its starts. To be given back when nothing was started after all."""
        if not limit:
            return self.clock()
        with self.lock:
            now, starts = self.clock(), self.starts[role]
            while starts and now - starts[0] >= WINDOW_SECONDS:
                starts.popleft()
            if len(starts) < limit:
                starts.append(now)
                return now
            self.closed[role] = starts[0] + WINDOW_SECONDS
        doors.close(f"{limit} starts within a minute", role=role)
        return None

    def give_back(self, role: str, start: float | None) -> None:
        with self.lock:
            if start in self.starts.get(role, ()):
                self.starts[role].remove(start)  # type: ignore[arg-type]  # it is among them

    def open_due(self) -> None:
        """Open the doors whose time has come."""
        with self.lock:
            due = [role for role, at in self.closed.items() if self.clock() >= at]
            for role in due:
                del self.closed[role]
        for role in due:
            doors.open_again(role=role)


def limit_of(adapter: AdapterSettings) -> int:
    """How often agents of this kind may start within a minute; 0 for as often as may be."""
    default = settings.ORCHESTRATOR_STARTS_PER_MINUTE.get(adapter.adapter, 0)
    given = adapter.options.get("starts_per_minute", default)
    return given if type(given) is int and given >= 0 else default


#: The one of this process.
GUARD = Guard()
