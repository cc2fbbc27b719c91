"""Celery's entry points, each one call long. The background task that calls them is registered by an app that knows of background tasks."""

from __future__ import annotations

from celery import shared_task

from agents import health
from agents.governor import probing
from tenants import tracing


@shared_task(name="agents.check_health", ignore_result=True)
@tracing.background_task
def check_health() -> int:
    """Look at the agents that are due. Safe to deliver twice, late or not at all."""
    return health.check_waiting()


@shared_task(name="providers.probe", ignore_result=True)
@tracing.background_task
def probe_providers() -> int:
    """Ask providers that failed and that nobody calls. Safe to deliver twice, late or not at all."""
    return probing.probe_failing()
