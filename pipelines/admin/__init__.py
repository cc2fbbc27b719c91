"""The admin of pipelines: their definitions as text, every version, every run, each with its picture."""

from pipelines.admin import pipeline, run, template  # noqa: F401  # each registers its models
