"""The limits of agents, far below the real ones, so that a short sequence reaches every limit."""

from __future__ import annotations

from dataclasses import dataclass

from tests.state_machine.life import Refused
from tests.state_machine.tasks import Task


@dataclass(frozen=True)
class Limits:
    """The settings of the engine, under the names of the model."""

    calls: int = 3
    subtasks: int = 2
    depth: int = 2
    members: int = 5
    reassignments: int = 2
    wakes: int = 4
    rounds: int = 2
    stalls: int = 1

    def settings(self) -> dict[str, int]:
        return {
            "ORCHESTRATOR_TOOL_CALLS_PER_RUN": self.calls,
            "ORCHESTRATOR_SUBTASKS_PER_ACTIVITY": self.subtasks,
            "ORCHESTRATOR_SUBTASK_DEPTH": self.depth,
            "ORCHESTRATOR_ACTIVITIES_PER_TREE": self.members,
            "ORCHESTRATOR_REASSIGNMENTS": self.reassignments,
            "ORCHESTRATOR_WAKE_BUDGET": self.wakes,
            "ORCHESTRATOR_MAX_ROUNDS": self.rounds,
            "ORCHESTRATOR_MAX_STALLS": self.stalls,
        }

    def refuse_subtask_of(self, task: Task) -> None:
        own = [child for child in task.children if child.link == "subtask"]
        if task.depth >= self.depth or len(own) >= self.subtasks:
            raise Refused("too deep, or too many subtasks")
        self._refuse_full_tree(task)

    def refuse_reassignment_of(self, task: Task, agent: str | None) -> None:
        earlier = [member for member in task.line if member.link == "reassigned_from"]
        if len(earlier) >= self.reassignments:
            raise Refused("reassigned too often")
        if agent and agent in {member.agent for member in task.line}:
            raise Refused("it has had this work before")
        self._refuse_full_tree(task)

    def _refuse_full_tree(self, task: Task) -> None:
        if len(task.tree) >= self.members:
            raise Refused("the tree is full")
