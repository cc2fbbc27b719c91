"""Work W on Procrastinate: a job for each step, its result recorded in a table, then the next job deferred.

A standalone program with the commands `prepare`, `submit COUNT` and `work`. `DATABASE_URL` names the database.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid

from procrastinate import App, PsycopgConnector
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

STEPS = 3
RESULT = json.dumps({"result": "x" * 1000})
SCHEMA = """
    CREATE TABLE peer_run (id uuid PRIMARY KEY, step int NOT NULL, finished_at timestamptz);
    CREATE TABLE peer_step (run_id uuid NOT NULL, step int NOT NULL, result jsonb,
                            at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (run_id, step));
"""

app = App(connector=PsycopgConnector(conninfo=os.environ["DATABASE_URL"], min_size=4, max_size=12))
results = AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=4, max_size=12, open=False)


@app.task(name="step", queue="steps")
async def step(run: str, number: int) -> None:
    async with results.connection() as connection:  # one transaction
        await connection.execute(
            "INSERT INTO peer_step (run_id, step, result) VALUES (%s, %s, %s)", (run, number, RESULT)
        )
        await connection.execute(
            "UPDATE peer_run SET step = %s, finished_at = CASE WHEN %s THEN clock_timestamp() END WHERE id = %s",
            (number, number == STEPS, run),
        )
    if number < STEPS:
        await step.defer_async(run=run, number=number + 1)


async def prepare() -> None:
    async with await AsyncConnection.connect(os.environ["DATABASE_URL"]) as connection:
        await connection.execute(SCHEMA)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def submit(count: int) -> None:
    runs = [str(uuid.uuid4()) for _ in range(count)]
    async with (
        await AsyncConnection.connect(os.environ["DATABASE_URL"]) as connection,
        connection.cursor() as cursor,
    ):
        await cursor.executemany("INSERT INTO peer_run (id, step) VALUES (%s, 0)", [(run,) for run in runs])
    async with app.open_async():
        await step.batch_defer_async(*[{"run": run, "number": 1} for run in runs])


async def work() -> None:
    async with app.open_async(), results:
        await app.run_worker_async(queues=["steps"], concurrency=10, fetch_job_polling_interval=0.1)


if __name__ == "__main__":
    commands = {"prepare": prepare, "submit": lambda: submit(int(sys.argv[2])), "work": work}
    asyncio.run(commands[sys.argv[1]]())
