"""`manage.py` without the seconds in which Django starts: a process that has loaded it forks for each command.

Tests of documents run many commands. Each still has its own process and the terminal of its caller; only what comes before
`orchestrator.command.main` happens once. `python tests/preloaded_manage.py SOCKET ARGUMENT ...` replaces `manage.py`.
"""

from __future__ import annotations

import json
import os
import socket
import sys

MOST = 65_536  # bytes of a command line


def serve(path: str, *, checks_first: bool = True) -> None:
    """Run commands until the process is killed, with its own environment and the caller's folder, arguments and terminal.

    `checks_first` imports what Django's checks import, which takes ten times as long as a usual command. It is not needed if every command
    has `--skip-checks`.
    """
    import django
    from django.core import checks
    from django.core.management import get_commands

    from orchestrator.command import main

    django.setup()
    get_commands()
    if checks_first:
        checks.run_checks()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            caller, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run_command(caller, main)
            caller.close()
            _reap()


def _run_command(caller: socket.socket, main: object) -> None:
    """Run the command in this fork, send its exit status to the caller, and exit."""
    status = 1
    try:
        message, terminal, _, _ = socket.recv_fds(caller, MOST, 3)
        command = json.loads(message)
        for number, descriptor in enumerate(terminal):
            os.dup2(descriptor, number)
        os.chdir(command["folder"])
        sys.argv = ["manage.py", *command["arguments"]]
        main()  # type: ignore[operator]
        status = 0
    except SystemExit as exit:
        if isinstance(exit.code, str):
            sys.stderr.write(f"{exit.code}\n")
        status = exit.code if isinstance(exit.code, int) else int(bool(exit.code))
    except BaseException:  # noqa: BLE001  # the caller gets the exit status of any failure
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.sendall(bytes([status & 255]))
        os._exit(status & 255)


def _reap() -> None:
    """Reap ended children."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def run_command(path: str, arguments: list[str]) -> int:
    """Run a command with this process's terminal and return its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        message = json.dumps({"folder": os.getcwd(), "arguments": arguments}).encode()
        socket.send_fds(connection, [message], [0, 1, 2])
        answer = connection.recv(1)
    return answer[0] if answer else 1


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1], sys.argv[2:]))
