"""`manage.py` without the seconds that Django takes to start: a process that has started it already forks for each command.

Readers of documents type many commands. Each still runs in a process of its own, with the terminal of its reader; only what happens
before `execute_from_command_line` is done once. `python tests/preloaded.py SOCKET ARGUMENT ...` is what stands in place of `manage.py`.
"""

from __future__ import annotations

import json
import os
import socket
import sys

MOST = 65_536  # bytes of a command line


def serve(path: str, *, checks_first: bool = True) -> None:
    """Answer until we are ended. The environment is ours; folder, arguments and terminal are the asker's.

    `checks_first`: most commands begin with Django's checks, which import all views and admin pages: ten times the work of a usual command.
    Not needed where every command is given `--skip-checks`.
    """
    import django
    from django.core import checks
    from django.core.management import execute_from_command_line, get_commands

    django.setup()
    get_commands()
    if checks_first:
        checks.run_checks()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        while True:
            asker, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _become(asker, execute_from_command_line)
            asker.close()
            _reap()


def _become(asker: socket.socket, execute: object) -> None:
    """In the fork: run the command, tell its exit status, end."""
    status = 1
    try:
        message, terminal, _, _ = socket.recv_fds(asker, MOST, 3)
        asked = json.loads(message)
        for number, given in enumerate(terminal):
            os.dup2(given, number)
        os.chdir(asked["folder"])
        sys.argv = ["manage.py", *asked["arguments"]]
        execute(sys.argv)  # type: ignore[operator]
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:  # noqa: BLE001  # whatever it was, the asker is told
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        asker.sendall(bytes([status & 255]))
        os._exit(status & 255)


def _reap() -> None:
    """Forget children that have ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def ask(path: str, arguments: list[str]) -> int:
    """Have a command run with this process's terminal; its exit status."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(path)
        message = json.dumps({"folder": os.getcwd(), "arguments": arguments}).encode()
        socket.send_fds(door, [message], [0, 1, 2])
        answer = door.recv(1)
    return answer[0] if answer else 1


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
