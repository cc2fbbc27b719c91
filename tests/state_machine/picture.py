"""Snapshots of the database and of the model in the same form, which are compared after every step."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tenants.context import SYSTEM
from tenants.sql import Statement
from tests.state_machine.model import Model
from tests.state_machine.tasks import Task

_TASKS = Statement(
    name="tasks",
    text="""
    SELECT a.id, a.status, a.agent_role, a.parent_id, a.link_kind, a.is_approval_gate, a.pipeline_run_id, a.step, a.round,
           a.attempts, a.stalls, a.dedup_key, coalesce(w.due, false) AS due, coalesce(w.later, false) AS later,
           a.priority, a.run_now_at IS NOT NULL AS goes_past_pauses, coalesce(a.not_before > now(), false) AS not_before,
           EXISTS (SELECT FROM activities_deadline e
                   WHERE e.activity_id = a.id AND e.kind = 'due' AND e.happened_at IS NULL) AS deadline_ahead,
           (SELECT count(*) FROM activities_activityrun r WHERE r.activity_id = a.id) AS runs,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(d.state, d.handled_at IS NOT NULL, d.escalation_id) ORDER BY d.created_at), '[]')
            FROM activities_deadletter d WHERE d.activity_id = a.id) AS letters,
           (SELECT coalesce(jsonb_object_agg(substr(v.voter, 6), v.decision), '{}')
            FROM activities_vote v WHERE v.activity_id = a.id) AS votes,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(l.approval_id, l.state) ORDER BY l.approval_id), '[]')
            FROM approval_linked_activities l WHERE l.activity_id = a.id) AS links
    FROM activities_activity a LEFT JOIN LATERAL (
        SELECT bool_or(due_at IS NULL OR due_at <= now()) AS due, bool_or(due_at > now()) AS later
        FROM activities_wake WHERE activity_id = a.id AND state = 'pending'
    ) w ON true
    WHERE a.tenant_id = %(tenant)s ORDER BY a.created_at
    """,
)
_STEPS = Statement(
    name="steps",
    text="""
    SELECT r.id, r.status AS run, s.step, s.status, s.activity_id, s.round
    FROM pipelines_pipelinerun r JOIN pipelines_steprun s ON s.run_id = r.id WHERE r.tenant_id = %(tenant)s
    """,
)


def rows_of(tenant_id: UUID) -> list[Any]:
    return _TASKS.run({"tenant": tenant_id}, using=SYSTEM)


def bind(model: Model, rows: list[Any]) -> None:
    """Give each new task of the model the id of its row. Fail if either side has created a task that the other has not."""
    known = {task.id for task in model.tasks}
    unbound = [task for task in model.tasks if task.id is None]
    for row in rows:
        if row.id not in known:
            match = next((task for task in unbound if _signature(task) == _signature_of(row)), None)
            assert match is not None, (
                f"the engine created {row}; the model created {list(map(_signature, unbound))}"
            )
            match.id = row.id
            unbound.remove(match)
    assert not unbound, f"the model created {[_signature(task) for task in unbound]}; the engine did not"


def _signature(task: Task) -> tuple[Any, ...]:
    parent, run = task.parent.id if task.parent else None, task.run.id if task.run else None
    return (parent, task.link, task.agent, run, task.step, task.round)


def _signature_of(row: Any) -> tuple[Any, ...]:
    return (row.parent_id, row.link_kind, row.agent_role, row.pipeline_run_id, row.step, row.round)


def of_model(model: Model) -> dict[str, Any]:
    """Return the state of the model, by the ids of the database."""
    picture: dict[str, Any] = {f"task {task.id}": _of_task(task) for task in model.tasks}
    for flow in model.flows:
        picture[f"run {flow.id}"] = flow.status
        for name, step in flow.steps.items():
            picture[f"step {flow.id} {name}"] = (step.status, step.task.id if step.task else None, step.round)
    return picture


def _of_task(task: Task) -> dict[str, Any]:
    return {
        "status": task.status,
        "attempts": task.attempts,
        "stalls": task.stalls,
        "gate": task.gate,
        "key": task.key,
        "due": task.due,
        "later": task.later,
        "letters": [[letter.state, letter.reported, _text(letter.escalation)] for letter in task.letters],
        "votes": task.votes,
        "links": sorted([_text(link.approval), link.state] for link in task.links),
        "runs": task.runs,
        "priority": task.priority,
        "goes past pauses": task.goes_past_pauses,
        "not before": task.not_before,
        "deadline ahead": task.deadline_ahead,
    }


def _text(task: Task | None) -> str | None:
    return str(task.id) if task else None


def of_database(rows: list[Any], tenant_id: UUID) -> dict[str, Any]:
    """Return the state of the database in the same form."""
    picture: dict[str, Any] = {f"task {row.id}": _of_row(row) for row in rows}
    for row in _STEPS.run({"tenant": tenant_id}, using=SYSTEM):
        picture[f"run {row.id}"] = row.run
        picture[f"step {row.id} {row.step}"] = (row.status, row.activity_id, row.round)
    return picture


def _of_row(row: Any) -> dict[str, Any]:
    return {
        "status": row.status,
        "attempts": row.attempts,
        "stalls": row.stalls,
        "gate": row.is_approval_gate,
        "key": row.dedup_key,
        "due": row.due,
        "later": row.later,
        "letters": row.letters,
        "votes": row.votes,
        "links": row.links,
        "runs": row.runs,
        "priority": row.priority,
        "goes past pauses": row.goes_past_pauses,
        "not before": row.not_before,
        "deadline ahead": row.deadline_ahead,
    }


def difference(model: dict[str, Any], database: dict[str, Any]) -> str:
    """Describe where the model and the database differ; empty if they agree."""
    names = [name for name in sorted(model.keys() | database.keys()) if model.get(name) != database.get(name)]
    return "\n".join(f"{name}\n  model   {model.get(name)}\n  engine  {database.get(name)}" for name in names)
