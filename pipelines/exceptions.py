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


class ReservedParams(PipelineError):
    """A parameter has a name that the pipeline gives to the items of a fan-out."""

    code = "reserved_params"
    status = 400


class RunEnded(PipelineError):
    """The run has ended and cannot be changed any more."""

    code = "run_ended"


class VersionConflict(PipelineError):
    """The pipeline was changed since it was read."""

    code = "precondition_failed"
    status = 412


class DeliverableNotFound(PipelineError):
    """No such deliverable in this tenant."""

    code = "not_found"
    status = 404


class DeliverableNotActive(PipelineError):
    """The deliverable is paused or has ended, or its tenant is switched off, so no period of it starts."""

    code = "deliverable_not_active"


class DeliverableInUse(PipelineError):
    """The deliverable has periods, which are history. It can be ended, not deleted."""

    code = "deliverable_in_use"


class PeriodNotFound(PipelineError):
    """No such period in this tenant."""

    code = "not_found"
    status = 404


class PeriodNotPlanning(PipelineError):
    """The period has its plan already, or was cancelled."""

    code = "period_not_planning"


class PlannerAtWork(PipelineError):
    """The period's planner has not ended, so its plan may still come."""

    code = "planner_at_work"


class PeriodEnded(PipelineError):
    """The period has ended and cannot be cancelled any more."""

    code = "period_ended"
