"""The queue in memory, which is the reference for what the old interface means."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from orchestrator_client.queue import InMemoryQueue, Item, item_of


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> InMemoryQueue:
    return InMemoryQueue(clock=clock, sleep=clock.sleep, most=5)


def told(queue: InMemoryQueue) -> list[Any]:
    batch = queue.try_dequeue()
    return [item.content or item.text for item in batch.items] if batch else []


def test_an_item_has_the_defaults_of_the_old_queue() -> None:
    item = item_of("hello")

    assert (item.kind, item.content, item.priority, item.max_attempts) == ("message", "hello", 5, 3)
    assert (item.backoff_multiplier, item.max_backoff_ms, item.source) == (2, 300_000, "user")


def test_names_of_the_old_interface_are_understood() -> None:
    old = {
        "kind": "message",
        "content": "x",
        "clientMessageId": "m",
        "maxAttempts": 7,
        "agentId": "a",
        "runAfter": 1000,
    }

    item = item_of(old, isCoalescable=False, maxBackoffMs=5)

    assert item == Item(
        content="x", client_message_id="m", max_attempts=7, is_coalescable=False, max_backoff_ms=5,
        run_after=datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        ({"kind": "letter"}, {}, "letter"),
        ({"content": "x", "colour": 1}, {}, "colour"),
        ("x", {"priority": 10}, "0 to 9"),
        ("x", {"run_after": "2026-01-01T00:00:00"}, "time zone"),
    ],
)
def test_what_is_no_item_is_refused(given: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        item_of(given, **options)


def test_what_waits_together_is_told_together_after_the_window_of_the_first(
    queue: InMemoryQueue, clock: Clock
) -> None:
    queue.enqueue("a")
    clock.now += 0.02
    queue.enqueue("b")

    batch = queue.try_dequeue()

    assert batch is not None
    assert [item.content for item in batch.items] == ["a", "b"]
    assert (batch.merged_count, batch.queue_len_after) == (2, 0)
    assert clock.slept == [0.03]


def test_task_notifications_are_each_told_by_themselves(queue: InMemoryQueue) -> None:
    queue.enqueue({"kind": "task_notification", "text": "one", "isCoalescable": True})
    queue.enqueue("a")
    queue.enqueue({"kind": "task_notification", "text": "two"})
    queue.enqueue("b")

    assert [told(queue) for _ in range(4)] == [["one"], ["a", "b"], ["two"], []]


def test_items_of_other_scopes_are_not_told_together(queue: InMemoryQueue) -> None:
    queue.enqueue("a", scope_key="x")
    queue.enqueue("b", scope_key="y")
    queue.enqueue("c", scope_key="x")

    assert [told(queue), told(queue)] == [["a", "c"], ["b"]]


def test_urgent_items_come_first_and_later_ones_later(queue: InMemoryQueue, clock: Clock) -> None:
    queue.enqueue("late", run_after=(clock.now + 5) * 1000, is_coalescable=False)
    queue.enqueue("b", is_coalescable=False)
    queue.enqueue("a", priority=0, is_coalescable=False)

    assert [told(queue), told(queue), told(queue)] == [["a"], ["b"], []]
    clock.now += 5
    assert told(queue) == ["late"]


def test_a_blocked_consumer_gets_nothing_and_a_full_queue_takes_nothing(queue: InMemoryQueue) -> None:
    assert all(queue.enqueue(str(number)) for number in range(5))

    assert queue.enqueue("too much") is None
    assert queue.try_dequeue("waiting for an approval") is None
    assert queue.try_dequeue() is not None


def test_an_item_said_again_under_its_id_is_the_same(queue: InMemoryQueue) -> None:
    first, again = (queue.enqueue("a", client_message_id="m") for _ in range(2))

    assert first == again
    assert len(queue) == 1


def test_failed_items_come_again_ever_later_until_their_attempts_are_used_up(
    queue: InMemoryQueue, clock: Clock
) -> None:
    failed: list[str] = []
    queue.on_task_failed(lambda item, error: failed.append(f"{item.content}: {error}"))
    queue.enqueue("a")
    for wait in (1, 2):
        batch = queue.try_dequeue()
        assert batch is not None
        queue.fail(batch, "no")
        clock.now += wait - 0.01
        assert told(queue) == []
        clock.now += 0.02
    batch = queue.try_dequeue()
    assert batch is not None
    assert failed == []

    queue.fail(batch, "no")

    assert failed == ["a: no"]
    assert len(queue) == 0


def test_a_batch_ends_once_and_a_hook_that_fails_harms_nobody(
    queue: InMemoryQueue, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[Any] = []

    @queue.on_task_completed
    def broken(item: Item, result: Any) -> None:
        raise KeyError("hook")

    queue.on_task_completed(lambda item, result: done.append(result))
    queue.enqueue("a")
    batch = queue.try_dequeue()
    assert batch is not None

    queue.complete(batch, "yes")
    queue.complete(batch, "yes")
    queue.fail(batch, "no")

    assert done == ["yes"]
    assert "A hook of a queue failed" in caplog.text
    assert len(queue) == 0
