"""Beat's scheduler: django-celery-beat's, which here also makes up for what fell due while no beat was running.

Its own leaves crontabs out of its memory but for the four hours around theirs. A beat that was down at midnight of the first and is back
in the morning would not look at the monthly jobs before the evening.
"""

from __future__ import annotations

from typing import Any

from django_celery_beat.schedulers import DatabaseScheduler


class PatientScheduler(DatabaseScheduler):
    """Every enabled task is looked at, whatever the hour."""

    def enabled_models_qs(self) -> Any:
        return self.Model.objects.enabled()
