"""What can be wrong with schedules, as far as people who save them are told."""

from __future__ import annotations

from pipelines.definition import DefinitionError
from pipelines.exceptions import PipelineError


class InvalidSchedule(DefinitionError):
    """The schedule cannot be accepted. `faults` names everything that is wrong with it by its path."""

    code = "invalid_schedule"


class ScheduleChanged(PipelineError):
    """The schedule was changed since it was read."""

    code = "precondition_failed"
    status = 412
