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
    at: float = field(default_factory=time.monotonic)  # when it came, by the monotonic clock

    @property
    def seconds_ago(self) -> float:
        return round(time.monotonic() - self.at, 1)


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
        self.last: Answer | None = None
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
                self.last = flight.answer
            flight.landed.set()
            connections.close_all()


def ask(
    probes: Iterable[Probe], *, patience_seconds: float, memory_seconds: float = 0.0
) -> dict[str, Answer]:
    """Ask all at once and return the answers by name, after `patience_seconds` at the latest.

    Instead of an answer that takes longer, the last one counts if it came within `memory_seconds`: a busy machine is not a silent server.
    """
    flights = [(probe, probe.begin()) for probe in probes]
    deadline = time.monotonic() + patience_seconds
    return {probe.name: _landed(probe, flight, deadline, memory_seconds) for probe, flight in flights}


def _landed(probe: Probe, flight: _Flight, deadline: float, memory_seconds: float) -> Answer:
    last = probe.last
    if flight.landed.wait(max(0.0, deadline - time.monotonic())):
        return flight.answer
    if last is not None and last.seconds_ago <= memory_seconds:
        return last
    return Answer(None, "no answer", _since(flight))


def _since(flight: _Flight) -> float:
    return round((time.monotonic() - flight.began) * 1000, 1)
