"""The way from an old queue to a new one: nothing is lost, nothing is handed out twice, and the other queue can do no harm."""

from __future__ import annotations

from typing import Any

import pytest
from two_queues import World

from orchestrator_client.queue import PHASES, SwitchedQueue


@pytest.mark.parametrize("phase", PHASES)
def test_in_every_phase_each_item_is_handed_out_once_and_in_order(phase: str) -> None:
    world = World(phase)
    for text in "abc":
        assert world.switch.enqueue(text)

    assert world.read() == ["a", "b", "c"]
    assert world.switch.try_dequeue() is None


@pytest.mark.parametrize("phase", ["dual_write", "shadow", "cutover"])
def test_copies_of_what_is_done_leave_the_other_queue(phase: str) -> None:
    world = World(phase)
    for text in "abc":
        world.switch.enqueue(text)

    world.read()

    assert (len(world.old.queue), len(world.new.queue)) == (0, 0)
    assert not any(world.switch._copies.held.values())
    assert not world.old.queue._taken
    assert not world.new.queue._taken


def test_while_both_are_written_only_the_old_is_read() -> None:
    world = World("dual_write")
    world.switch.enqueue("a")
    world.new.enqueue("only in the new")

    batch = world.switch.try_dequeue()

    assert batch is not None
    assert [item.content for item in batch.items] == ["a"]
    assert len(world.new.queue) == 2


def test_a_copy_stays_until_the_work_is_done() -> None:
    world = World("shadow")
    world.switch.enqueue("a")

    batch = world.switch.try_dequeue()

    assert batch is not None
    assert len(world.new.queue._taken) == 1, "held back, not ended"
    world.switch.complete(batch)
    assert not world.new.queue._taken


def test_what_is_tried_again_comes_from_the_same_queue_and_its_copy_goes_when_it_has_failed_for_good() -> (
    None
):
    world = World("dual_write")
    failed: list[tuple[str, Any]] = []
    world.switch.on_task_failed(lambda item, error: failed.append((item.content, error)))
    world.switch.enqueue("a", max_attempts=2)

    for attempt in (1, 2):
        batch = world.switch.try_dequeue()
        assert batch is not None
        assert batch.items[0].attempts == attempt
        assert failed == []
        world.switch.fail(batch, "no")
        world.clock.pass_by(10)

    assert failed == [("a", "no")]
    assert world.switch.try_dequeue() is None
    world.switch.phase = "cutover"
    assert world.switch.try_dequeue() is None


@pytest.mark.parametrize("phase", ["dual_write", "shadow"])
def test_a_new_queue_that_is_away_changes_nothing(phase: str) -> None:
    world = World(phase)
    world.new.broken = True
    world.switch.enqueue("a")
    world.switch.enqueue("b")

    assert world.read() == ["a", "b"]
    assert world.switch.differences.failures > 0


def test_after_the_cutover_the_old_queue_takes_over_while_the_new_is_away() -> None:
    world = World("cutover")
    world.switch.enqueue("a")
    world.new.broken = True
    assert world.switch.enqueue("b") is not None

    assert world.read() == ["a", "b"]
    assert world.switch.differences.fallbacks == 1

    world.new.broken = False
    assert world.read() == [], "its copies are done"
    assert len(world.new.queue) == 0


def test_after_the_cutover_an_old_queue_that_is_away_changes_nothing() -> None:
    world = World("cutover")
    world.old.broken = True
    world.switch.enqueue("a")

    assert world.read() == ["a"]


def test_only_both_queues_being_away_is_a_failure() -> None:
    world = World("cutover")
    world.old.broken = world.new.broken = True

    with pytest.raises(OSError, match="away"):
        world.switch.enqueue("a")
    with pytest.raises(OSError, match="away"):
        world.switch.try_dequeue()


@pytest.mark.parametrize(("phase", "queue"), [("dual_write", "old"), ("shadow", "old"), ("new_only", "new")])
def test_a_failure_of_the_queue_that_counts_is_told(phase: str, queue: str) -> None:
    world = World(phase)
    getattr(world, queue).broken = True

    with pytest.raises(OSError, match="away"):
        world.switch.enqueue("a")
    with pytest.raises(OSError, match="away"):
        world.switch.try_dequeue()
    assert len(world.old.queue) + len(world.new.queue) == 0


def test_what_the_queue_that_counts_does_not_accept_is_in_neither() -> None:
    world = World("dual_write")
    world.old.full = True

    assert world.switch.enqueue("a") is None
    assert len(world.new.queue) == 0


def test_what_the_other_queue_does_not_accept_is_counted() -> None:
    world = World("dual_write")
    world.new.full = True

    assert world.switch.enqueue("a") is not None
    assert world.switch.differences.refused == 1


def test_what_was_waiting_in_the_old_queue_alone_is_not_left_behind_by_the_cutover() -> None:
    world = World("dual_write")
    world.new.full = True
    world.switch.enqueue("a")
    world.new.full = False
    world.switch.enqueue("b")

    world.switch.phase = "cutover"

    assert sorted(world.read()) == ["a", "b"]


def test_work_under_way_at_the_cutover_is_not_handed_out_again() -> None:
    world = World("dual_write")
    world.switch.enqueue("a")
    batch = world.switch.try_dequeue()
    world.switch.phase = "cutover"

    assert batch is not None
    assert world.read() == []
    world.switch.complete(batch, "done")
    assert world.read() == []
    assert len(world.new.queue) + len(world.new.queue._taken) == 0


def test_the_way_back_loses_nothing_either() -> None:
    world = World("cutover")
    world.switch.enqueue("a")
    world.switch.enqueue("b")
    first = world.switch.try_dequeue()
    world.switch.phase = "dual_write"
    world.switch.enqueue("c")

    assert first is not None
    assert world.read() == ["c"]
    world.switch.complete(first)
    assert world.read() == []


def test_a_new_process_that_knows_what_is_done_does_not_do_it_again() -> None:
    done: set[str] = set()
    world = World("dual_write")
    world.switch = SwitchedQueue(world.old, world.new, done=done, clock=world.clock)
    world.switch.enqueue("a")
    batch = world.old.try_dequeue()
    assert batch is not None
    done.add(str(batch.items[0].client_message_id))

    world.switch = SwitchedQueue(world.old, world.new, "cutover", done=done, clock=world.clock)

    assert world.read() == []
    assert world.switch.differences.withheld == 1


def test_leases_of_what_is_held_back_are_kept_and_what_is_lost_is_let_go() -> None:
    world = World("shadow")
    world.switch.enqueue("a")
    world.switch.try_dequeue()
    world.clock.pass_by(61)

    world.switch.try_dequeue()
    assert world.new.beats == 1
    world.new.broken = True
    world.clock.pass_by(61)
    world.switch.try_dequeue()

    assert not any(world.switch._copies.held.values())


def test_hooks_of_the_switch_hear_of_each_item_once() -> None:
    world = World("shadow")
    done: list[tuple[Any, Any]] = []
    world.switch.on_task_completed(lambda item, result: done.append((item.content, result)))
    world.switch.enqueue("a")
    world.switch.enqueue("b")

    batch = world.switch.try_dequeue()
    assert batch is not None
    world.switch.complete(batch, 7)

    assert done == [("a", 7), ("b", 7)]


def test_a_phase_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="half_way"):
        World("half_way")
