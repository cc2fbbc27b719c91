"""Bare Celery, for comparison: one transaction per step by hand, the next step sent after the commit, and no engine.

This is what a good programmer writes without an orchestrator: no tenants, limits, order, history, fencing or recovery.
"""

from __future__ import annotations

import os
import threading
import uuid

import orjson
import psycopg
from celery import Celery

app = Celery("bare", broker=os.environ.get("REDIS_URL"))
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    task_default_queue="bare",
    broker_connection_retry_on_startup=True,
)

STEPS = 3
RESULT = orjson.dumps({"result": "x" * 1000}).decode()
SCHEMA = """
    DROP TABLE IF EXISTS bare_step; DROP TABLE IF EXISTS bare_run;
    CREATE TABLE bare_run (id uuid PRIMARY KEY, step int NOT NULL, finished_at timestamptz);
    CREATE TABLE bare_step (run_id uuid NOT NULL, step int NOT NULL, result jsonb, at timestamptz DEFAULT clock_timestamp(),
                            PRIMARY KEY (run_id, step));
"""

_local = threading.local()


def connection() -> psycopg.Connection:
    if not hasattr(_local, "connection"):
        _local.connection = psycopg.connect(os.environ["DATABASE_URL"])
    return _local.connection


@app.task(name="bare.step")
def step(run: str, number: int) -> None:
    with connection().transaction():
        connection().execute(
            "INSERT INTO bare_step (run_id, step, result) VALUES (%s, %s, %s)", (run, number, RESULT)
        )
        connection().execute(
            "UPDATE bare_run SET step = %s, finished_at = CASE WHEN %s THEN clock_timestamp() END WHERE id = %s",
            (number, number == STEPS, run),
        )
    if number < STEPS:
        step.delay(run, number + 1)


def submit(count: int) -> list[str]:
    """Runs recorded one by one, each sent after its commit."""
    runs = [str(uuid.uuid4()) for _ in range(count)]
    for run in runs:
        with connection().transaction():
            connection().execute("INSERT INTO bare_run (id, step) VALUES (%s, 0)", (run,))
        step.delay(run, 1)
    return runs


def prepare() -> None:
    with connection().transaction():
        connection().execute(SCHEMA)
