"""A handwritten Celery program, for comparison: one transaction per step, and the next step is sent after the commit.

This is what a good programmer writes without an orchestrator: no tenants, limits, order, history, fencing or recovery.

It imports only Celery, psycopg and orjson. Each of its processes records the modules it has imported and the queues it consumes, so that
`benchmarks.baseline` can check that nothing else is in it.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid

import orjson
import psycopg
from celery import Celery
from celery.signals import worker_process_init, worker_ready

app = Celery("handwritten", broker=os.environ.get("REDIS_URL"))
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    task_default_queue="handwritten",
    broker_connection_retry_on_startup=True,
)

STEPS = 3
RESULT = orjson.dumps({"result": "x" * 1000}).decode()
SCHEMA = """
    DROP TABLE IF EXISTS handwritten_step, handwritten_run, handwritten_process;
    CREATE TABLE handwritten_run (id uuid PRIMARY KEY, step int NOT NULL, finished_at timestamptz);
    CREATE TABLE handwritten_step (run_id uuid NOT NULL, step int NOT NULL, result jsonb, at timestamptz DEFAULT clock_timestamp(),
                                   PRIMARY KEY (run_id, step));
    CREATE TABLE handwritten_process (pid int PRIMARY KEY, queues text[], modules text[] NOT NULL);
"""

_local = threading.local()


def connection() -> psycopg.Connection:
    if not hasattr(_local, "connection"):
        _local.connection = psycopg.connect(os.environ["DATABASE_URL"])
    return _local.connection


@app.task(name="handwritten.step")
def step(run: str, number: int) -> None:
    with connection().transaction():
        connection().execute(
            "INSERT INTO handwritten_step (run_id, step, result) VALUES (%s, %s, %s)", (run, number, RESULT)
        )
        connection().execute(
            "UPDATE handwritten_run SET step = %s, finished_at = CASE WHEN %s THEN clock_timestamp() END WHERE id = %s",
            (number, number == STEPS, run),
        )
    if number < STEPS:
        step.delay(run, number + 1)


def submit(count: int) -> list[str]:
    """Record runs one by one and send each after its commit. Returns their ids."""
    runs = [str(uuid.uuid4()) for _ in range(count)]
    for run in runs:
        with connection().transaction():
            connection().execute("INSERT INTO handwritten_run (id, step) VALUES (%s, 0)", (run,))
        step.delay(run, 1)
    return runs


def prepare() -> None:
    """Empty the queue, which may hold runs of an earlier measurement, and create empty tables."""
    app.control.purge()
    with connection().transaction():
        connection().execute(SCHEMA)


@worker_process_init.connect
def _describe_child(**_: object) -> None:
    _describe(None)


@worker_ready.connect
def _describe_parent(sender: object, **_: object) -> None:
    _describe([queue.name for queue in sender.task_consumer.queues])  # type: ignore[attr-defined]


def _describe(queues: list[str] | None) -> None:
    # Not `connection()`, because children that are forked later must not share the parent's.
    with psycopg.connect(os.environ["DATABASE_URL"]) as own:
        own.execute(
            "INSERT INTO handwritten_process (pid, queues, modules) VALUES (%s, %s, %s)",
            (os.getpid(), queues, sorted({".".join(name.split(".")[:2]) for name in sys.modules})),
        )
