"""The table of standard processes. The supervisor and the containers read the same one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

REDIS_USER = "ORCHESTRATOR_REDIS_USER"  # as whom the process comes to the embedded Redis
KIND = {"system": "worker"}  # by process, where it is not a kind of its own
WEB_THREADS = 8  # per web worker; an open event stream holds none


@dataclass(frozen=True)
class ProcessSpec:
    """A command line with a name. `env` is added to the environment of the process that runs it."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_seconds: float = 20.0  # from SIGTERM until SIGKILL


def standard_processes(*, port: int, flower_port: int, concurrency: int | None) -> list[ProcessSpec]:
    """Web, worker, beat and Flower, in the order in which they start.

    WEB_CONCURRENCY sets the number of web workers, WEB_BIND and FLOWER_BIND the addresses (loopback unless
    set). Flower takes its password from FLOWER_BASIC_AUTH by itself. `concurrency` None leaves the number of
    worker threads to Celery.
    """
    threads = () if concurrency is None else ("--concurrency", str(concurrency))
    return [
        _python(
            "web",
            "gunicorn",
            "orchestrator.wsgi:application",
            "--worker-class=orchestrator.web_worker.StreamingWorker",
            "--logger-class=orchestrator.web_worker.OneFormat",
            f"--workers={os.environ.get('WEB_CONCURRENCY') or '1'}",
            f"--threads={WEB_THREADS}",
            f"--bind={os.environ.get('WEB_BIND') or '127.0.0.1'}:{port}",
            "--no-control-socket",  # it would lie in the user's home folder, shared by all that run there
        ),
        _celery("worker", "--pool=threads", "--loglevel=INFO", *threads),
        _celery("beat", "--loglevel=INFO"),
        _celery(
            "flower", f"--address={os.environ.get('FLOWER_BIND') or '127.0.0.1'}", f"--port={flower_port}"
        ),
    ]


def system_worker() -> ProcessSpec:
    """A worker for the system's own queues alone.

    Every worker without -Q takes from them as well, as soon as a thread of it is free. Where agents may keep all threads busy, this
    one sees to it that alerts and background tasks do not wait.
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
    # The interpreter that runs us, so that the virtual environment is the same whatever PATH says.
    return ProcessSpec(name, (sys.executable, "-m", module, *arguments), {REDIS_USER: KIND.get(name, name)})
