"""Each peer does work W in a database of its own; how fast, and at what cost of processor time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg

from benchmarks import scenarios, setting
from benchmarks.scenarios import Figures

PROGRAMS = Path(__file__).parent / "programs"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
ENVIRONMENT = setting.ROOT / "var" / "peers"
STEPS = 3
PROCESSES = 2


class Peer(NamedTuple):
    """A program, how many processes make two workers of it, and where it says what is done.

    `steps` gives one row (its end in seconds) for each step whose result is recorded, `runs` the number of runs that have ended.
    """

    program: str
    processes: int
    steps: str
    runs: str


PEERS = {
    "procrastinate": Peer(
        "procrastinate_program.py",
        PROCESSES,
        "SELECT extract(epoch FROM at)::float8 FROM peer_step",
        "SELECT count(*) FROM peer_run WHERE finished_at IS NOT NULL",
    ),
    "dbos": Peer(
        "dbos_program.py",
        PROCESSES,
        "SELECT completed_at_epoch_ms / 1000.0::float8 FROM dbos.operation_outputs",
        "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
    ),
    "celery_chain": Peer(
        "celery_chain_program.py",
        1,  # with two processes of its own
        "SELECT extract(epoch FROM date_done)::float8 FROM celery_taskmeta WHERE status = 'SUCCESS'",
        f"SELECT count(*) / {STEPS} FROM celery_taskmeta WHERE status = 'SUCCESS'",
    ),
}


def ours(folder: Path, scale: float) -> Figures:
    """Work W here; beside it the plain Celery program that records each step itself."""
    return scenarios.steps(folder, scale)


def peer(name: str, folder: Path, scale: float) -> Figures:
    """Work W on a peer. Steps per second as in ours: between the first and the last tenth of the steps."""
    it, count = PEERS[name], int(1000 * scale)
    python = _python_of_peers()
    with _database(f"peer_{name}_{uuid4().hex[:8]}") as url:
        environment = _environment(url)
        program = str(PROGRAMS / it.program)
        for command in (["prepare"], ["submit", str(count)]):
            subprocess.run([python, program, *command], env=environment, cwd=folder, check=True)
        workers = setting.Workers(
            *[[program, "work"]] * it.processes,
            log=folder / f"{name}.log",
            cwd=folder,
            environment=environment,
            interpreter=[python],
        )
        with psycopg.connect(url, autocommit=True) as connection, workers:

            def number(query: str) -> int:
                row = connection.execute(query).fetchone()  # type: ignore[call-overload]
                return int(row[0]) if row else 0

            cost = scenarios.cost_per_step(
                folder,
                done=lambda: number(f"SELECT count(*) FROM ({it.steps}) steps"),
                total=STEPS * count,
                all_done=lambda: number(it.runs) == count,
            )
            moments = [float(row[0]) for row in connection.execute(it.steps)]  # type: ignore[call-overload]
    return {"steps/s": scenarios.rate(moments), "CPU ms per step": cost.cpu_ms}


def _environment(url: str) -> dict[str, str]:
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "LANG", "REDIS_URL", "PYTHONPYCACHEPREFIX")
        if name in os.environ
    }
    return kept | {"DATABASE_URL": url}


class _database:
    """A database of its own on the server of the benchmark; gone afterwards."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> str:
        self._execute(f'CREATE DATABASE "{self.name}"')
        return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{self.name}").geturl()

    def __exit__(self, *exception: object) -> None:
        self._execute(f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


def _python_of_peers() -> str:
    """The interpreter of the peers' environment, which knows nothing of this project."""
    python, made_with = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "requirements.txt"
    if not made_with.exists() or made_with.read_text() != REQUIREMENTS.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)], check=True)
        made_with.write_text(REQUIREMENTS.read_text())
    return str(python)


ALL: dict[str, Callable[[Path, float], Figures]] = {
    "ours": ours,
    **{name: partial(peer, name) for name in PEERS},
}
