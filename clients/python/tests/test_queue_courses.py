"""Whatever happens on the way from the old queue to the new one, everything is done exactly once."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from two_queues import World

from orchestrator_client.queue import PHASES, Batch

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
