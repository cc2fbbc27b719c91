"""The queue on the real server's mailboxes, and the way there from the queue in memory."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from activities.mailboxes import consumer
from answering import Answering, problem, said
from tenants.models import Tenant
from tests.engine import Engine, no_threads

import orchestrator_client as oc
from orchestrator_client.queue import AgentQueue, InMemoryQueue, SubagentQueue, SwitchedQueue, agent_queue


@pytest.fixture
def queue(client: oc.Client) -> AgentQueue:
    return AgentQueue(client, "session-1", window_ms=0)


def told(queue: Any) -> list[Any]:
    batch = queue.try_dequeue()
    if batch is None:
        return []
    queue.complete(batch)
    return [item.content or item.text for item in batch.items]


def test_an_item_has_the_defaults_of_the_old_queue(queue: AgentQueue, client: oc.Client) -> None:
    assert queue.try_dequeue() is None, "nobody has said anything yet"

    made = queue.enqueue("hello")

    (shown,) = client.mailboxes.items("session-1")
    assert shown.id == made
    assert (shown.kind, shown.content, shown.priority, shown.max_attempts, shown.source) == (
        "message", "hello", 5, 3, "user",
    )  # fmt: skip


def test_messages_are_taken_in_one_batch_and_are_done_with_it(queue: AgentQueue) -> None:
    done: list[tuple[Any, Any]] = []
    queue.on_task_completed(lambda item, result: done.append((item.content, result)))
    for text in ("a", "b"):
        queue.enqueue({"kind": "message", "content": text})
    queue.enqueue({"kind": "task_notification", "text": "ready", "isCoalescable": True})

    batch = queue.try_dequeue()

    assert batch is not None
    assert [item.content for item in batch.items] == ["a", "b"]
    assert (batch.merged_count, batch.queue_len_after) == (2, 1)
    queue.heartbeat(batch)
    queue.complete(batch, {"said": "ok"})
    assert done == [("a", {"said": "ok"}), ("b", {"said": "ok"})]
    assert told(queue) == ["ready"]
    assert told(queue) == []


def test_every_notification_comes_alone_and_what_is_urgent_first(queue: AgentQueue) -> None:
    queue.enqueue({"kind": "task_notification", "text": "one"})
    queue.enqueue({"kind": "task_notification", "text": "two"})
    queue.enqueue("urgent", priority=0)

    assert [told(queue), told(queue), told(queue)] == [["urgent"], ["one"], ["two"]]


def test_items_of_another_scope_are_not_told_together(queue: AgentQueue) -> None:
    queue.enqueue("a", scope_key="session-1")
    queue.enqueue("b", scope_key="elsewhere")
    queue.enqueue("c")
    queue.enqueue("d", scope_key="elsewhere")

    assert [told(queue), told(queue)] == [["a", "c"], ["b", "d"]]


def test_a_blocked_consumer_gets_nothing_and_what_is_not_due_waits(queue: AgentQueue) -> None:
    queue.enqueue("later", run_after=datetime.now(timezone.utc) + timedelta(hours=1))
    assert queue.try_dequeue() is None
    queue.enqueue("now")

    assert queue.try_dequeue("waiting for an approval") is None
    assert told(queue) == ["now"]


def test_an_item_said_again_under_its_id_is_the_same(queue: AgentQueue) -> None:
    first, again = (queue.enqueue("a", client_message_id="m") for _ in range(2))

    assert first == again
    assert told(queue) == ["a"]


def test_what_fails_comes_again_until_its_attempts_are_used_up(queue: AgentQueue, settings: Any) -> None:
    settings.ORCHESTRATOR_MAILBOX_RETRY_SECONDS = 0
    failed: list[tuple[Any, Any]] = []
    queue.on_task_failed(lambda item, error: failed.append((item.content, error)))
    queue.enqueue("a", max_attempts=2, max_backoff_ms=0)
    for attempt in (1, 2):
        batch = queue.try_dequeue()
        assert batch is not None
        assert batch.items[0].attempts == attempt
        assert failed == []
        queue.fail(batch, "no")

    assert failed == [("a", "no")]
    assert queue.try_dequeue() is None


def test_what_can_never_work_is_not_tried_again(queue: AgentQueue, client: oc.Client) -> None:
    queue.enqueue("a")
    batch = queue.try_dequeue()
    assert batch is not None

    queue.fail(batch, {"message": "no", "code": "never"}, retryable=False)

    (shown,) = client.mailboxes.items("session-1", status="failed")
    assert shown.error["code"] == "never"


def test_of_two_consumers_only_one_has_an_item(queue: AgentQueue, client: oc.Client) -> None:
    queue.enqueue("a")

    assert AgentQueue(client, "session-1", window_ms=0).try_dequeue() is not None
    assert queue.try_dequeue() is None


def test_who_was_too_slow_is_told_so(queue: AgentQueue, client: oc.Client) -> None:
    slow = AgentQueue(client, "session-1", window_ms=0, lease_seconds=0.1)
    queue.enqueue("a")
    late, again = slow.try_dequeue(), None
    assert late is not None
    while again is None:  # until its lease of a tenth of a second is over
        again = queue.try_dequeue()

    with pytest.raises(oc.LeaseLost):
        slow.complete(late)
    with pytest.raises(oc.LeaseLost):
        slow.heartbeat(late)
    queue.complete(again)


def test_what_the_server_does_not_take_now_is_none_and_what_is_wrong_is_raised() -> None:
    def queue_of(*answers: Any) -> AgentQueue:
        return AgentQueue(Answering(*answers).client(max_retries=0), "k")

    assert queue_of(problem(429, "backlog_full")).enqueue("a") is None
    assert queue_of(problem(409, "mailbox_full")).enqueue("a") is None
    with pytest.raises(oc.ValidationFailed):
        queue_of(problem(400, "validation_failed")).enqueue("a")
    with pytest.raises(oc.RequestInProgress):
        queue_of(problem(409, "idempotency_in_progress")).enqueue("a")
    with pytest.raises(oc.ConnectionFailed):
        queue_of(httpx.ConnectError("away")).enqueue("a")


# The way there

PHASES = ("dual_write", "shadow", "cutover", "new_only")


def test_work_goes_on_through_all_phases_and_each_item_is_told_once(
    queue: AgentQueue, client: oc.Client
) -> None:
    old = InMemoryQueue(window_ms=0)
    switch = SwitchedQueue(old, queue)
    seen: list[Any] = []

    for phase in PHASES:
        switch.phase = phase
        for number in range(3):
            assert switch.enqueue(f"{phase} {number}") is not None
        switch.enqueue({"kind": "task_notification", "text": f"{phase} ready"})
        while found := told(switch):
            seen += found

    expected = [f"{phase} {what}" for phase in PHASES for what in (0, 1, 2, "ready")]
    assert seen == expected
    assert len(old) == 0
    assert {item.status for item in client.mailboxes.items("session-1")} == {"done"}
    told_apart = switch.differences
    assert (told_apart.compared, told_apart.equal) == (2, 2)
    assert (told_apart.missing, told_apart.ahead, told_apart.failures) == (0, 0, 0)


def test_a_new_queue_that_is_away_costs_the_old_one_nothing(queue: AgentQueue) -> None:
    away = AgentQueue(Answering(httpx.ConnectError("away")).client(max_retries=0), "session-1")
    switch = SwitchedQueue(InMemoryQueue(window_ms=0), away, "shadow")
    switch.enqueue("a")

    assert told(switch) == ["a"]
    assert switch.differences.failures > 0


# Subagents


def test_a_subagent_is_started_with_the_options_of_the_old_interface(
    client: oc.Client, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    AgentQueue(client, "parent").enqueue("begin")
    queue = SubagentQueue(client, parent="parent")

    started = queue.enqueue(
        {"subagentType": "qa", "prompt": "Look at it.", "maxTurns": 3, "toolCallId": "t-1", "model": None},
        description="Looks",
    )

    assert started is not None
    assert started.output_file
    found = queue.status(started)
    assert (found.task_id, found.status, found.max_turns) == (started.task_id, "pending", 3)
    assert queue.enqueue(subagent_type="qa", prompt="Look at it.", tool_call_id="t-1") == started
    engine.drain()
    assert queue.status(started).status == "completed"
    assert "done" in queue.transcript(started)


def test_a_subagent_can_be_told_to_stop(client: oc.Client, engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    queue = SubagentQueue(client)
    started = queue.enqueue(subagent_type="qa", prompt="Look at it.")
    assert started is not None

    queue.cancel(started, "not needed")

    assert queue.status(started).status == "cancelled"


@pytest.mark.parametrize(
    ("options", "told"),
    [({"prompt": "x"}, "subagent_type"), ({"subagent_type": "qa", "prompt": "x", "colour": 1}, "colour")],
)
def test_options_that_there_are_not_or_that_are_missing(options: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        SubagentQueue(Answering(problem(400, "x")).client()).enqueue(options)


def test_a_role_that_has_enough_to_do_takes_none() -> None:
    queue = SubagentQueue(Answering(problem(429, "backlog_full")).client(max_retries=0))

    assert queue.enqueue(subagent_type="qa", prompt="x") is None


def test_a_batch_is_kept_while_its_consumer_lives_and_comes_back_soon_after_it_died(
    client: oc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may keep a sign of life waiting for a second.
    monkeypatch.setattr(agent_queue, "LEASE_SECONDS", 2.0)
    living, other = AgentQueue(client, "session-1", window_ms=0), AgentQueue(client, "session-1", window_ms=0)
    living.enqueue("hello")
    batch = living.try_dequeue()
    assert batch is not None

    ends = time.monotonic() + 3.0
    while time.monotonic() < ends:
        assert other.try_dequeue() is None, "its consumer gives signs of life"
        time.sleep(0.1)
    living._let_go(batch)  # as if the process had died: no more signs

    assert told_within(other, 10) == ["hello"]
    with pytest.raises(oc.LeaseLost):
        living.complete(batch)


def told_within(queue: AgentQueue, seconds: float) -> list[Any]:
    ends, found = time.monotonic() + seconds, told(queue)
    while not found and time.monotonic() < ends:
        time.sleep(0.05)
        found = told(queue)
    return found


def test_work_that_hangs_is_not_kept_for_ever(client: oc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_queue, "LEASE_SECONDS", 0.3)
    hanging = AgentQueue(client, "session-1", window_ms=0, work_seconds=0.2)
    hanging.enqueue("hello")
    hanging.try_dequeue()

    assert told_within(AgentQueue(client, "session-1", window_ms=0), 10) == ["hello"]


def test_the_signs_of_life_end_with_the_client(client: oc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_queue, "LEASE_SECONDS", 0.3)
    queue = AgentQueue(client, "session-1", window_ms=0)
    queue.enqueue("hello")
    queue.try_dequeue()
    signs = next(each for each in threading.enumerate() if each.name == "heartbeat session-1")

    client.close()

    signs.join(30)
    assert not signs.is_alive()


def test_a_batch_whose_heartbeats_could_not_start_does_not_prevent_those_of_the_next(
    client: oc.Client,
) -> None:
    queue = AgentQueue(client, "session-1", window_ms=0)
    queue.enqueue({"kind": "task_notification", "text": "one"})
    queue.enqueue({"kind": "task_notification", "text": "two"})
    with no_threads(), pytest.raises(RuntimeError, match="new thread"):
        queue.try_dequeue()

    queue.try_dequeue()

    assert any(each.name == "heartbeat session-1" for each in threading.enumerate())


def lost(client: oc.Client) -> tuple[AgentQueue, Any, list[Any]]:
    """A queue that has lost the lease of an item's only attempt, its batch, and what its hook was told."""
    queue, heard = AgentQueue(client, "session-1", window_ms=0, lease_seconds=0.1), []
    queue.on_task_failed(lambda item, error: heard.append((item.content, error["code"])))
    queue.enqueue("hello", max_attempts=1)
    batch = queue.try_dequeue()
    ends = time.monotonic() + 10
    while not consumer.release_all_expired():  # what the server's system does
        assert time.monotonic() < ends
        time.sleep(0.05)
    return queue, batch, heard


