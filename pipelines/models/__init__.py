"""Templates, pipelines, their runs, and deliverables. Import from here; the files are an inner matter."""

from pipelines.models.dataset import Dataset, DatasetRow
from pipelines.models.deliverable import Deliverable, DeliverablePeriod
from pipelines.models.pipeline import ActivityTemplate, Pipeline, PipelineVersion
from pipelines.models.run import PipelineRun, StepRun
from pipelines.models.schedule import Firing, Schedule, ScheduleExecution, ScheduleJob
