"""Celery's other pools: forked children share no connection, and admission counts what a pool can really take."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.quick_python import Program

#: The command line of a worker that prints which sessions of PostgreSQL its processes use when they start.
PROGRAM = """
import json
import os
import sys

sys.argv = ["celery", "-A", "orchestrator", "worker", "--pool=prefork", "--autoscale=2,2", "-Q", "agent__qa", "--without-mingle"]

from celery import signals
from celery.__main__ import main
from orchestrator import celery

def tell(who):
    from django.db import connections
    used = [each.connection.info.backend_pid for each in connections.all(initialized_only=True) if each.connection]
    print(json.dumps([who, os.getpid(), used]), file=sys.__stdout__, flush=True)

@signals.celeryd_after_setup.connect(weak=False)
def tell_of_parent(**kwargs):
    from activities import worker
    begin = worker.begin

    def begin_and_tell(**arguments):
        begin(**arguments)
        tell("child")

    worker.begin = begin_and_tell
    tell("parent")

@signals.worker_ready.connect(weak=False)
def end(**kwargs):
    print(json.dumps(["ready", os.getpid(), []]), file=sys.__stdout__, flush=True)

main()
"""


def test_each_child_of_a_prefork_worker_has_its_own_connections(process_environment: dict[str, str]) -> None:
    with Program(
        [sys.executable, "-c", PROGRAM],
        env=process_environment, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            told: list[tuple[str, int, list[int]]] = []
            while [who for who, *_ in told].count("child") < 2 or "ready" not in [who for who, *_ in told]:
                line = process.stdout.readline()
                assert line, "the worker has ended"
                if line.startswith("["):
                    told.append(json.loads(line))
            process.send_signal(signal.SIGTERM)

            sessions = [session for _, _, used in told for session in used]
            assert len({pid for who, pid, _ in told if who == "child"} - {process.pid}) == 2
            assert all(used for who, _, used in told if who != "ready")
            assert len(set(sessions)) == len(sessions)
            assert process.wait(30) == 0
        finally:
            process.kill()


#: A worker of Celery's pool for one task at a time, which ignores the concurrency of its command line.
SOLO = """
import sys

sys.argv = ["celery", "-A", "orchestrator", "worker", "--pool=solo", "-c", "4", "-Q", "agent__qa", "--without-mingle"]

from celery import signals
from celery.__main__ import main
from orchestrator import celery

@signals.worker_ready.connect(weak=False)
def tell(**kwargs):
    from activities import leases
    print("seats", leases.current().concurrency, file=sys.__stdout__, flush=True)

main()
"""


def test_a_worker_that_takes_one_task_at_a_time_has_one_seat(process_environment: dict[str, str]) -> None:
    with Program(
        [sys.executable, "-c", SOLO],
        env=process_environment, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            assert next(line for line in process.stdout if line.startswith("seats")) == "seats 1\n"
        finally:
            process.kill()
