"""Work W on DBOS: a workflow of three steps on a queue; DBOS records each step's result before the next one begins.

A standalone program with the commands `prepare`, `submit COUNT` and `work`. `DATABASE_URL` names the database.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from dbos import DBOS, DBOSConfig

STEPS = 3
RESULT = json.dumps({"result": "x" * 1000})
QUEUE = "steps"


@DBOS.step()
def step(number: int) -> str:
    return RESULT


@DBOS.workflow()
def run() -> None:
    for number in range(1, STEPS + 1):
        step(number)


def launch(worker: bool) -> None:
    config: DBOSConfig = {
        "name": "peer",
        "system_database_url": os.environ["DATABASE_URL"],
        "application_version": "1",
        "executor_id": f"process-{os.getpid()}",
        "log_level": "ERROR",
        "run_admin_server": False,
    }
    DBOS(config=config)
    if not worker:
        DBOS.listen_queues([])
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=10, polling_interval_sec=0.1)


def prepare() -> None:
    launch(worker=False)
    DBOS.destroy()


def submit(count: int) -> None:
    launch(worker=False)
    queue = DBOS.retrieve_queue(QUEUE)
    for _ in range(count):
        queue.enqueue(run)
    DBOS.destroy()


def work() -> None:
    launch(worker=True)
    threading.Event().wait()


if __name__ == "__main__":
    commands = {"prepare": prepare, "submit": lambda: submit(int(sys.argv[2])), "work": work}
    commands[sys.argv[1]]()
