"""Templates, pipelines, their runs, and deliverables. Import from here; the files are an inner matter."""

from pipelines.models.dataset import Dataset, DatasetRow
from pipelines.models.deliverable import Deliverable, DeliverablePeriod
from pipelines.models.pipeline import Pipeline, PipelineRun, PipelineVersion, StepRun
from pipelines.models.schedule import Schedule

from .pipeline import ActivityTemplate
from .schedule import Firing, ScheduleExecution, ScheduleJob

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
