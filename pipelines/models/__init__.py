"""Templates, pipelines, their runs, and deliverables. Import from here; the files are an inner matter."""

from pipelines.models.dataset import Dataset, DatasetRow
from pipelines.models.deliverable import Deliverable, DeliverablePeriod
from pipelines.models.execution import ScheduleExecution
from pipelines.models.firing import Firing
from pipelines.models.pipeline import Pipeline, PipelineVersion
from pipelines.models.run import PipelineRun, StepRun
from pipelines.models.schedule import Schedule
from pipelines.models.schedule_job import ScheduleJob
from pipelines.models.template import ActivityTemplate

__all__ = (
    "ActivityTemplate",
    "Dataset",
    "DatasetRow",
    "Deliverable",
    "DeliverablePeriod",
    "Firing",
    "Pipeline",
    "PipelineRun",
    "PipelineVersion",
    "Schedule",
    "ScheduleExecution",
    "ScheduleJob",
    "StepRun",
)
