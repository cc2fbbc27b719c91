"""What the database holds, and the model, in the same words, so that they can be compared after every step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Now

from activities.models import Activity, ApprovalLink, DeadLetter, Vote, Wake
from pipelines.models import PipelineRun, StepRun
from tenants.context import tenant_scope
from tests.state_machine.model import Model
from tests.state_machine.tasks import Task

_FIELDS = (
    "id", "status", "assignee_type", "agent_role", "parent_id", "link_kind", "is_approval_gate", "pipeline_run_id", "step", "round",
    "attempts", "stalls", "dedup_key",
)  # fmt: skip


def bind(model: Model, tenant_id: UUID) -> dict[UUID, dict[str, Any]]:
    """Give each new task of the model the id of its row; the rows. Fails when either side has made something that the other has not."""
    with tenant_scope(tenant_id):
        rows = {row["id"]: row for row in Activity.objects.for_tenant(tenant_id).order_by("created_at").values(*_FIELDS)}
    known = {task.id for task in model.tasks}
    unbound = [task for task in model.tasks if task.id is None]
    for row in rows.values():
        if row["id"] not in known:
            match = next((task for task in unbound if _signature(task) == _signature_of(row)), None)
            assert match is not None, f"the engine made {row}, the model did not; it waits for {list(map(_signature, unbound))}"
            match.id = row["id"]
            unbound.remove(match)
    assert not unbound, f"the model made {[_signature(task) for task in unbound]}, the engine did not"
    return rows


def _signature(task: Task) -> tuple[Any, ...]:
    run = task.run.id if task.run else None
    return (task.parent.id if task.parent else None, task.link, task.agent, run, task.step, task.round)


def _signature_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["parent_id"], row["link_kind"], row["agent_role"], row["pipeline_run_id"], row["step"], row["round"])


def of_model(model: Model) -> dict[str, Any]:
    """Everything that the model says, by the ids of the database."""
    picture: dict[str, Any] = {}
    for task in model.tasks:
        picture[f"task {task.id}"] = {
            "status": task.status,
            "attempts": task.attempts,
            "stalls": task.stalls,
            "gate": task.gate,
            "key": task.key,
            "due": task.due,
            "later": task.later,
            "letters": [(letter.state, letter.told, letter.escalation.id if letter.escalation else None) for letter in task.letters],
            "votes": dict(task.votes),
            "links": sorted((str(link.approval.id), link.state) for link in task.links),
        }
    for flow in model.flows:
        picture[f"run {flow.id}"] = flow.status
        for name, step in flow.steps.items():
            picture[f"step {flow.id} {name}"] = (step.status, step.task.id if step.task else None, step.round)
    return picture


def of_database(rows: dict[UUID, dict[str, Any]], tenant_id: UUID) -> dict[str, Any]:
    """The same of what is stored."""
    with tenant_scope(tenant_id):
        beside = _beside(tenant_id)
        picture: dict[str, Any] = {}
        for activity_id, row in rows.items():
            due, later = beside["wakes"][activity_id]
            picture[f"task {activity_id}"] = {
                "status": row["status"],
                "attempts": row["attempts"],
                "stalls": row["stalls"],
                "gate": row["is_approval_gate"],
                "key": row["dedup_key"],
                "due": bool(due),
                "later": bool(later),
                "letters": beside["letters"][activity_id],
                "votes": dict(beside["votes"][activity_id]),
                "links": sorted(beside["links"][activity_id]),
            }
        for run_id, status in PipelineRun.objects.for_tenant(tenant_id).values_list("pk", "status"):
            picture[f"run {run_id}"] = status
        steps = StepRun.objects.for_tenant(tenant_id).values_list("run_id", "step", "status", "activity_id", "round")
        for run_id, step, *state in steps:
            picture[f"step {run_id} {step}"] = tuple(state)
    return picture


def _beside(tenant_id: UUID) -> dict[str, Any]:
    """What hangs on activities, by activity."""
    wakes: dict[UUID, list[int]] = defaultdict(lambda: [0, 0])
    pending = Wake.objects.for_tenant(tenant_id).filter(state="pending")
    for activity_id in pending.filter(Q(due_at=None) | Q(due_at__lte=Now())).values_list("activity_id", flat=True):
        wakes[activity_id][0] += 1
    for activity_id in pending.filter(due_at__gt=Now()).values_list("activity_id", flat=True):
        wakes[activity_id][1] += 1
    letters = defaultdict(list)
    for letter in DeadLetter.objects.for_tenant(tenant_id).order_by("created_at", "pk"):
        letters[letter.activity_id].append((letter.state, letter.handled_at is not None, letter.escalation_id))
    votes = defaultdict(list)
    for activity_id, name, decision in Vote.objects.for_tenant(tenant_id).values_list("activity_id", "voter", "decision"):
        votes[activity_id].append((name, decision))
    links = defaultdict(list)
    for activity_id, approval_id, state in ApprovalLink.objects.for_tenant(tenant_id).values_list(
        "activity_id", "approval_id", "state"
    ):
        links[activity_id].append((str(approval_id), state))
    return {"wakes": wakes, "letters": letters, "votes": votes, "links": links}


def differences(model: dict[str, Any], database: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What the model says and what is stored, where they are not the same."""
    return {
        name: (model.get(name), database.get(name))
        for name in sorted(model.keys() | database.keys())
        if model.get(name) != database.get(name)
    }
