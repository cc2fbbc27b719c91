"""Expands the parameters of a schedule into those of its jobs, and starts the work of jobs. The preview uses the same functions.

Rows are read at the time of the expansion, so every execution sees the current rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from types import MappingProxyType
from typing import Any
from uuid import UUID

from activities import backlog
from activities.states import WakeReason
from activities.submission import NewActivity, newcomers, submit
from agents import configuration, input_schemas, scheduler_settings
from agents.exceptions import AgentError
from pipelines import data_sources, submission, tables, versions
from pipelines.data_sources import (
    BatchGate,
    DataSource,
    DataSourceError,
    Dimension,
    Estimate,
    Expand,
    Pacing,
    Params,
    ParamsError,
)
from pipelines.exceptions import PipelineError
from pipelines.models import Pipeline, Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.schedule import JobState
from pipelines.submission import NewRun, WhenFull, start_runs
from pipelines.tables import Values
from tenants import clock
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

SAMPLED = 5  # jobs that a preview shows, and whose parameters it checks


class ExpansionError(PipelineError):
    """The parameters cannot be expanded. `errors` lists each error with its path."""

    code = "invalid_params"
    status = 400

    def __init__(self, errors: list[dict[str, str]]) -> None:
        super().__init__("; ".join(f"{error['path']}: {error['message']}" for error in errors))
        self.errors = errors

    def as_errors(self) -> list[dict[str, str]]:
        """Return the errors in the form that an execution stores."""
        return [
            {"message": f"{error['path']}: {error['message']}", "code": self.code} for error in self.errors
        ]


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to create: its position, its batch, its earliest start, and its parameters."""

    ordinal: int
    batch: int
    due_at: datetime
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """An expansion that has not run yet. Every iteration reads the rows again."""

    literals: Mapping[str, Any]
    sources: Mapping[str, Values]
    expand: Expand
    pacing: Pacing
    starts_at: datetime  # the time at which the first batch starts

    @property
    def is_expanded(self) -> bool:
        return bool(self.sources)

    @property
    def waits_for_batches(self) -> bool:
        """Whether a batch waits until the one before has ended or started."""
        return self.is_expanded and self.pacing.gate is not BatchGate.DELAY

    def jobs(self) -> Iterator[PlannedJob]:
        """Yield every job in order, lazily. Raises `ExpansionError` if a source cannot be read."""
        return (self.place(ordinal, params) for ordinal, params in enumerate(self.inputs()))

    def inputs(self) -> Iterator[dict[str, Any]]:
        """Yield the parameters of each job in order, as JSON values. Raises `ExpansionError` as `jobs` does."""
        # Do not count the values, because counting would fetch those of other servers twice.
        dimensions = [Dimension(name, values, 0) for name, values in self.sources.items()]
        with _errors_of_all_params():
            for params in data_sources.inputs(self.literals, dimensions, self.expand):
                yield {name: _plain(value) for name, value in params.items()}

    def place(self, ordinal: int, params: dict[str, Any]) -> PlannedJob:
        """Return the job with this number and these parameters, in its batch."""
        batch = ordinal // self.pacing.batch_size
        return PlannedJob(
            ordinal, batch, self.starts_at + batch * timedelta(milliseconds=self.pacing.stagger_ms), params
        )

    def estimate(self) -> Estimate:
        """Return the size of the expansion. Raises `ExpansionError`."""
        with _errors_of_all_params():
            dimensions = [Dimension(name, values, values.count) for name, values in self.sources.items()]
            return data_sources.estimate(dimensions, self.expand, self.pacing)

    def figures(self, jobs: int) -> dict[str, Any]:
        """Return the figures of the expansion for an execution's metadata."""
        if not self.is_expanded:
            return {"jobs": jobs}
        note = {} if jobs else {"note": "No row matched, so there was nothing to do."}
        return {
            "jobs": jobs,
            "batches": -(-jobs // self.pacing.batch_size),
            "batches_done": 0,
            **self.pacing_figures(),
            "expand": self.expand.value,
            "sources": list(self.sources),
            **note,
        }

    def pacing_figures(self) -> dict[str, Any]:
        """Return those figures by which waiting batches start."""
        return {
            "batch_size": self.pacing.batch_size,
            "stagger_ms": self.pacing.stagger_ms,
            "batch_gate": self.pacing.gate.value,
        }


def plan(
    tenant_id: UUID,
    definition: Mapping[str, Any],
    *,
    starts_at: datetime,
    figures: Mapping[str, Any] = MappingProxyType({}),
) -> Plan:
    """Read the parameters of a schedule's definition. Raises `ExpansionError` with every error and its path.

    `figures` are the pacing figures of an expansion that is continued: its defaults stay the same.
    """
    params = _read(definition.get("params") or {})
    sources = _values(tenant_id, params.sources) if params.sources else {}
    settings = scheduler_settings.current()
    with _errors_of_all_params():
        expand, pacing = data_sources.agree(
            [source.options for source in params.sources.values()],
            Pacing(
                batch_size=figures.get("batch_size", settings.batch_size),
                stagger_ms=figures.get("stagger_ms", settings.stagger_delay_ms),
            ),
        )
    return Plan(params.literals, sources, expand, pacing, starts_at)


@contextmanager
def _errors_of_all_params() -> Iterator[None]:
    """Turn an error that no single parameter causes into an `ExpansionError`."""
    try:
        yield
    except (data_sources.ExpansionError, PipelineError) as error:
        raise ExpansionError([{"path": "params", "message": str(error)}]) from error


def _read(params: Any) -> Params:
    if not isinstance(params, Mapping):
        raise ExpansionError([{"path": "params", "message": "must be an object"}])
    try:
        return data_sources.read_params(params)
    except ParamsError as error:
        raise ExpansionError(
            [{"path": problem.path, "message": problem.message} for problem in error.errors]
        ) from error


def _values(tenant_id: UUID, sources: Mapping[str, DataSource]) -> dict[str, Values]:
    """Return the values of each source, unread. Raises `ExpansionError`."""
    with tenant_scope(tenant_id):
        catalogue = tables.catalogue_of(tenant_id)
    errors: list[dict[str, str]] = []
    values: dict[str, Values] = {}
    for name, source in sources.items():
        try:
            values[name] = tables.values_of(tenant_id, data_sources.resolve(source, catalogue))
        except DataSourceError as error:
            errors += [{"path": f"params.{name}", "message": str(problem)} for problem in error.errors]
        except PipelineError as error:
            errors.append({"path": f"params.{name}", "message": str(error)})
    if errors:
        raise ExpansionError(errors)
    return values


def _plain(value: Any) -> Any:
    """Return a row's value as JSON: times and ids become text."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, UUID) else value


@dataclass(frozen=True, slots=True)
class Preview:
    """The size of an expansion, its first jobs, and errors."""

    jobs: int
    batches: int
    in_a_batch: int  # jobs, at most
    ends_after: timedelta  # until the last batch starts
    sample: list[dict[str, Any]]
    errors: list[dict[str, str]]


def preview(tenant_id: UUID, definition: Mapping[str, Any], *, starts_at: datetime) -> Preview:
    """Preview an expansion, and check its first jobs against the agents' input schemas. Does not raise for invalid parameters."""
    try:
        planned = plan(tenant_id, definition, starts_at=starts_at)
        numbers = planned.estimate()
        sample = [job.params for job in islice(planned.jobs(), SAMPLED)]
    except ExpansionError as error:
        return Preview(0, 0, 0, timedelta(), [], error.errors)
    return Preview(
        numbers.jobs,
        numbers.batches,
        min(numbers.jobs, planned.pacing.batch_size),
        numbers.last_offset,
        sample,
        _schema_errors(tenant_id, definition, sample),
    )


def _schema_errors(
    tenant_id: UUID, definition: Mapping[str, Any], sample: list[dict[str, Any]]
) -> list[dict[str, str]]:
    if not (definition.get("agent_role") or definition.get("pipeline")):
        return []
    try:
        with tenant_scope(tenant_id):
            refused = refusals(tenant_id, definition, sample)
    except (PipelineError, AgentError):  # the check of the target reports its errors
        return []
    return [
        {"path": f"jobs[{index}].{error['path']}", "message": error["message"]}
        for index, errors in enumerate(refused)
        for error in errors
    ]


# The work of jobs: an activity for each job if the schedule runs an agent, or a pipeline run for each.


ACTOR = "schedule"
MOST_NAMED = 5  # errors of one job that its message lists; `faults` has all


class TargetUnavailable(PipelineError):
    """The agent of a schedule does not exist, or is switched off."""

    code = "target_unavailable"


def definition_of(schedule: Schedule) -> dict[str, Any]:
    """Return a copy of the schedule for an execution, which later changes of the schedule do not affect."""
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
    """Return the pipeline's key, or None: a missing pipeline must fail the execution, not the firing."""
    if schedule.pipeline_id is None:
        return None
    if Schedule.pipeline.is_cached(schedule):
        return schedule.pipeline.key if schedule.pipeline else None
    pipelines = Pipeline.objects.for_tenant(schedule.tenant_id).filter(pk=schedule.pipeline_id)
    return pipelines.values_list("key", flat=True).first()


def start(execution: ScheduleExecution, jobs: Iterable[ScheduleJob]) -> None:
    """Create the work of these jobs and note it on them, unsaved. A job with parameters that its agent refuses fails.

    Jobs for which there is no room in a backlog wait, with the reason as their error, and start when their execution is settled. Call it
    within a transaction. Raises `PipelineError` if the agent or the pipeline does not exist or is switched off.
    """
    if execution.definition["target_type"] == "agent":
        if valid := _valid(execution, jobs):
            submit_each([(execution, job) for job in valid])
    elif valid := _valid(execution, jobs):
        _start_runs(execution, valid)


def submit_each(pairs: Sequence[tuple[ScheduleExecution, ScheduleJob]]) -> None:
    """Start jobs of many executions of one tenant in one statement, as `start` does. `accepts` must have been true for each."""
    items = [_activity(execution, job) for execution, job in pairs]
    tenant_id = pairs[0][0].tenant_id
    room = backlog.count_admitted(tenant_id, [newcomers([item]) for item in items])
    activities = submit(items[:room], actor=ACTOR, bounded=False) if room else []
    for (_, job), submitted in zip(pairs[:room], activities, strict=True):
        job.activity_id, job.state, job.error = submitted.id, JobState.ENQUEUED, None
    _put_off(tenant_id, [job for _, job in pairs[room:]], items[-1].agent_role or "")


def _put_off(tenant_id: UUID, jobs: Iterable[ScheduleJob], role: str | None) -> None:
    message = backlog.explain_full(tenant_id, role) if role else "The backlog of its pipeline is full."
    for job in jobs:
        job.state, job.error = JobState.WAITING, {"code": backlog.BacklogFull.code, "message": message}


def pipeline_figures(execution: ScheduleExecution) -> dict[str, Any]:
    """Return the figures of the execution's pipeline for its metadata; empty for an agent. Call it within a transaction."""
    key = execution.definition["pipeline"]
    pipeline = Pipeline.objects.for_tenant(execution.tenant_id).filter(key=key).first() if key else None
    if pipeline is None:
        return {}
    newest = versions.newest(execution.tenant_id, pipeline)
    return {"pipeline": {"key": key, "version": newest.number, "steps": len(newest.definition["steps"])}}


def accepts(execution: ScheduleExecution, params: dict[str, Any]) -> bool:
    """Whether the execution runs an agent that is enabled and accepts these parameters. Call it within a transaction."""
    definition = execution.definition
    if definition["target_type"] != "agent":
        return False
    try:
        _refuse_unavailable(execution.tenant_id, definition["agent_role"])
    except TargetUnavailable:
        return False
    return not input_schemas.errors(execution.tenant_id, definition["agent_role"], params)


def _valid(execution: ScheduleExecution, jobs: Iterable[ScheduleJob]) -> list[ScheduleJob]:
    """Return the jobs whose parameters the target accepts, and mark the others as failed."""
    definition, waiting = execution.definition, list(jobs)
    if definition["target_type"] == "agent":
        _refuse_unavailable(execution.tenant_id, definition["agent_role"])
    valid: list[ScheduleJob] = []
    refused = refusals(execution.tenant_id, definition, [job.params for job in waiting]) if waiting else []
    for job, errors in zip(waiting, refused, strict=True):
        if errors:
            job.state, job.error, job.ended_at = JobState.FAILED, _refusal(errors), clock.now()
        else:
            valid.append(job)
    return valid


def refusals(
    tenant_id: UUID, definition: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]
) -> list[list[dict[str, str]]]:
    """Return for each job the parameters that the target refuses. Call it within a `tenant_scope`.

    Raises `PipelineError` if the pipeline does not exist or is switched off, and `RoleNotFound`.
    """
    if definition["target_type"] == "agent":
        return [input_schemas.errors(tenant_id, definition["agent_role"], params) for params in jobs]
    refused = submission.errors_of(tenant_id, definition["pipeline"] or "", jobs)
    return [[{"path": error.path, "message": error.message} for error in errors] for errors in refused]


