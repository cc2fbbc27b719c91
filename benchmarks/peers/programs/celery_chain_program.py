"""Work W as a Celery chain of three tasks. Celery's database backend stores each result in PostgreSQL.

A standalone program with the commands `prepare`, `submit COUNT` and `work`. `DATABASE_URL` and `REDIS_URL` name the servers.
"""

from __future__ import annotations

import json
import os
import sys

from celery import Celery, chain

STEPS = 3
RESULT = json.dumps({"result": "x" * 1000})

app = Celery("celery_chain_program", broker=os.environ["REDIS_URL"])
app.conf.update(
    result_backend="db+" + os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1),
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    task_default_queue="peer-chain",
    broker_connection_retry_on_startup=True,
)


@app.task(name="step")
def step(number: int) -> str:
    return RESULT


def prepare() -> None:
    app.control.purge()
    app.backend.ResultSession()  # creates the tables


def submit(count: int) -> None:
    for _ in range(count):
        chain(*[step.si(number) for number in range(1, STEPS + 1)]).delay()


def work() -> None:
    app.worker_main(["worker", "-c", "2", "--loglevel", "ERROR"])


if __name__ == "__main__":
    commands = {"prepare": prepare, "submit": lambda: submit(int(sys.argv[2])), "work": work}
    commands[sys.argv[1]]()
