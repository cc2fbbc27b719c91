"""The admin of pipelines: their definitions as text, every version and run, each with its picture; deliverables, months and datasets."""

from pipelines.admin import dataset, deliverable, pipeline, run, template  # noqa: F401  # each registers its models
