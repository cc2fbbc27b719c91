"""Two queues, the switch between them, and a clock of the test's own."""

from __future__ import annotations

from typing import Any

from orchestrator_client.queue import Batch, InMemoryQueue, SwitchedQueue


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Faulty:
    """A queue whose calls fail as long as a test says so."""

    def __init__(self, queue: InMemoryQueue) -> None:
        self.queue, self.broken, self.full = queue, False, False
        self.beats = 0

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if self.broken:
            raise OSError("away")
        return getattr(self.queue, name)(*arguments, **options)

    def enqueue(self, item: Any, **options: Any) -> str | None:
        return None if self.full and not self.broken else self._call("enqueue", item, **options)

    def try_dequeue(self, blocked_reason: str | None = None) -> Batch | None:
        return self._call("try_dequeue", blocked_reason)

    def complete(self, batch: Batch, result: Any = None) -> None:
        self._call("complete", batch, result)

    def fail(self, batch: Batch, error: Any, *, retryable: bool = True) -> None:
        self._call("fail", batch, error, retryable=retryable)

    def heartbeat(self, batch: Batch) -> None:
        self.beats += 1
        if self.broken:
            raise OSError("away")


class World:
    """Two queues, the switch between them, and a clock of the test's own."""

    def __init__(self, phase: str, **options: Any) -> None:
        self.clock = Clock()
        self.old, self.new = (
            Faulty(InMemoryQueue(clock=self.clock, sleep=self.clock.pass_by, **options)) for _ in range(2)
        )
        self.switch = SwitchedQueue(self.old, self.new, phase, clock=self.clock)

    def read(self) -> list[str]:
        """Everything that is handed out now, each batch completed."""
        told = []
        while (batch := self.switch.try_dequeue()) is not None:
            told += [item.content for item in batch.items]
            self.switch.complete(batch)
        return told


def shadow(old: list[str], new: list[str], **options: Any) -> World:
    """Both queues as they were filled by others, read once in the shadow phase."""
    world = World("shadow", **options)
    for queue, texts in ((world.old, old), (world.new, new)):
        for text in texts:
            queue.enqueue(text, client_message_id=f"id-{text}")
    world.switch.try_dequeue()
    return world
