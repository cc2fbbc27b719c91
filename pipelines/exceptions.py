"""What can be wrong with pipelines and their runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar
from uuid import UUID

from tenants.exceptions import NoneOfKind, OneOfKind


class PipelineError(Exception):
    """The pipeline cannot do what was asked."""

    code: ClassVar[str] = "pipeline_error"
    status: ClassVar[int] = 409


class NotFound(NoneOfKind, PipelineError):
    """The tenant has nothing of this kind and key."""


class AlreadyExists(OneOfKind, PipelineError):
    """The tenant has something of this kind and key already."""


class PipelineDisabled(PipelineError):
    """The pipeline is switched off, so no run of it can start."""

    code = "pipeline_disabled"


class ReservedParams(PipelineError):
    """A parameter has a name that the pipeline gives to the items of a fan-out."""

    code = "reserved_params"
    status = 400


class InvalidParams(PipelineError):
    """An agent of the pipeline would not take the parameters that it is to be given. `errors` names each by its path."""

    code = "invalid_params"
    status = 400

    def __init__(self, errors: Iterable[tuple[str, str]]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(f"{path}: {message}" for path, message in self.errors))


class RunEnded(PipelineError):
    """The run has ended and cannot be changed any more."""

    code = "run_ended"


class RunUnderWay(PipelineError):
    """The run has not ended, so it cannot be replayed."""

    code = "run_under_way"


class ReplayUnderWay(PipelineError):
    """The run is being replayed already. Names the replay."""

    code = "replay_under_way"

    def __init__(self, replay_id: UUID) -> None:
        super().__init__(f"Run {replay_id} replays it and has not ended.")
        self.problem_members = {"replay": str(replay_id)}


class NotReplayable(PipelineError):
    """The run cannot be replayed from this step. Says why, and from where it can."""

    code = "validation_failed"
    status = 400

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path} {message}.")
        self.errors = ((path, message),)


class NothingFailed(PipelineError):
    """The run was to be replayed from the step that failed, and no step has failed."""

    code = "nothing_failed"


class VersionConflict(PipelineError):
    """The pipeline was changed since it was read."""

    code = "precondition_failed"
    status = 412


class ScheduleChanged(PipelineError):
    """The schedule was changed since it was read."""

    code = "precondition_failed"
    status = 412


class DeliverableNotActive(PipelineError):
    """The deliverable is paused or has ended, or its tenant is switched off, so no period of it starts."""

    code = "deliverable_not_active"


class DeliverableInUse(PipelineError):
    """The deliverable has periods, which are history. It can be ended, not deleted."""

    code = "deliverable_in_use"


class PeriodNotPlanning(PipelineError):
    """The period has its plan already, or was cancelled."""

    code = "period_not_planning"


class PlannerAtWork(PipelineError):
    """The period's planner has not ended, so its plan may still come."""

    code = "planner_at_work"


class PeriodEnded(PipelineError):
    """The period has ended and cannot be cancelled any more."""

    code = "period_ended"


class DatasetInUse(PipelineError):
    """Schedules read the dataset, so it cannot be deleted."""

    code = "dataset_in_use"


class RowsElsewhere(PipelineError):
    """The rows of the dataset are not kept here, so they cannot be changed or listed here."""

    code = "rows_elsewhere"


class DatasetFull(PipelineError):
    """The dataset would have more rows than it may have."""

    code = "dataset_full"


class TooManyDatasets(PipelineError):
    """The tenant has as many datasets as it may have."""

    code = "too_many_datasets"


class TooManyRows(PipelineError):
    """More rows than one call may bring."""

    code = "too_many_rows"
    status = 413


class SourceUnavailable(PipelineError):
    """The rows of a data source could not be had. Says which and why."""

    code = "source_unavailable"
    status = 503
