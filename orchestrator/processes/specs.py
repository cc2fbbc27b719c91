"""The table of standard processes, which the supervisor and the containers share."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

REDIS_USER = "ORCHESTRATOR_REDIS_USER"  # the user of the process at the embedded Redis
KIND = {"system": "worker"}  # the kind of a process, if it differs from its name
WEB_THREADS = 8  # per web worker; an open event stream uses none
#: How long web keeps an idle connection. Longer than proxies and clients usually do (60 s): whoever keeps it for less closes it, and a
#: request that is sent while web closes it is lost.
KEEP_ALIVE_SECONDS = 75


@dataclass(frozen=True)
class ProcessSpec:
    """A command line with a name. `env` is added to the environment of the process."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_seconds: float = 20.0  # from SIGTERM until SIGKILL


def standard_processes(*, port: int, flower_port: int, concurrency: int | None) -> list[ProcessSpec]:
    """Return web, worker, beat and Flower, in the order of their start.

    WEB_CONCURRENCY sets the number of web workers, WEB_BIND and FLOWER_BIND the addresses (default: loopback).
    Flower reads its password from FLOWER_BASIC_AUTH. With `concurrency` None Celery chooses the number of worker
    threads.
    """
    threads = () if concurrency is None else ("--concurrency", str(concurrency))
    return [
        _python(
            "web",
            "gunicorn",
            "orchestrator.wsgi:application",
            "--worker-class=orchestrator.web_worker.StreamingWorker",
            "--logger-class=orchestrator.web_worker.StructuredLogger",
            f"--workers={os.environ.get('WEB_CONCURRENCY') or '1'}",
            f"--threads={WEB_THREADS}",
            f"--keep-alive={KEEP_ALIVE_SECONDS}",
            f"--bind={os.environ.get('WEB_BIND') or '127.0.0.1'}:{port}",
            "--no-control-socket",  # it would be in the user's home folder, shared by all instances
        ),
        _celery("worker", "--pool=threads", "--loglevel=INFO", *threads),
        _celery("beat", "--loglevel=INFO"),
        _celery(
            "flower", f"--address={os.environ.get('FLOWER_BIND') or '127.0.0.1'}", f"--port={flower_port}"
        ),
    ]


def system_worker() -> ProcessSpec:
    """Return a worker for the system's queues only.

    Workers without -Q serve these queues too, but only when a thread is free. If agents may keep all threads busy, this worker ensures that
    alerts and background tasks do not wait.
    """
    return _python(
        "system",
        "celery",
        "-A",
        "orchestrator",
        "worker",
        "--pool=threads",
        "--loglevel=INFO",
        "-Q",
        "system",
    )


def _celery(name: str, *arguments: str) -> ProcessSpec:
    return _python(name, "celery", "-A", "orchestrator", name, *arguments)


def _python(name: str, module: str, *arguments: str) -> ProcessSpec:
    # Use our own interpreter, so that the virtual environment does not depend on PATH.
    return ProcessSpec(name, (sys.executable, "-m", module, *arguments), {REDIS_USER: KIND.get(name, name)})
