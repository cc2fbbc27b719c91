"""A folder for the files of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, settings: Any) -> Path:
    settings.ORCHESTRATOR_HOME = tmp_path
    return tmp_path
