"""The other side of the comparison: workers of the handwritten Celery program, in an environment that knows nothing of this project.

The processes get an environment of their own, a module search path of their own, and no Django settings. That they are free of this project
is checked each time from what they say themselves: the queues they take from and the modules they have imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.setting import Workers

FOLDER = Path(__file__).parent / "handwritten"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

import handwritten  # noqa: E402  its folder is no package, so that its workers need nothing of this one

__all__ = ("FOLDER", "handwritten", "query", "refuse_foreign_code", "workers")

#: What must not be in a process of the baseline. (Kombu itself imports `django.utils` wherever Django is installed.)
FOREIGN = {
    "django.apps", "django.conf", "django.db", "orchestrator", "console", "pipelines", "activities", "agents", "tenants", "benchmarks",
    "django_celery_beat", "django_celery_results",
}  # fmt: skip


class BaselineIsNotBare(Exception):
    """A worker of the baseline has imported code of the project, or takes from queues that are not its own."""


def workers(log: Path, *, folder: Path, processes: int = 2) -> Workers:
    """`folder` is that of the servers: a process that works there counts as one on whose behalf processor time is used."""
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
    return Workers(command, log=log, cwd=folder, environment=environment)


def query(text: str, values: tuple[Any, ...] = ()) -> list[Any]:
    with handwritten.connection().transaction():
        return handwritten.connection().execute(text, values).fetchall()


def refuse_foreign_code(processes: int = 2) -> None:
    """Look at what the running workers have told of themselves. Raises `BaselineIsNotBare`."""
    told = query("SELECT pid, queues, modules FROM handwritten_process")
    if len(told) < processes + 1:
        raise BaselineIsNotBare(f"{len(told)} of {processes + 1} processes have told what they are.")
    for pid, queues, modules in told:
        if foreign := FOREIGN & set(modules):
            raise BaselineIsNotBare(f"Process {pid} has imported {', '.join(sorted(foreign))}.")
        if queues not in (None, ["handwritten"]):
            raise BaselineIsNotBare(f"Process {pid} takes from {', '.join(queues)}.")
