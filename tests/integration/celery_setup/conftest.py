"""Fixtures of Celery's test kit over local processes. Other tests do not load the kit."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pytest_celery", reason="pip install -r requirements/dev.txt")

from pytest_celery.fixtures.backend import celery_backend_cluster, celery_backend_cluster_config
from pytest_celery.fixtures.broker import celery_broker_cluster, celery_broker_cluster_config
from pytest_celery.fixtures.setup import (
    celery_setup,
    celery_setup_app,
    celery_setup_cls,
    celery_setup_config,
    celery_setup_name,
)
from pytest_celery.fixtures.worker import celery_worker_cluster, celery_worker_cluster_config

from orchestrator.celery import app
from tests.integration.celery_setup.local_processes import (
    Backend,
    Broker,
    BrokerProcess,
    Worker,
    WorkerProcess,
)

__all__ = (
    "celery_backend_cluster", "celery_backend_cluster_config", "celery_broker_cluster", "celery_broker_cluster_config",
    "celery_setup", "celery_setup_app", "celery_setup_cls", "celery_setup_config", "celery_setup_name",
    "celery_worker_cluster", "celery_worker_cluster_config",
)  # fmt: skip

# The kit creates Celery applications on import and for each test, and each becomes the current one of the process.
app.set_current()


@pytest.fixture(autouse=True)
def restore_current_app() -> Iterator[None]:
    yield
    app.set_current()


@pytest.fixture
def celery_broker(tmp_path: Path) -> Iterator[Broker]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    broker = Broker(BrokerProcess(tmp_path, port))
    broker.ready()
    yield broker
    broker.teardown()


@pytest.fixture
def celery_backend(celery_broker: Broker) -> Backend:
    return Backend(celery_broker.container)


@pytest.fixture
def celery_worker(
    celery_broker: Broker, process_environment: dict[str, str], tmp_path: Path
) -> Iterator[Worker]:
    worker = Worker(WorkerProcess(tmp_path, process_environment, celery_broker.container.url), app=None)
    worker.ready()
    yield worker
    worker.teardown()
