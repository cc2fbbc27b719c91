"""The admin of pipelines: their definitions as text, every version, every run, each with its picture; deliverables and their months;
schedules, with what they will do and what came of them; datasets."""

from pipelines.admin import (  # noqa: F401  # each registers its models
    dataset,
    deliverable,
    executions,
    period,
    pipeline,
    run,
    schedule,
)
