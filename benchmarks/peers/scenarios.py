"""Work W here and on each peer, on the same servers: steps per second, and processor time per step.

Each peer has its own database and its own Python environment.
"""

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

from benchmarks import engine, environment
from benchmarks.figures import Figures, rate

PROGRAMS = Path(__file__).parent / "programs"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
ENVIRONMENT = environment.ROOT / "var" / "peers"
STEPS = 3
PROCESSES = 2


class Peer(NamedTuple):
    """A program with the number of processes that make two workers.

    `steps` queries the end of each recorded step (in seconds), `runs` the number of ended runs.
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
        1,  # which forks two
        "SELECT extract(epoch FROM date_done)::float8 FROM celery_taskmeta WHERE status = 'SUCCESS'",
        f"SELECT count(*) / {STEPS} FROM celery_taskmeta WHERE status = 'SUCCESS'",
    ),
}


def ours(folder: Path, scale: float) -> Figures:
    """Work W here, and in the plain Celery program that records each step itself."""
    return engine.steps(folder, scale)


def measure_peer(name: str, folder: Path, scale: float) -> Figures:
    """Work W on a peer. The rate is calculated as in `ours`."""
    peer, count = PEERS[name], int(1000 * scale)
    python = _python_of_peers()
    with _database(f"peer_{name}_{uuid4().hex[:8]}") as url:
        variables = _environment(url)
        program = str(PROGRAMS / peer.program)
        for command in (["prepare"], ["submit", str(count)]):
            subprocess.run([python, program, *command], env=variables, cwd=folder, check=True)
        processes = environment.Processes(
            *[[program, "work"]] * peer.processes,
            log=folder / f"{name}.log",
            cwd=folder,
            environment=variables,
            interpreter=[python],
        )
        with psycopg.connect(url, autocommit=True) as connection, processes:

            def number(query: str) -> int:
                row = connection.execute(query).fetchone()
                return int(row[0]) if row else 0

            cost = engine.cost_per_step(
                folder,
                done=lambda: number(f"SELECT count(*) FROM ({peer.steps}) steps"),
                total=STEPS * count,
                all_done=lambda: number(peer.runs) == count,
            )
            moments = [float(row[0]) for row in connection.execute(peer.steps)]
    return {"steps/s": rate(moments), "CPU ms per step": cost.cpu_ms}


def _environment(url: str) -> dict[str, str]:
    variables = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "LANG", "REDIS_URL", "PYTHONPYCACHEPREFIX")
        if name in os.environ
    }
    return variables | {"DATABASE_URL": url}


class _database:
    """A new database on the benchmark's server, which is dropped at the end. Returns its URL."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> str:
        self._execute(f'CREATE DATABASE "{self.name}"')
        return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{self.name}").geturl()

    def __exit__(self, *exception: object) -> None:
        self._execute(f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            connection.execute(statement)


def _python_of_peers() -> str:
    """Return the interpreter of the peers' environment, which contains nothing of this project. Creates it if needed."""
    python, installed = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "requirements.txt"
    if not installed.exists() or installed.read_text() != REQUIREMENTS.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)], check=True)
        installed.write_text(REQUIREMENTS.read_text())
    return str(python)


SCENARIOS: dict[str, Callable[[Path, float], Figures]] = {
    "ours": ours,
    **{name: partial(measure_peer, name) for name in PEERS},
}
