"""The setup of Celery's test kit over local processes.

The kit is imported by the fixture, because every process of the suite imports this file and few run its tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.celery import app

if TYPE_CHECKING:
    from pytest_celery import CeleryTestSetup


@pytest.fixture
def celery_setup(process_environment: dict[str, str], tmp_path: Path) -> Iterator[CeleryTestSetup]:
    """A broker, which is the backend as well, and a worker of the product."""
    pytest.importorskip("pytest_celery", reason="pip install -r requirements/dev.txt")
    try:
        from tests.integration.celery_setup import local_processes

        # The kit creates Celery applications on import and for each test, and each becomes the current one of the process.
        app.set_current()
        with local_processes.running(tmp_path, process_environment) as setup:
            yield setup
    finally:
        app.set_current()
