"""What can be wrong with pipelines and their runs."""

from __future__ import annotations

from typing import ClassVar


class PipelineError(Exception):
    """The pipeline cannot do what was asked."""

    code: ClassVar[str] = "pipeline_error"
    status: ClassVar[int] = 409


class PipelineNotFound(PipelineError):
    """No such pipeline or run in this tenant."""

    code = "not_found"
    status = 404


class PipelineDisabled(PipelineError):
    """The pipeline is switched off, so no run of it can start."""

    code = "pipeline_disabled"


class RunEnded(PipelineError):
    """The run has ended and cannot be changed any more."""

    code = "run_ended"


class VersionConflict(PipelineError):
    """The pipeline was changed since it was read."""

    code = "precondition_failed"
    status = 412
