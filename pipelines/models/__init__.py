"""Models of pipelines, runs, schedules, deliverables and datasets. Import them from here."""

from pipelines.models.dataset import Dataset, DatasetRow
from pipelines.models.deliverable import Deliverable, DeliverablePeriod
from pipelines.models.pipeline import ActivityTemplate, Pipeline, PipelineVersion
from pipelines.models.run import PipelineRun, StepRun
from pipelines.models.schedule import Firing, Schedule, ScheduleExecution, ScheduleJob
