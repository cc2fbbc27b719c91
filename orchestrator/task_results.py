"""Results of Celery tasks, in the table of django-celery-results, for the operators of the platform.

The table belongs to no tenant, so it must not contain data of tenants: a result is a count, and of an error only its type is stored. The
log has the message and the traceback.
"""

from __future__ import annotations

from typing import Any

import django
from django.apps import apps

# `celery call` and `celery result` load the backend without Django.
if not apps.ready:
    django.setup()

from django_celery_results.backends.database import DatabaseBackend


class TaskResults(DatabaseBackend):
    def _store_result(
        self, task_id: str, result: Any, status: str, traceback: str | None = None, request: Any = None, using: Any = None
    ) -> Any:  # fmt: skip
        if isinstance(result, dict) and "exc_message" in result:
            result = {**result, "exc_message": []}
        return super()._store_result(task_id, result, status, None, request, using)
