"""The admin of pipelines with their versions and runs, of deliverables with their periods, of schedules with their executions, and of
datasets."""

from pipelines.admin import (  # each registers its models
    dataset,
    deliverable,
    executions,
    pipeline,
    run,
    schedule,
)
