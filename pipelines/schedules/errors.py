"""What can be wrong with schedules, as far as people who save them are told."""

from __future__ import annotations

from pipelines.definition import DefinitionError
from pipelines.exceptions import PipelineError


class InvalidSchedule(DefinitionError):
    """The schedule cannot be accepted. `faults` names everything that is wrong with it by its path."""

    code = "invalid_schedule"


class ScheduleNotFound(PipelineError):
    """No such schedule or execution in this tenant."""

    code = "not_found"
    status = 404


class ScheduleExists(PipelineError):
    """The tenant has another schedule of this name."""

    code = "already_exists"


class ScheduleChanged(PipelineError):
    """The schedule was changed since it was read."""

    code = "precondition_failed"
    status = 412
