"""Command line: `python -m orchestrator.embedded start | stop | status | run`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from types import FrameType

from orchestrator.embedded import SERVICES, EmbeddedError, ServiceHome, start, status, stop

WATCH_SECONDS = 1.0  # how soon `run` notices that a server died


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    home = ServiceHome(options.home) if options.home else ServiceHome.from_environment()
    services = tuple(options.service or SERVICES)
    try:
        match options.command:
            case "start":
                _start(home, services, durable=not options.fast)
            case "stop":
                stop(home, services)
                _print_status(home)
            case "status":
                return 0 if _print_status(home) else 1
            case "run":
                return _run(home, services, durable=not options.fast)
    except EmbeddedError as error:
        print(f"error [{error.code}]: {error}", file=sys.stderr)
        return 1
    return 0


def _start(home: ServiceHome, services: tuple[str, ...], *, durable: bool) -> None:
    start(home, services=services, durable=durable)
    _print_status(home)
    print(f"addresses with passwords: {home.services_file}", flush=True)  # a reader may wait for it at a pipe


def _run(home: ServiceHome, services: tuple[str, ...], *, durable: bool) -> int:
    """Keep the servers running until Ctrl-C or SIGTERM, then stop them. The exit code is 1 if one died."""
    stopped = threading.Event()

    def handle_signal(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle_signal)
    died: list[str] = []
    try:
        _start(home, services, durable=durable)
        while not died and not stopped.wait(WATCH_SECONDS):
            died = [
                f"{server.name} ended, see {server.log}" for server in status(home) if server.state == "died"
            ]
    finally:
        stop(home, services)
    for line in died:
        print(line, file=sys.stderr)
    return 1 if died else 0


def _print_status(home: ServiceHome) -> bool:
    """Print the state of all known servers, and return whether there are any and all are running."""
    servers = status(home)
    for server in servers:
        address = f"127.0.0.1:{server.port}" + (f" pid {server.pid}" if server.pid else "")
        print(f"{server.name:<9} {server.state:<8} {address}{'' if server.durable else ' (not durable)'}")
    if not servers:
        print(f"no server was ever started in {home.path}")
    return bool(servers) and all(server.state == "running" for server in servers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.embedded",
        description="Embedded PostgreSQL, Redis-protocol and MongoDB-protocol servers of one home folder.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in (
        (
            "start",
            "start the servers that are not running, and return when all answer; they outlive this command",
        ),
        ("stop", "stop the servers and wait until they are gone"),
        ("status", "print their state; exit code 0 if all are running"),
        ("run", "start the servers, keep them running until Ctrl-C, then stop them"),
    ):
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument(
            "--home", metavar="DIR", help="their folder (default: ORCHESTRATOR_HOME, else var/)"
        )
        command.add_argument(
            "--service", action="append", choices=SERVICES, help="only this one; may be given several times"
        )
        if name in {"start", "run"}:
            command.add_argument(
                "--fast", action="store_true", help="does not survive a crash of the machine; for tests"
            )
    return parser


if __name__ == "__main__":
    sys.exit(main())
