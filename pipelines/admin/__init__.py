"""The admin of pipelines: their definitions as text, every version, every run, each with its picture; deliverables and their months;
schedules, with what they will do and what came of them; datasets."""

from pipelines.admin import (  # each registers its models
    dataset,
    deliverable,
    executions,
    pipeline,
    run,
    schedule,
)