def _refuse_unavailable(tenant_id: UUID, role: str) -> None:
    try:
        enabled = configuration.settings_for(tenant_id, role).enabled
    except AgentError as error:
        raise TargetUnavailable(str(error)) from error
    if not enabled:
        raise TargetUnavailable(f"The agent {role!r} is switched off.")


def _refusal(errors: list[dict[str, str]]) -> dict[str, Any]:
    message = "; ".join(f"{error['path']}: {error['message']}" for error in errors[:MOST_NAMED])
    return {"code": "invalid_params", "message": message, "faults": errors}


def _activity(execution: ScheduleExecution, job: ScheduleJob) -> NewActivity:
    definition = execution.definition
    return NewActivity(
        id=uuid7(),
        name=definition["name"],
        agent_role=definition["agent_role"],
        params=job.params,
        priority=definition["priority"],
        retry=definition["retry"],
        timeout_seconds=definition["timeout_seconds"],
        not_before=_begin(job),
        # Keep the id even if the schedule is deleted, because it identifies the schedule's work.
        schedule_id=UUID(definition["schedule"]),
        wake_reason=WakeReason.SCHEDULED,
        metadata={"schedule_execution": str(execution.pk), "schedule_job": str(job.pk)},
    )


def _start_runs(execution: ScheduleExecution, jobs: Sequence[ScheduleJob]) -> None:
    definition = execution.definition
    news = [
        NewRun(
            params=job.params,
            priority=definition["priority"],
            retry=definition["retry"],
            timeout_seconds=definition["timeout_seconds"],
            not_before=_begin(job),
            schedule_id=UUID(definition["schedule"]),
            requested_identity=definition.get("requested_identity", ""),
        )
        for job in jobs
    ]
    runs = start_runs(
        execution.tenant_id, definition["pipeline"] or "", news, actor=ACTOR, when_full=WhenFull.FEWER
    )
    for job, run in zip(jobs, runs, strict=False):
        job.pipeline_run_id, job.state, job.error = run.pk, JobState.ENQUEUED, None
    _put_off(execution.tenant_id, jobs[len(runs) :], None)


def _begin(job: ScheduleJob) -> datetime | None:
    """Return None for a job that may start immediately."""
    return job.due_at if job.due_at > clock.now() else None