def test_whoever_loses_the_last_attempt_with_its_lease_is_told_that_it_failed(client: oc.Client) -> None:
    queue, batch, heard = lost(client)

    with pytest.raises(oc.LeaseLost):
        queue.complete(batch)
    assert heard == [("hello", "lease_expired")]

    queue._looked = -1e9
    queue.try_dequeue()
    assert heard == [("hello", "lease_expired")], "once"


ITEM = {"id": "i-1", "kind": "message", "content": "hello", "attempts": 1, "max_attempts": 1}
LOST = {**ITEM, "status": "failed", "error": {"code": "lease_expired"}}


def test_a_connection_that_fails_does_not_hide_that_the_lease_was_lost() -> None:
    taken = said(200, {"batch_id": "b-1", "items": [ITEM], "merged_count": 1, "queue_length_after": 0})
    server = Answering(taken, problem(409, "lease_lost"), httpx.ConnectError("away"))
    queue = AgentQueue(server.client(max_retries=0), "session-1", lease_seconds=60)
    batch = queue.try_dequeue()
    assert batch is not None

    with pytest.raises(oc.LeaseLost):
        queue.complete(batch)


def test_an_item_that_could_not_be_read_when_it_was_lost_is_told_later() -> None:
    letter = {"id": "l-1", "mailbox_item": "i-1", "error": LOST["error"]}
    none, one = (said(200, {"next": None, "results": found}) for found in ([], [letter]))
    looks = [none, one, httpx.ConnectError("away"), one, said(200, LOST), one]
    server = Answering(*looks)
    queue, heard = AgentQueue(server.client(retries=oc.RetryPolicy(max_retries=0)), "session-1"), []
    queue.on_task_failed(lambda item, error: heard.append((item.content, error["code"])))

    for _ in range(4):
        queue._looked = queue._looked and -1e9
        queue._look_for_lost()

    assert heard == [("hello", "lease_expired")]


def test_other_consumers_are_told_of_what_a_dead_one_has_lost(client: oc.Client) -> None:
    other, heard = AgentQueue(client, "session-1", window_ms=0), []
    other.on_task_failed(lambda item, error: heard.append((item.content, error["code"])))
    other.try_dequeue()
    lost(client)

    other._looked = -1e9  # a lease later
    other.try_dequeue()
    other._looked = -1e9
    other.try_dequeue()

    assert heard == [("hello", "lease_expired")]
