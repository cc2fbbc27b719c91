"""Errors of pipelines, runs, schedules, deliverables and datasets."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from tenants.exceptions import NoneOfKind, OneOfKind, Refusal


class PipelineError(Refusal):
    """The request cannot be fulfilled in the current state."""

    code = "pipeline_error"


class NotFound(NoneOfKind, PipelineError):
    """The tenant has nothing of this kind and key."""


class AlreadyExists(OneOfKind, PipelineError):
    """The tenant has something of this kind and key already."""


class PipelineDisabled(PipelineError):
    """The pipeline is switched off, so no run of it can start."""

    code = "pipeline_disabled"


class InvalidParams(PipelineError):
    """The parameters of a run are invalid. `errors` names each error with its path."""

    code = "invalid_params"
    status = 400

    def __init__(self, errors: Iterable[tuple[str, str]], *, code: str | None = None) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(f"{path}: {message}" for path, message in self.errors), code=code)


class RunEnded(PipelineError):
    """The run has ended and can no longer be changed."""

    code = "run_ended"


class ReplayUnderWay(PipelineError):
    """A replay of the run, or another run that does the same work, has not ended. Names that run."""

    code = "replay_under_way"

    def __init__(self, replay_id: UUID) -> None:
        super().__init__(f"Pipeline run {replay_id} does the same work and has not ended.")
        self.problem_members = {"replay": str(replay_id)}


class NotReplayable(PipelineError):
    """The run cannot be replayed from this step. The message says why, and from which step it can."""

    code = "validation_failed"
    status = 400

    def __init__(self, message: str) -> None:
        super().__init__(f"from_step {message}.")
        self.errors = (("from_step", message),)


class DeliverableNotActive(PipelineError):
    """No period can start, because the deliverable is paused or has ended, or its tenant is switched off."""

    code = "deliverable_not_active"


class PeriodNotPlanning(PipelineError):
    """The period has its plan already, or was cancelled."""

    code = "period_not_planning"


class SourceUnavailable(PipelineError):
    """The rows of a data source could not be read. The message says which source, and why."""

    code = "source_unavailable"
    status = 503
