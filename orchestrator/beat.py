"""Beat's scheduler: django-celery-beat's, which here also makes up for what fell due while no beat was running, and sends our ticks alone.

Its own leaves crontabs out of its memory but for the four hours around theirs. A beat that was down at midnight of the first and is back
in the morning would not look at the monthly jobs before the evening. And whatever somebody writes into its table would be run.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog
from django.db import close_old_connections
from django_celery_beat.schedulers import DatabaseScheduler

from tenants import outages

from .beat_tasks import TICKS, is_tick

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0  # after a look that an outage has kept from happening


class PatientScheduler(DatabaseScheduler):
    """Every enabled task is looked at, whatever the hour. Only ticks of ours are sent."""

    def tick(self, *arguments: Any, **options: Any) -> float:
        """As long as PostgreSQL is away nothing is due. Celery would end beat, and nothing is gained by starting it again."""
        try:
            wait: float = super().tick(*arguments, **options)
        except Exception as error:
            if not outages.may_pass(error):
                raise
            facts = {"action": "beat_waits", "reason": type(error).__name__}
            logger.warning("Beat waits for PostgreSQL", extra=facts)
            close_old_connections()
            # What was being read may be half read, and that it has changed is not told twice.
            self._initial_read, self._heap = True, None
            return AGAIN_SECONDS
        return wait

    def enabled_models_qs(self) -> Any:
        return self.Model.objects.enabled().filter(task__in=TICKS)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send one that is due, unless somebody has made it into something else."""
        if is_tick(entry.task, entry.args, entry.kwargs):
            with structlog.contextvars.bound_contextvars(tick=str(entry.name)):
                super().apply_entry(entry, producer=producer)
            return
        facts = {"action": "foreign_task_refused", "periodic_task": str(entry.name)}
        logger.error("A periodic task is none of ours", extra=facts)
