"""Records every call: its body, its begin and end, its status, and the number of concurrent calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Call:
    """One call. Times: monotonic clock. `ended` is 0 while it is open. `closed_early`: the client went away before the end."""

    path: str
    headers: Mapping[str, str]
    body: Any
    began: float
    ended: float = 0.0
    status: int = 0
    open_at_once: int = 0
    closed_early: bool = False


@dataclass
class Recorder:
    calls: list[Call] = field(default_factory=list)
    most_at_once: int = 0
    _open: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def begin(self, path: str, headers: Mapping[str, str], body: Any) -> Call:
        with self._changed:
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
            call = Call(path, headers, body, time.monotonic(), open_at_once=self._open)
            self.calls.append(call)
            self._changed.notify_all()
        return call

    def end(self, call: Call, *, closed_early: bool = False) -> None:
        with self._changed:
            self._open -= 1
            call.ended, call.closed_early = time.monotonic(), closed_early
            self._changed.notify_all()

    def wait_for(self, calls: int, seconds: float = 10.0) -> None:
        """Wait until this number of calls has arrived. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.calls) >= calls, seconds):
                raise TimeoutError(f"only {len(self.calls)} calls of {calls}")

    def wait_until_all_ended(self, seconds: float = 10.0) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._open == 0, seconds):
                raise TimeoutError(f"{self._open} calls are still open")

    def statuses(self) -> list[int]:
        return [call.status for call in self.calls]

    def most_within(self, seconds: float, status: int = 200) -> int:
        """Return the largest number of calls with this status that began within any period of this length."""
        times = sorted(call.began for call in self.calls if call.status == status)
        most, first = 0, 0
        for last, moment in enumerate(times):
            while moment - times[first] >= seconds:
                first += 1
            most = max(most, last - first + 1)
        return most
