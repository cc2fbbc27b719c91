"""Pipelines: looked at with their versions and runs, started with a form for their parameters, copied, paused."""
