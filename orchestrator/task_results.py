"""What came of tasks, kept where django-celery-results shows it: in a table of the platform's, for anyone who runs it.

That table belongs to no tenant, so nothing of a tenant's is in it: a task says how much it has done, and one that failed says with which
kind of error. What the error said, and where, is in the log.
"""

from __future__ import annotations

from typing import Any

from django_celery_results.backends.database import DatabaseBackend


class TaskResults(DatabaseBackend):
    def _store_result(
        self, task_id: str, result: Any, status: str, traceback: str | None = None, request: Any = None, using: Any = None
    ) -> Any:  # fmt: skip
        if isinstance(result, dict) and "exc_message" in result:
            result = {**result, "exc_message": []}
        return super()._store_result(task_id, result, status, None, request, using)
