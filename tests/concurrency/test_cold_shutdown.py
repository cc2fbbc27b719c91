"""A worker that gets SIGQUIT exits, even if the thread of a run does not end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from orchestrator.celery import LEAVE_SECONDS, NOT_ENDED

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
    with subprocess.Popen(
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
