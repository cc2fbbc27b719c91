"""The baseline: workers of the handwritten Celery program, in processes that share nothing with this project.

They have their own environment variables and module search path, and no Django settings. Each process records its queues and its imported
modules, and every measurement checks that none of them belongs to this project.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.environment import Processes

FOLDER = Path(__file__).parent / "handwritten"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

import handwritten  # noqa: E402  its folder is not a package, so that its workers import nothing else

__all__ = ("FOLDER", "handwritten", "query", "refuse_foreign_code", "workers")

#: What must not be in a process of the baseline. (Kombu itself imports `django.utils` wherever Django is installed.)
FOREIGN = {
    "django.apps", "django.conf", "django.db", "orchestrator", "console", "pipelines", "activities", "agents", "tenants", "benchmarks",
    "django_celery_beat", "django_celery_results",
}  # fmt: skip


class BaselineIsNotBare(Exception):
    """A worker of the baseline has imported code of this project, or consumes other queues than its own."""


def workers(log: Path, *, folder: Path, processes: int = 2) -> Processes:
    """Worker processes of the baseline. `folder`: that of the servers, where processes are counted by `environment.cpu_seconds`."""
    command = [
        "celery", "-A", "handwritten", "worker", "-c", str(processes), "--loglevel", "ERROR",
    ]  # fmt: skip
    environment = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "LANG", "REDIS_URL", "DATABASE_URL")
        if name in os.environ
    }
    environment |= {"PYTHONPATH": str(FOLDER)}
    if "PYTHONPYCACHEPREFIX" in os.environ:
        environment["PYTHONPYCACHEPREFIX"] = os.environ["PYTHONPYCACHEPREFIX"]
    return Processes(command, log=log, cwd=folder, environment=environment)


def query(text: str, values: tuple[Any, ...] = ()) -> list[Any]:
    with handwritten.connection().transaction():
        return handwritten.connection().execute(text, values).fetchall()


def refuse_foreign_code(processes: int = 2) -> None:
    """Check what the running workers have recorded about themselves. Raises `BaselineIsNotBare`."""
    records = query("SELECT pid, queues, modules FROM handwritten_process")
    if len(records) < processes + 1:
        raise BaselineIsNotBare(
            f"Only {len(records)} of {processes + 1} processes have recorded their queues and modules."
        )
    for pid, queues, modules in records:
        if foreign := FOREIGN & set(modules):
            raise BaselineIsNotBare(f"Process {pid} has imported {', '.join(sorted(foreign))}.")
        if queues not in (None, ["handwritten"]):
            raise BaselineIsNotBare(f"Process {pid} consumes {', '.join(queues)}.")
