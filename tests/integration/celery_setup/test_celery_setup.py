"""A worker of the product and its broker are killed and restarted in Celery's test kit. Results of system tasks are stored."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django_celery_results.models import TaskResult

from activities import publishing
from tenants.context import system_scope
from tests.engine import eventually
from tests.integration.celery_setup import held_tasks
from tests.integration.celery_setup.held_tasks import QUEUE
from tests.superusers import create_superuser

if TYPE_CHECKING:
    from pytest_celery import CeleryTestSetup

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


def counted(setup: CeleryTestSetup, name: str) -> int:
    with setup.broker.container.client as client:
        return int(client.get(name) or 0)


def results(task: str) -> list[TaskResult]:
    with system_scope():
        return list(TaskResult.objects.filter(task_name=task).order_by("pk"))


def test_worker_and_messages_survive_their_broker_and_results_are_stored_without_data_of_tenants(
    celery_setup: CeleryTestSetup, settings: Any
) -> None:
    _a_message_survives_the_death_of_its_worker_and_its_broker(celery_setup)
    _a_worker_survives_its_broker_and_stores_results(celery_setup, settings)


def _a_message_survives_the_death_of_its_worker_and_its_broker(celery_setup: CeleryTestSetup) -> None:
    broker, worker = celery_setup.broker, celery_setup.worker
    celery_setup.app.send_task("tests.held", queue=QUEUE, ignore_result=True)
    eventually(lambda: counted(celery_setup, held_tasks.STARTED) == 1)

    worker.kill()
    assert worker.container.status == "exited"
    broker.restart()
    assert counted(celery_setup, held_tasks.STARTED) == 1, "the broker keeps its messages"
    worker.restart()
    eventually(lambda: counted(celery_setup, held_tasks.STARTED) == 2)

    with broker.container.client as client:
        client.set(held_tasks.GO, 1)
    eventually(lambda: counted(celery_setup, held_tasks.ENDED) >= 1)
    assert worker.container.status == "running"


def _a_worker_survives_its_broker_and_stores_results(celery_setup: CeleryTestSetup, settings: Any) -> None:
    pid = celery_setup.worker.container.id
    celery_setup.broker.restart(force=True)
    settings.CELERY_BROKER_URL = celery_setup.broker.container.url
    publishing._redis_broker.cache_clear()

    for task in ("retention.look_after", "agents.check_health"):
        eventually(
            lambda task=task: publishing.hint(task, {}, queue=QUEUE, expires_after=timedelta(minutes=5))
        )  # type: ignore[misc]
    celery_setup.app.send_task("tests.fails", queue=QUEUE)
    publishing._redis_broker.cache_clear()

    eventually(lambda: results("retention.look_after") and results("tests.fails"))
    # The worker leads, and may send a hint as well.
    (stored, *_), (failed,) = (
        results("retention.look_after"),
        results("tests.fails"),
    )
    assert (stored.status, stored.result.isdigit(), stored.worker) == ("SUCCESS", True, "kit@local")
    assert (failed.status, failed.traceback) == ("FAILURE", None)
    assert "ValueError" in failed.result
    assert "a row of somebody's" not in f"{failed.result} {failed.meta}"
    assert results("agents.check_health") == [], "results of frequent tasks are not stored"
    assert celery_setup.worker.container.id == pid, "the same process"
    browser = Client()
    browser.force_login(create_superuser())
    assert b"retention.look_after" in browser.get("/admin/django_celery_results/taskresult/").content
