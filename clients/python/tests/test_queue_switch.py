"""The way from an old queue to a new one: nothing is lost, nothing is handed out twice, and the other queue can do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator_client.queue import PHASES, Batch, InMemoryQueue, SwitchedQueue, item_of
from orchestrator_client.queue.comparing import compare


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


Made = Callable[..., World]


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


# Comparing


def shadow(old: list[str], new: list[str], **options: Any) -> World:
    """Both queues as they were filled by others, read once in the shadow phase."""
    world = World("shadow", **options)
    for queue, texts in ((world.old, old), (world.new, new)):
        for text in texts:
            queue.enqueue(text, client_message_id=f"id-{text}")
    world.switch.try_dequeue()
    return world


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


def test_a_phase_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="half_way"):
        World("half_way")


# Any course of events

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("read")),
        st.tuples(st.just("complete"), st.integers(0, 3)),
        st.tuples(st.just("fail"), st.integers(0, 3)),
        st.tuples(st.just("phase"), st.sampled_from(PHASES[:3])),
        st.tuples(st.just("away"), st.sampled_from(["old", "new", "none"])),
        st.tuples(st.just("later"), st.integers(1, 400)),
    ),
    max_size=40,
)


class Course:
    """Does what was drawn, and keeps count of who has what in hand."""

    def __init__(self) -> None:
        self.world = World("dual_write", limit=3)
        self.accepted: list[str] = []
        self.open: list[Batch] = []
        self.done: list[str] = []

    def enqueue(self, priority: int, together: bool) -> None:
        name = f"n{len(self.accepted)}"
        try:
            taken = self.world.switch.enqueue(
                name, client_message_id=name, priority=priority, is_coalescable=together, max_attempts=50
            )
        except OSError:
            taken = None
        # An answer that was lost may have been a yes; such an item may come or not, but it is not counted on.
        if taken is not None:
            self.accepted.append(name)

    def read(self) -> None:
        try:
            batch = self.world.switch.try_dequeue()
        except OSError:
            return
        if batch is not None:
            in_hand = {item.content for found in self.open for item in found.items}
            told = {item.content for item in batch.items}
            assert not told & in_hand, "handed out while another has it in hand"
            assert not told & set(self.done), "handed out after it was done"
            assert len(told) == batch.merged_count
            self.open.append(batch)

    def complete(self, which: int) -> None:
        self._end(which, "complete")

    def fail(self, which: int) -> None:
        self._end(which, "fail", "no")

    def _end(self, which: int, how: str, *told: Any) -> None:
        if which >= len(self.open):
            return
        batch = self.open[which]
        try:
            getattr(self.world.switch, how)(batch, *told)
        except OSError:
            return
        self.open.remove(batch)
        if how == "complete":
            self.done += [item.content for item in batch.items]

    def phase(self, phase: str) -> None:
        self.world.switch.phase = phase

    def away(self, which: str) -> None:
        self.world.old.broken, self.world.new.broken = which == "old", which == "new"

    def later(self, seconds: int) -> None:
        self.world.clock.pass_by(seconds)

    def finish(self) -> None:
        """Everybody is back, and everything is done."""
        self.away("none")
        for _ in range(200):
            while self.open:
                self.complete(0)
            self.later(400)
            self.read()
            if not self.open:
                break


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, last=st.sampled_from(PHASES[:3]))
def test_whatever_happens_everything_is_done_exactly_once(steps: list[tuple[Any, ...]], last: str) -> None:
    course = Course()
    for name, *arguments in steps:
        getattr(course, name)(*arguments)

    course.away("none")
    course.phase("cutover")
    course.finish()
    course.phase(last)
    course.finish()

    assert sorted(course.done) == sorted(course.accepted)
