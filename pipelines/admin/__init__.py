"""The admin of pipelines: their definitions as text, every version, every run, each with its picture; deliverables and their months."""

from pipelines.admin import deliverable, pipeline, run, template  # noqa: F401  # each registers its models
