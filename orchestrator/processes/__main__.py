"""Runs one of the standard processes in place: `python -m orchestrator.processes web | worker | beat | flower | system`.

It is for containers, which have their own supervision. Reads PORT, FLOWER_PORT, WORKER_CONCURRENCY and the
variables that the table uses.
"""

from __future__ import annotations

import argparse
import os

from orchestrator.processes.specs import standard_processes, system_worker

PORT, FLOWER_PORT = 8000, 5555


def main() -> None:
    concurrency = os.environ.get("WORKER_CONCURRENCY")
    table = standard_processes(
        port=int(os.environ.get("PORT") or PORT),
        flower_port=int(os.environ.get("FLOWER_PORT") or FLOWER_PORT),
        concurrency=int(concurrency) if concurrency else None,
    )
    specs = {spec.name: spec for spec in (*table, system_worker())}
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.processes",
        description="Become one of the processes of the system, with the command line that `make up` uses.",
    )
    parser.add_argument("name", choices=specs)
    parser.add_argument("more", nargs="*", metavar="ARGUMENT", help="appended to its command line, after --")
    options = parser.parse_args()
    spec = specs[options.name]
    os.execve(spec.argv[0], [*spec.argv, *options.more], {**os.environ, **spec.env})  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
