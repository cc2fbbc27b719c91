"""The machine: it draws random actions of people, agents, clocks and faults, and applies each to the engine and the model.

After every step both must agree, and the invariants that hold at any time must hold. At the end all work is brought to rest, which
must succeed, and then all invariants must hold.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, StateMachineMeta, invariant

from activities.admission import scripts
from activities.admission.scripts import Slot
from activities.exceptions import ActivityError
from activities.maintenance import invariants
from agents.contracts import Accepted, AgentRequest, Completed, Output
from tests.engine import Engine
from tests.state_machine import picture
from tests.state_machine.life import Refused
from tests.state_machine.limits import Limits
from tests.state_machine.model import Model
from tests.state_machine.tasks import Attempt, Task
from tests.state_machine.world import (
    BUDGETED,
    FAULTS,
    FULL_RATE,
    OF_PROVIDER,
    RATE,
    Message,
    WorkerDied,
    World,
)

T = TypeVar("T")

#: For each step that followed immediately, in all sequences, what happened before it was committed.
FOLLOWED: list[str] = []


class AbstractMachineMeta(ABCMeta, StateMachineMeta):
    """Combines the metaclass of Hypothesis' machines with that of abstract classes."""


class Machine(RuleBasedStateMachine, metaclass=AbstractMachineMeta):
    """The base of all rules: applies actions to both sides, chooses tasks, and compares."""

    def __init__(self, begin: Callable[[], World], end: Callable[[World], None], limits: Limits) -> None:
        super().__init__()
        self.world, self._end = begin(), end
        self.engine: Engine = self.world.engine
        self.tenant = self.world.tenant.pk
        self.model = Model(limits)
        self.model.of_provider = frozenset(OF_PROVIDER)
        self.texts = 0
        self.sound = True
        self.grants: dict[str, Slot] = {}  # at the last comparison
        self.calling = False
        self.acting_between = ""  # what happens before steps that follow are committed

    # Both sides.

    def happens(self, modelled: Callable[[], T], really: Callable[[], Any], fate: str = "kept") -> T | None:
        """Apply an action to both sides and return the result of the model. Either both refuse or none. `fate`: kept, crash, lost."""
        self.sound = False
        if fate == "crash":
            with self.world.crashing():
                _refusal(really)
            return None
        holds = set(self.model.holds)
        outcome, refused = _modelled(modelled)
        if fate == "lost":
            self.model.holds = holds  # because admission was not notified
        with self.world.forgetful() if fate == "lost" else nullcontext():
            error = _refusal(really)
        note(f"    {refused or 'done'} / {error or 'done'}")
        assert bool(error) == bool(refused), f"the model: {refused or 'done'}; the engine: {error or 'done'}"
        return outcome

    @invariant()
    def engine_and_model_agree(self) -> None:
        rows = picture.rows_of(self.tenant)
        picture.bind(self.model, rows)
        differing = picture.difference(picture.of_model(self.model), picture.of_database(rows, self.tenant))
        assert not differing, differing
        if not self.calling:  # a worker notifies admission only after its agent has answered
            self.what_may_start_is_granted_and_nothing_else()

    def what_may_start_is_granted_and_nothing_else(self, *, rates_hold: bool = True) -> None:
        """Check that every new grant is for work that may start, and that all such work has a grant."""
        slots = self.world.slots()
        picture.bind(self.model, picture.rows_of(self.tenant))
        self._count_starts(slots, rates_hold=rates_hold)
        for slot in slots:
            task = next(task for task in self.model.tasks if task.id == slot.activity_id)
            if slot.grant not in self.grants and not slot.started and task.id not in self.world.unwithdrawn:
                assert self.model.may_start(task), f"granted although it may not start: {task}"
        held, running = {slot.activity_id for slot in slots}, Counter(slot.role for slot in slots)
        for role, cap in self.model.caps.items():
            new = any(slot.role == role and slot.grant not in self.grants for slot in slots)
            assert not new or running[role] <= cap, f"{running[role]} of {role} at once, its cap is {cap}"
        full = {role for role, cap in self.model.caps.items() if running[role] >= cap}
        for task in self.model.tasks:
            limited = task.agent in full or (rates_hold and task.agent in self.model.rates)
            if self.model.may_start(task) and not limited and task.id not in self.world.unoffered:
                assert task.id in held, (
                    f"not granted although it may start: {task}, {scripts.inspect(self.id_of(task))}"
                )
        self.grants = {slot.grant: slot for slot in slots}

    def _count_starts(self, slots: Sequence[Slot], *, rates_hold: bool) -> None:
        """Check new starts against the rates of their roles."""
        known, rates = {slot.grant for slot in slots}, self.model.rates
        back = [slot for grant, slot in self.grants.items() if grant not in known and not slot.started]
        for role in rates:
            new = sum(slot.role == role and slot.grant not in self.grants for slot in slots)
            room = rates[role] + sum(slot.role == role for slot in back)
            if rates_hold:
                assert new <= min(room, 1), f"{new} starts of {role}, there was room for {room}"
            rates[role] = min(room, 1) - new if rates_hold else 1

    @invariant()
    def invariants_hold(self) -> None:
        broken = invariants.check()
        assert not broken, broken
        self.sound = True

    def teardown(self) -> None:
        try:
            if self.sound:
                self.come_to_rest()
        finally:
            self._end(self.world)

    # Choosing.

    def text(self, what: str) -> str:
        """Return a new text each time, so that no call is taken for the repetition of another."""
        self.texts += 1
        return f"{what} {self.texts}"

    def tasks(self, *statuses: str) -> list[Task]:
        return [task for task in self.model.tasks if not statuses or task.status in statuses]

    def open_questions(self) -> list[Task]:
        return [task for task in self.model.tasks if task.agent is None and task.open]

    def accepted(self) -> list[Attempt]:
        return [attempt for attempt in self.model.attempts if attempt.live and attempt.accepted]

    def over(self) -> list[Attempt]:
        return [attempt for attempt in self.model.attempts if attempt.state != "running"]

    def id_of(self, task: Task) -> UUID:
        assert task.id is not None
        return task.id

    def next_message(self, index: int, *roles: str) -> Message | None:
        """Choose a message, in the order of the tasks, because the order of the queues depends on the clock. `roles`: one of theirs."""
        order = {str(task.id): number for number, task in enumerate(self.model.tasks)}
        waiting = sorted(self.world.collect(), key=lambda message: order[message["activity"]])
        message = pick([each for each in waiting if not roles or each["role"] in roles], index)
        if message is not None:
            self.world.messages.remove(message)
        return message

    def task_of(self, message: Message) -> Task:
        return next(task for task in self.model.tasks if str(task.id) == message["activity"])

    def has_money_for(self, task: Task) -> bool:
        return self.model.has_money or task.agent not in BUDGETED

    # A worker gets a message.

    def deliver(self, message: Message, during: Callable[[Attempt], None], end: str) -> None:
        """Deliver a message: the worker claims if it can; its agent does `during`, then ends as `end` says."""
        self.sound = False
        task = self.task_of(message)
        ready = task.status == "created" and task.due and self.world.is_granted(message)
        expected = ready and self.has_money_for(task)
        began: list[Attempt] = []
        broken: list[AssertionError] = []

        def behave(request: AgentRequest) -> Any:
            try:
                attempt = self.model.claimed(self._following(began[-1].task, request) if began else task)
                attempt.token = self.world.token_of(request)
                began.append(attempt)
                self._gets_all_decisions(attempt, request)
                during(attempt)
            except AssertionError as error:
                broken.append(error)
            return self._answer(attempt, end)

        self.calling = True
        self.world.deliver(message, behave)
        self.calling = False
        for error in broken:  # raised here, because the engine would take it for a crash of the agent
            raise error
        note(f"    {'claimed' if began else 'nothing to claim'}")
        assert bool(began) == expected, f"claimed: {bool(began)}, expected: {expected}"
        if ready and not expected:
            self.model.finds_no_money(task)

    def _following(self, before: Task, request: AgentRequest) -> Task:
        """Return the step whose run follows another one immediately, after checking that it may, and holds its slot."""
        slots = self.world.slots()
        picture.bind(self.model, picture.rows_of(self.tenant))
        task = next(task for task in self.model.tasks if task.id == request.activity_id)
        assert (task.run, task.agent, task.priority) == (before.run, before.agent, before.priority)
        assert self.acting_between or self.model.may_start(task), f"follows although it may not start: {task}"
        (slot,) = (slot for slot in slots if slot.activity_id == task.id)
        assert slot.started
        assert before.id not in {each.activity_id for each in slots}
        if (cap := self.model.caps.get(slot.role)) is not None and not self.acting_between:
            assert sum(each.role == slot.role for each in slots) <= cap
        if slot.role in self.model.rates:
            self.model.rates[slot.role] -= 1
            assert self.model.rates[slot.role] >= 0
        self.grants[slot.grant] = slot
        FOLLOWED.append(self.acting_between)
        return task

    def _gets_all_decisions(self, attempt: Attempt, request: AgentRequest) -> None:
        received = {wake.get("approval") for wake in request.wakes}
        missing = [question.id for question in attempt.decisions if str(question.id) not in received]
        assert not missing, f"the run did not get the decisions {missing}"

    def _answer(self, attempt: Attempt, end: str) -> Any:
        """Return the answer of the agent and apply it to the model, which ignores it if the run has ended."""
        if end == "result":
            output = self.text("output")
            _modelled(lambda: self.model.completes(attempt, output))
            return Completed(Output(content=output))
        if end in FAULTS:
            _modelled(lambda: self.model.fails(attempt, end))
            raise FAULTS[end]()
        if end == "accepts":
            attempt.accepted = attempt.live
            return Accepted()
        attempt.orphaned = attempt.live
        raise WorkerDied

    # Coming to rest.

    def come_to_rest(self) -> None:
        """Let every agent answer and every person decide, until all tasks have ended."""
        for _ in range(60):
            self.recover()
            self._let_agents_work()
            self._let_people_answer()
            self.tell_of_letters()
            self.engine_and_model_agree()
            if all(task.ended for task in self.model.tasks):
                break
        live = [(task.id, task.status) for task in self.model.tasks if not task.ended]
        assert not live, f"does not come to rest: {live}"
        self.recover()
        self.engine_and_model_agree()
        broken = invariants.check(quiesced=True)
        assert not broken, broken

    def recover(self) -> None:
        self.happens(self._delays_and_losses_end, self._mend)

    def lose(self, attempt: Attempt) -> None:
        self.happens(lambda: self.model.is_lost(attempt), lambda: self.world.lose(attempt.token))

    def _delays_and_losses_end(self) -> None:
        self.model.pauses.clear()
        self.model.caps.clear()
        self.model.money_comes()
        self.model.delays_end()
        for attempt in [attempt for attempt in self.model.attempts if attempt.orphaned and attempt.live]:
            self.model.is_lost(attempt)

    def _mend(self) -> None:
        self.world.resume_all()
        self.world.money_comes()
        self.world.recover()
        self.delays_end_in_the_world()

    def delays_end_in_the_world(self) -> None:
        """End all delays, and let each role with a rate start all its waiting work."""
        self.world.delays_end()
        for role in self.model.rates:
            self.world.limit_rate(role, FULL_RATE)
        self.what_may_start_is_granted_and_nothing_else(rates_hold=False)
        for role in self.model.rates:
            self.world.limit_rate(role, RATE)

    @abstractmethod
    def tell_of_letters(self) -> None:
        """Report permanent failures to people."""

    def _let_agents_work(self) -> None:
        while (message := self.next_message(0)) is not None:
            self.deliver(message, lambda attempt: None, "result")
            self.engine_and_model_agree()
        for attempt in self.accepted():
            self._completes(attempt, self.text("output"))
            self.engine_and_model_agree()

    def _completes(self, attempt: Attempt, output: str) -> None:
        self.happens(
            lambda: self.model.completes(attempt, output), lambda: self.world.complete(attempt.token, output)
        )

    def _let_people_answer(self) -> None:
        for task in self.tasks():
            if task.agent is None and task.open:
                self.answer(task)
                self.engine_and_model_agree()
            elif task.status in ("failed", "needs_review"):
                self.give_up(task)
                self.engine_and_model_agree()

    @abstractmethod
    def answer(self, task: Task) -> None:
        """Answer the task as a person."""

    @abstractmethod
    def give_up(self, task: Task) -> None:
        """Give up a failed task as an operator."""


def _modelled(action: Callable[[], T]) -> tuple[T | None, Refused | None]:
    try:
        return action(), None
    except Refused as refused:
        return None, refused


def _refusal(action: Callable[[], Any]) -> ActivityError | None:
    try:
        action()
    except ActivityError as error:
        return error
    return None


def pick(candidates: Sequence[T], index: int) -> T | None:
    """Return one of the candidates, or None if there are none."""
    return candidates[index % len(candidates)] if candidates else None
