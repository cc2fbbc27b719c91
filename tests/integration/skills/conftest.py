"""A tenant, and a folder for the files of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import configuration
from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, settings: Any) -> Path:
    settings.ORCHESTRATOR_HOME = tmp_path
    return tmp_path


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Iterator[Tenant]:
    engine.serve(tenant)
    yield tenant
    configuration.forget()
