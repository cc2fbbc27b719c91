"""While both queues are written, what the new one would have handed out is compared."""

from __future__ import annotations

import pytest
from two_queues import World, shadow

from orchestrator_client.queue import Batch, item_of
from orchestrator_client.queue.switched import compare


def test_the_order_inside_of_a_batch_makes_no_difference() -> None:
    told = shadow(["a", "b", "c"], ["c", "a", "b"]).switch.differences

    assert (told.compared, told.equal, told.missing, told.ahead, told.regrouped) == (1, 1, 0, 0, 0)


def test_what_the_new_queue_does_not_have_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    told = shadow(["a", "b"], ["a"]).switch.differences

    assert (told.equal, told.missing) == (0, 1)
    (record,) = (record for record in caplog.records if getattr(record, "action", "") == "queues_differ")
    assert record.missing == ["id-b"]  # type: ignore[attr-defined]


def test_what_the_new_queue_has_besides_is_not_handed_out_and_not_lost() -> None:
    world = shadow(["a"], ["a", "b"])

    assert (world.switch.differences.equal, world.switch.differences.ahead) == (0, 1)
    assert world.switch.try_dequeue() is None
    world.switch.phase = "cutover"
    assert world.read() == ["b"]


def test_a_copy_that_says_something_else_is_a_difference() -> None:
    world = World("shadow")
    world.old.enqueue("yes", client_message_id="1")
    world.new.enqueue("no", client_message_id="1")

    world.switch.try_dequeue()

    assert (world.switch.differences.missing, world.switch.differences.ahead) == (1, 1)


def test_the_same_items_in_other_batches_are_not_missing() -> None:
    world = World("shadow")
    for text in "ab":
        world.old.enqueue(text, client_message_id=text)
        world.new.enqueue(text, client_message_id=text, is_coalescable=False)

    world.switch.try_dequeue()

    told = world.switch.differences
    assert (told.equal, told.missing, told.ahead, told.regrouped) == (0, 0, 0, 1)


def test_two_equal_items_must_be_there_twice() -> None:
    twice, once = (Batch("b", tuple([item_of("x")] * number), number, 0) for number in (2, 1))

    assert len(compare(twice, [once]).missing) == 1
    assert compare(twice, [once, once]).missing == ()
    assert len(compare(once, [twice]).ahead) == 1
