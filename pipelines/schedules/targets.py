"""What a schedule runs: an agent, as an activity for each job, or a pipeline, as a run for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from activities import backlog
from activities.states import WakeReason
from activities.submission import NewActivity, newcomers, submit
from agents import configuration, input_schemas
from agents.exceptions import AgentError
from pipelines.exceptions import PipelineError
from pipelines.models import Pipeline, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule_job import JobState
from pipelines.submission import NewRun, WhenFull, start_runs
from tenants import clock
from tenants.identifiers import uuid7

ACTOR = "schedule"
MOST_TOLD = 5  # faults of one job that its error's message names; the rest is beside it


class TargetUnavailable(PipelineError):
    """The agent that a schedule runs is not there, or is switched off."""

    code: ClassVar[str] = "target_unavailable"


def definition_of(schedule: Schedule) -> dict[str, Any]:
    """What an execution needs to know, frozen when it begins: a later change of the schedule is for the next one."""
    return {
        "schedule": str(schedule.pk),
        "name": schedule.name,
        "target_type": schedule.target_type,
        "agent_role": schedule.agent_role,
        "pipeline": _key_of_pipeline(schedule),
        "params": schedule.params,
        "retry": schedule.retry,
        "timeout_seconds": schedule.timeout_seconds,
        "priority": schedule.priority,
    }


def _key_of_pipeline(schedule: Schedule) -> str | None:
    """Without raising: a pipeline that is gone makes the execution fail, not the firing."""
    if schedule.pipeline_id is None:
        return None
    if Schedule.pipeline.is_cached(schedule):
        return schedule.pipeline.key if schedule.pipeline else None
    pipelines = Pipeline.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pipeline_id)
    key: str | None = pipelines.values_list("key", flat=True).first()
    return key


def start(execution: ScheduleExecution, jobs: Iterable[ScheduleJob]) -> None:
    """Create the work of these jobs and note it on them, unsaved; a job whose parameters the agent does not take has failed.

    Those for which there is no room in a backlog wait with the reason as their error, and are given again when their execution is settled.
    In the caller's transaction. Raises `PipelineError` when the agent or the pipeline is gone or switched off.
    """
    if execution.definition["target_type"] == "agent":
        if valid := _valid(execution, jobs):
            submit_each([(execution, job) for job in valid])
    elif waiting := list(jobs):
        _start_runs(execution, waiting)


def submit_each(pairs: Sequence[tuple[ScheduleExecution, ScheduleJob]]) -> None:
    """The jobs of many executions of one tenant in one statement; each of them is one that `takes` allows. As `start`."""
    items = [_activity(execution, job) for execution, job in pairs]
    tenant_id = pairs[0][0].tenant_id
    room = backlog.admitted(tenant_id, [newcomers([item]) for item in items])
    made = submit(items[:room], actor=ACTOR, bounded=False) if room else []
    for (_, job), submitted in zip(pairs[:room], made, strict=True):
        job.activity_id, job.state, job.error = submitted.id, JobState.ENQUEUED, None
    _put_off(tenant_id, [job for _, job in pairs[room:]], items[-1].agent_role or "")


def _put_off(tenant_id: UUID, jobs: Iterable[ScheduleJob], role: str | None) -> None:
    message = (
        backlog.full(tenant_id, role) if role else "As much work of its pipeline is waiting as may wait."
    )
    for job in jobs:
        job.state, job.error = JobState.WAITING, {"code": backlog.BacklogFull.code, "message": message}


def takes(execution: ScheduleExecution, params: dict[str, Any]) -> bool:
    """Whether an agent is there for the execution and takes these parameters. In the caller's transaction."""
    given = execution.definition
    if given["target_type"] != "agent":
        return False
    try:
        _refuse_unavailable(execution.tenant_id, given["agent_role"])
    except TargetUnavailable:
        return False
    return not input_schemas.faults(execution.tenant_id, given["agent_role"], params)


def _valid(execution: ScheduleExecution, jobs: Iterable[ScheduleJob]) -> list[ScheduleJob]:
    role = execution.definition["agent_role"]
    _refuse_unavailable(execution.tenant_id, role)
    valid: list[ScheduleJob] = []
    for job in jobs:
        faults = input_schemas.faults(execution.tenant_id, role, job.params)
        if faults:
            job.state, job.error, job.ended_at = JobState.FAILED, _refusal(faults), clock.now()
        else:
            valid.append(job)
    return valid


def _refuse_unavailable(tenant_id: UUID, role: str) -> None:
    try:
        enabled = configuration.settings_for(tenant_id, role).enabled
    except AgentError as error:
        raise TargetUnavailable(str(error)) from error
    if not enabled:
        raise TargetUnavailable(f"The agent {role!r} is switched off.")


def _refusal(faults: list[dict[str, str]]) -> dict[str, Any]:
    told = "; ".join(f"{fault['path']}: {fault['message']}" for fault in faults[:MOST_TOLD])
    return {"code": "invalid_params", "message": told, "faults": faults}


def _activity(execution: ScheduleExecution, job: ScheduleJob) -> NewActivity:
    given = execution.definition
    return NewActivity(
        id=uuid7(),
        name=given["name"],
        agent_role=given["agent_role"],
        params=job.params,
        priority=given["priority"],
        retry=given["retry"],
        timeout_seconds=given["timeout_seconds"],
        not_before=_begin(job),
        # The schedule may be deleted by now; its work is still told apart from other work by its id.
        schedule_id=UUID(given["schedule"]),
        wake_reason=WakeReason.SCHEDULED,
        metadata={"schedule_execution": str(execution.pk), "schedule_job": str(job.pk)},
    )


def _start_runs(execution: ScheduleExecution, jobs: Sequence[ScheduleJob]) -> None:
    given = execution.definition
    news = [
        NewRun(
            params=job.params,
            priority=given["priority"],
            retry=given["retry"],
            timeout_seconds=given["timeout_seconds"],
            not_before=_begin(job),
            schedule_id=UUID(given["schedule"]),
        )
        for job in jobs
    ]
    runs = start_runs(
        execution.tenant_id, given["pipeline"] or "", news, actor=ACTOR, when_full=WhenFull.FEWER
    )
    for job, run in zip(jobs, runs, strict=False):
        job.pipeline_run_id, job.state, job.error = run.pk, JobState.ENQUEUED, None
    _put_off(execution.tenant_id, jobs[len(runs) :], None)


def _begin(job: ScheduleJob) -> datetime | None:
    """None for what may begin at once."""
    return job.due_at if job.due_at > clock.now() else None
