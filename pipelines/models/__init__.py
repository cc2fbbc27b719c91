"""Templates, pipelines and their runs. Import from here; the files are an inner matter."""

from pipelines.models.pipeline import Pipeline, PipelineVersion
from pipelines.models.run import PipelineRun, StepRun
from pipelines.models.template import ActivityTemplate

__all__ = ("ActivityTemplate", "Pipeline", "PipelineRun", "PipelineVersion", "StepRun")
