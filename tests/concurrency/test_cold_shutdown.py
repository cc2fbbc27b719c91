"""A worker that gets SIGTERM finishes its runs. One that gets SIGQUIT exits, even if the thread of a run does not end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from orchestrator.celery import LEAVE_SECONDS, NOT_ENDED
from tests.quick_python import Program

#: A worker whose only task never ends.
PROGRAM = """
import sys
import threading
from celery import signals
from orchestrator.celery import app

app.conf.worker_soft_shutdown_timeout = 0.5

@app.task(name="tests.never_ends")
def never_ends():
    print("running", file=sys.__stdout__, flush=True)
    threading.Event().wait()

@signals.worker_ready.connect(weak=False)
def send(**kwargs):
    never_ends.apply_async(queue="agent__qa")

app.worker_main(["worker", "--pool=threads", "-c", "1", "-Q", "agent__qa", "--without-gossip", "--without-mingle", "-n", "cold@%h"])
"""


def test_sigquit_ends_a_worker_whose_run_does_not_end(process_environment: dict[str, str]) -> None:
    with Program(
        [sys.executable, "-c", PROGRAM],
        env=process_environment, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            assert any("running" in line for line in process.stdout)

            process.send_signal(signal.SIGQUIT)

            assert process.wait(LEAVE_SECONDS + 20) == NOT_ENDED
        finally:
            process.kill()


#: A worker with a run in a thread that does not belong to Celery's pool. The run ends with the program's input.
RELIEF = """
import sys
from uuid import uuid4
from celery import signals
from orchestrator.celery import app

def run(run_id):
    from activities import leases
    with leases.current().holding(run_id):
        print("under way", file=sys.__stdout__, flush=True)
        sys.stdin.read()
        print(leases.is_over(), file=sys.__stdout__, flush=True)

@signals.worker_ready.connect(weak=False)
def begin(**kwargs):
    from activities import quick_work, worker
    finish_runs = worker.finish_runs

    def finish_and_tell(is_cut_short):
        def tell_and_check():
            print("waits", file=sys.__stdout__, flush=True)
            return is_cut_short()
        finish_runs(is_cut_short=tell_and_check)

    worker.finish_runs = finish_and_tell
    quick_work._start("relief of a call", run, uuid4())

app.worker_main(["worker", "--pool=threads", "-c", "1", "-Q", "agent__qa", "--without-gossip", "--without-mingle", "-n", "warm@%h"])
"""


def test_sigterm_waits_for_a_run_that_another_thread_has_taken_over(
    process_environment: dict[str, str],
) -> None:
    with Program(
        [sys.executable, "-c", RELIEF],
        env=process_environment, cwd=Path(__file__).parents[2], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            assert process.stdin
            assert process.stdout
            assert any("under way" in line for line in process.stdout)

            process.send_signal(signal.SIGTERM)
            assert any("waits" in line for line in process.stdout)
            process.stdin.close()

            assert "False\n" in process.stdout.read()  # its lease has lasted until then
            assert process.wait(30) == 0
        finally:
            process.kill()
