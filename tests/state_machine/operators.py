"""Rules of the machine: what operators do, what happens by time, and what goes wrong."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from activities import cancellation, dead_letters, reassignment, rescheduling
from pipelines import cancellation as pipeline_cancellation
from tests.state_machine.drawn import VOTERS, dates, drawn_decisions, fates, indexes, priorities, roles
from tests.state_machine.flow import Flow
from tests.state_machine.life import FAILED, Refused
from tests.state_machine.machine import pick
from tests.state_machine.people import People
from tests.state_machine.tasks import Task
from tests.state_machine.world import PAUSES, RATE, ROLES

#: What others do before a step that follows immediately is committed.
BETWEEN = ("nothing", "cap", "audit", "pause")


class Anything(People):
    """All rules: agents, people, operators who cancel, reassign, retry, replay and dismiss, lost workers and a wiped Redis."""

    # Operators.

    @precondition(lambda self: self.open_tasks())
    @rule(index=indexes, what=st.sampled_from(("cancel", "reassign", "reassign")), role=roles, fate=fates)
    def an_operator_acts(self, index: int, what: str, role: str | None, fate: str) -> None:
        if task := pick(self.open_tasks(), index):
            self.cancel(task, fate) if what == "cancel" else self.reassign(task, role, fate)

    @precondition(lambda self: self.tasks(*FAILED))
    @rule(index=indexes, what=st.sampled_from(("retry", "retry", "replay", "dismiss")), fate=fates)
    def an_operator_deals_with_failures(self, index: int, what: str, fate: str) -> None:
        if what == "replay":
            self.happens(self.model.replay, self.world.replay, fate)
        elif what == "dismiss":
            self.happens(self.model.dismiss, self.world.dismiss, fate)
        elif task := pick(self.tasks(*FAILED), index):
            self.retry(task, fate)

    @precondition(lambda self: self.model.tasks)
    @rule(index=indexes, role=roles, decision=drawn_decisions)
    def somebody_tries_everything_on_whatever_it_is(
        self, index: int, role: str | None, decision: str
    ) -> None:
        task = self.model.tasks[index % len(self.model.tasks)]
        for attempt in (
            partial(self.retry, task),
            partial(self.decide, task, decision, VOTERS[index % len(VOTERS)]),
            partial(self.work, task, ("claim", "complete", "resolve")[index % 3]),
            partial(self.reassign, task, role),
        ):
            attempt()
            self.engine_and_model_agree()

    def open_tasks(self) -> list[Task]:
        return [task for task in self.model.tasks if not task.ended]

    def cancel(self, task: Task, fate: str = "kept") -> None:
        really = partial(cancellation.cancel, self.tenant, self.id_of(task), actor="people", reason="enough")
        self.happens(partial(self.model.cancel, task), really, fate)

    def reassign(self, task: Task, role: str | None, fate: str = "kept") -> None:
        whom = {"agent_role": role} if role else {"human_role": "editor"}
        really = partial(
            reassignment.reassign, self.tenant, self.id_of(task), actor="people", reason="other", **whom
        )  # type: ignore[arg-type]
        self.happens(partial(self.model.reassign, task, role), really, fate)

    def retry(self, task: Task, fate: str = "kept") -> None:
        really = partial(cancellation.retry, self.tenant, self.id_of(task), actor="people")
        self.happens(partial(self.model.retry, task), really, fate)

    def give_up(self, task: Task) -> None:
        self.cancel(task)

    @precondition(lambda self: self.flows())
    @rule(index=indexes)
    def an_operator_cancels_a_pipeline(self, index: int) -> None:
        if (flow := pick(self.flows(), index)) and flow.id is not None:
            really = partial(pipeline_cancellation.cancel_run, self.tenant, flow.id, actor="people")
            self.happens(partial(self._cancel_flow, flow), really)

    def flows(self) -> list[Flow]:
        return [flow for flow in self.model.flows if flow.status == "running"]

    def _cancel_flow(self, flow: Flow) -> None:
        flow.status = "cancelled"
        for task in [task for task in self.model.tasks if task.run is flow and not task.ended]:
            try:
                self.model.cancel(task)
            except Refused:  # because it has ended together with another task
                continue

    # What happens by time.

    @precondition(
        lambda self: any(not letter.reported for task in self.model.tasks for letter in task.letters)
    )
    @rule()
    def people_are_told_of_failures(self) -> None:
        self.tell_of_letters()

    def tell_of_letters(self) -> None:
        self.happens(self.model.tell_of_letters, dead_letters.handle_waiting)

    @precondition(
        lambda self: self.model.rates or self.model.holds or any(task.later for task in self.model.tasks)
    )
    @rule()
    def delays_end(self) -> None:
        self.happens(self.model.delays_end, self.delays_end_in_the_world)

    @precondition(lambda self: self.open_tasks())
    @rule(index=indexes)
    def time_is_over_for_some_work(self, index: int) -> None:
        if (task := pick(self.open_tasks(), index)) and task.agent:
            self.happens(partial(self.model.expire, task), partial(self.world.expire, self.id_of(task)))

    @rule(there_is=st.booleans())
    def money_comes_or_is_gone(self, there_is: bool) -> None:
        if there_is:
            self.happens(self.model.money_comes, self.world.money_comes)
        else:
            self.model.has_money = False
            self.world.money_is_gone()

    @rule(pause=st.sampled_from(PAUSES), paused=st.booleans())
    def new_work_is_stopped_or_goes_on(self, pause: tuple[str, str], paused: bool) -> None:
        self.model.pauses = self.model.pauses | {pause} if paused else self.model.pauses - {pause}
        self.world.pause(*pause, paused)

    @precondition(lambda self: self.open_tasks())
    @rule(index=indexes, priority=priorities, not_before=dates, due_at=dates, fate=fates)
    def an_operator_reschedules(
        self, index: int, priority: int | None, not_before: bool | None, due_at: bool | None, fate: str
    ) -> None:
        """A new priority always reaches admission, which otherwise uses the old one until recovery compares."""
        if task := pick(self.open_tasks(), index):
            changes = {"priority": priority, "not_before": not_before, "due_at": due_at}
            self.happens(
                partial(self.model.reschedule, task, **changes),  # type: ignore[arg-type]
                partial(self.world.reschedule, self.id_of(task), **changes),
                "kept" if fate == "lost" and priority else fate,
            )

    @precondition(lambda self: self.tasks("created"))
    @rule(index=indexes, fate=fates)
    def an_operator_lets_it_run_now(self, index: int, fate: str) -> None:
        if task := pick(
            [task for task in self.tasks("created") if task.agent] or self.tasks("created"), index
        ):
            really = partial(
                rescheduling.run_now, self.tenant, self.id_of(task), actor="people", reason="soon"
            )
            self.happens(partial(self.model.run_now, task), really, fate)

    @rule(role=st.sampled_from(ROLES), cap=st.sampled_from((None, 1, 2)))
    def a_role_gets_a_cap_or_loses_it(self, role: str, cap: int | None) -> None:
        self.model.caps.pop(role, None)
        if cap is not None:
            self.model.caps[role] = cap
        self.world.cap(role, cap)

    @rule(role=st.sampled_from(ROLES), limited=st.booleans())
    def a_role_gets_a_rate_or_loses_it(self, role: str, limited: bool) -> None:
        self.model.rates.pop(role, None)
        if limited:
            self.model.rates[role] = 1
        self.world.limit_rate(role, RATE if limited else {})

    @precondition(lambda self: not any(flow.key == "chained" for flow in self.model.flows))
    @rule(acts=st.permutations(BETWEEN))
    def others_act_while_steps_begin(self, acts: list[str]) -> None:
        """Something happens after admission has passed a slot on, before the step that takes it is committed."""
        for act in acts:
            self.recover()
            self.a_pipeline_starts("chained")
            self.engine_and_model_agree()
            first = self.model.flows[-1].steps["first"].task
            messages = [message for message in self.world.collect() if self.task_of(message) is first]
            if messages:
                self.world.messages.remove(messages[0])
                self.acting_between = act
                with self.world.before_steps_begin(self._act_between):
                    self.deliver(messages[0], lambda attempt: None, "result")
                self.acting_between = ""
            self.engine_and_model_agree()

    def _act_between(self) -> None:
        if self.acting_between == "pause":
            self.new_work_is_stopped_or_goes_on(("pipeline", "chained"), True)
        elif self.acting_between == "cap":
            self.a_role_gets_a_cap_or_loses_it("qa", 1)
        elif self.acting_between == "audit":
            self.world.audit.compare()

    # What goes wrong.

    @precondition(lambda self: self.model.attempts)
    @rule(index=indexes, what=st.sampled_from(("lost", "lost", "found", "wiped")))
    def something_goes_wrong_or_is_mended(self, index: int, what: str) -> None:
        """A run is lost, recovery runs, or Redis is wiped."""
        if what == "found":
            self.recover()
        elif what == "wiped":
            self.model.holds.clear()  # the next refusal of a provider sets them again
            self.world.wipe_redis()
        elif attempt := pick([attempt for attempt in self.model.attempts if attempt.live], index):
            self.lose(attempt)
