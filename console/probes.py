"""Questions to servers that may not answer: each in a thread of its own, so that nobody waits longer than they want to.

At most one thread per question is under way. Whoever asks meanwhile waits for the same answer, so a server that hangs costs one
thread however often it is asked about, and asking often costs no more than asking once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db import connections

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question. Exactly one of `value` (with `fault` empty) and `fault` counts. Faults carry no addresses."""

    value: Any = None
    fault: str = ""
    milliseconds: float = 0.0


@dataclass(slots=True)
class _Flight:
    """One asking under way."""

    began: float = field(default_factory=time.monotonic)
    landed: threading.Event = field(default_factory=threading.Event)
    answer: Answer = field(default_factory=Answer)


class Probe:
    """One question. Threads may share it."""

    def __init__(self, name: str, question: Callable[[], Any]) -> None:
        self.name, self.question = name, question
        self._lock = threading.Lock()
        self._flight: _Flight | None = None

    def begin(self) -> _Flight:
        """Ask, or join those who asked already."""
        with self._lock:
            if self._flight is None:
                flight = _Flight()
                threading.Thread(
                    target=self._fly, args=(flight,), name=f"probe-{self.name}", daemon=True
                ).start()
                self._flight = flight  # only now: a thread that could not be started would never land
            return self._flight

    def _fly(self, flight: _Flight) -> None:
        try:
            flight.answer = Answer(self.question(), "", _since(flight))
        except Exception as error:  # noqa: BLE001  # whatever it was, it keeps the server from answering
            logger.info(
                "Probe failed",
                extra={"action": "probe_failed", "probe": self.name, "reason": str(error).strip()},
            )
            # The kind alone: texts of errors name hosts and users, and this goes to whoever asks.
            flight.answer = Answer(None, type(error).__name__, _since(flight))
        finally:
            with self._lock:
                self._flight = None
            flight.landed.set()
            connections.close_all()


def ask(probes: Iterable[Probe], *, patience_seconds: float) -> dict[str, Answer]:
    """Ask all at once and return the answers by name, after `patience_seconds` at the latest."""
    flights = {probe.name: probe.begin() for probe in probes}
    deadline = time.monotonic() + patience_seconds
    return {name: _landed(flight, deadline) for name, flight in flights.items()}


def _landed(flight: _Flight, deadline: float) -> Answer:
    if flight.landed.wait(max(0.0, deadline - time.monotonic())):
        return flight.answer
    return Answer(None, "no answer", _since(flight))


def _since(flight: _Flight) -> float:
    return round((time.monotonic() - flight.began) * 1000, 1)
