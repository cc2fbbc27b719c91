"""SIGHUP makes Celery end a worker and repeat its command line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from celery import __main__ as celery_module

from orchestrator import celery


def test_the_command_line_of_a_worker_that_was_started_as_a_module_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", [celery_module.__file__, "--version"])

    celery.make_restartable()

    repeated = subprocess.run([sys.executable, *sys.argv], capture_output=True, text=True, timeout=60)
    assert repeated.returncode == 0, repeated.stderr
