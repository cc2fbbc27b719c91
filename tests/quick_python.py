"""Starts Python programs without the time in which libraries and the project are imported, which is nearly all of the start of a process.

A process that has imported them forks for each program. A program starts as from its command line: with its own arguments, environment,
folder, files, session and settings. What differs: its command line in the process table, and that options of Python (other than `-m` and
`-c`) and variables that Python itself reads have no effect, except PYTHONPATH and PYTHONUNBUFFERED. If a module of the project has read a
setting or a variable while it was imported, and the program has another value, the program is started again without this, as are those of
`LOADED_DIFFERENTLY`. `tests/acceptance/test_installed_wheel.py` and others start every kind of process without this.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any
from unittest.mock import patch

MOST = 131_072  # bytes of a command with its environment
MOST_FILES = 1_024  # of the process that forks
ROOT = Path(__file__).parents[1]
#: What workers, beats, web processes and commands import of others, and what can be imported without settings.
LIBRARIES = (
    "asyncio", "billiard.pool", "celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log", "celery.apps.beat",
    "celery.apps.worker", "celery.bin.beat", "celery.bin.celery", "celery.bin.worker", "celery.concurrency.thread",
    "celery.contrib.django.task", "celery.worker.autoscale", "celery.worker.components", "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery", "celery.worker.strategy", "cronsim", "crontab", "cryptography.fernet",
    "django.contrib.admin.sites", "django.contrib.admin.views.main", "django.contrib.postgres.fields", "django.core.management",
    "django.core.serializers.json", "django.db.backends.postgresql.base", "django.db.models", "django.forms", "django.http",
    "django.template.backends.django", "django.test.signals", "django.urls", "django.views.debug", "environ", "gunicorn.app.wsgiapp",
    "gunicorn.workers.gthread", "jsonschema", "kombu.transport.redis", "psycopg", "psycopg_pool", "redis", "redis.asyncio", "requests",
    "structlog", "whitenoise.middleware",
)  # fmt: skip
#: What they import of the project, besides what every process with Django does.
MODULES = (
    "activities.intake", "activities.maintenance", "activities.tasks", "activities.worker", "console.inbox.questions", "console.inbox.undo",
    "orchestrator.beat", "orchestrator.task_results", "orchestrator.urls", "pipelines.schedules.beat", "pipelines.tasks",
    "tenants.middleware",
)  # fmt: skip
#: Parts of command lines that decide what is imported.
LOADED_DIFFERENTLY = ("prefork", "flower")


class Program:
    """A program that was started. It is used like `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        assert command[0] == sys.executable, command
        self.args, self.returncode = command, None
        ours: list[int] = []  # ends of pipes that belong to the program
        self.stdin, self.stdout = None, None
        if stdin == subprocess.PIPE:
            stdin, end = os.pipe()
            ours.append(stdin)
            self.stdin = os.fdopen(end, "w" if text else "wb", buffering=1 if text else 0)
        if stdout == subprocess.PIPE:
            end, stdout = os.pipe()
            ours.append(stdout)
            self.stdout = os.fdopen(end, "r" if text else "rb")
        if stderr == subprocess.STDOUT:
            stderr = 1 if stdout is None else stdout
        message = {
            "arguments": command[1:], "environment": dict(os.environ if env is None else env), "folder": str(cwd or Path.cwd()),
            "session": start_new_session,
        }  # fmt: skip
        with open(os.devnull, "r+b") as nowhere:
            files = [
                _number(number if each is None else nowhere if each == subprocess.DEVNULL else each)
                for number, each in enumerate((stdin, stdout, stderr))
            ]
            begin()
            self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._server.connect(f"{_Server.folder}/socket")
            socket.send_fds(self._server, [json.dumps(message).encode()], files)
        for each in ours:
            os.close(each)
        self.pid = int(self._server.recv(MOST))

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if (status := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return status

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            self._server.settimeout(seconds)
            with suppress(TimeoutError, BlockingIOError):
                self.returncode = int(self._server.recv(MOST))
                self._server.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdout, self.stdin):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.wait()


if sys.platform != "linux":  # where there are no `os.pidfd_open` and no such sockets
    Program = subprocess.Popen  # type: ignore[misc]


def run(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, like `subprocess.run(command, capture_output=True, text=True)`."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with Program(
            command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        ) as program:
            status = program.wait(60)
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


def _number(file: int | IO[Any]) -> int:
    return file if isinstance(file, int) else file.fileno()


class _Server:
    """The process that forks, and where it listens. Forked test processes use that of the first process."""

    process: subprocess.Popen[bytes] | None = None
    folder = ""
    owner = 0


def begin() -> None:
    """Start the process that forks, unless it has been started. It also ends when no test process is left."""
    if _Server.process is not None or sys.platform != "linux":
        return
    _Server.folder, _Server.owner = tempfile.mkdtemp(prefix="quick-python-"), os.getpid()
    foreign = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{_Server.folder}/socket")
        listener.listen()
        _Server.process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            env=foreign, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], start_new_session=True,
        )  # fmt: skip


@contextmanager
def quick_supervisors() -> Iterator[None]:
    """Let supervisors start their processes, which are programs in Python, as `Program`."""
    quick = SimpleNamespace(Popen=Program, DEVNULL=subprocess.DEVNULL)
    with patch("orchestrator.processes.supervisor.subprocess", quick):
        yield


def end() -> None:
    """End it, in the process that has started it."""
    if _Server.process is not None and _Server.owner == os.getpid():
        _Server.process.kill()
        _Server.process.communicate()
        shutil.rmtree(_Server.folder)
        _Server.process = None


class _Loaded:
    """Libraries and the project, loaded with the settings of the tests, and what modules have read of settings and variables meanwhile."""

    def __init__(self) -> None:
        for name in LIBRARIES:
            importlib.import_module(name)
        self.settings: dict[str, Any] = {}
        self.variables: dict[str, str | None] = {}
        self.defaults: dict[str, str] = {}  # of variables, set by modules
        self._load_project()
        gc.freeze()

    def _load_project(self) -> None:
        import django
        from django import conf, db

        sys.path.insert(0, str(ROOT))
        conf.settings._wrapped = _Recorder(conf.Settings("orchestrator.settings.test"), self.settings)
        before, usual = dict(os.environ), type(os.environ)
        os.environ.__class__ = _recording(usual, self.variables)
        django.setup()
        for name in MODULES:
            importlib.import_module(name)
        # As every worker does, which takes a tenth of a second.
        importlib.import_module("pipelines.conditions").warm_up()
        os.environ.__class__ = usual
        sys.path.remove(str(ROOT))
        self.defaults = {name: value for name, value in os.environ.items() if name not in before}
        conf.settings._wrapped = conf.empty  # type: ignore[attr-defined]
        db.connections.__dict__.clear()  # of the connection that models have asked what PostgreSQL can do
        db.connections.__init__()  # type: ignore[misc]
        for read_again in ("DATABASES", "LOGGING", "LOGGING_CONFIG"):
            self.settings.pop(read_again, None)
        for name in [each for each in sys.modules if each.startswith("orchestrator.settings")]:
            del sys.modules[name]

    def serves(self, command: dict[str, Any]) -> bool:
        """Return whether the program would have loaded the same, as far as this can be known before it reads its settings."""
        if any(part in argument for argument in command["arguments"] for part in LOADED_DIFFERENTLY):
            return False
        return all(
            name in self.defaults or command["environment"].get(name) == value
            for name, value in self.variables.items()
        )

    def check_settings(self, command: dict[str, Any]) -> None:
        """Start the program again without all this, when it reads its settings, if modules have read other ones."""
        from django import conf

        class Settings(conf.Settings):  # type: ignore[misc]
            def __init__(own, module: str) -> None:
                super().__init__(module)
                if any(getattr(own, name) != value for name, value in self.settings.items()):
                    _execute(command)

        conf.Settings = Settings


class _Recorder:
    """Settings that note what is read of them."""

    def __init__(self, settings: object, values: dict[str, Any]) -> None:
        self._settings, self._values = settings, values

    def __getattr__(self, name: str) -> Any:
        return self._values.setdefault(name, getattr(self._settings, name))


def _recording(usual: Any, values: dict[str, str | None]) -> Any:
    """Return a class for `os.environ` that notes which variables are read."""

    class Environment(usual):
        def __getitem__(self, name: str) -> str:
            values.setdefault(name, None)
            value: str = super().__getitem__(name)
            values[name] = value
            return value

    return Environment


def _execute(command: dict[str, Any]) -> None:
    os.execve(sys.executable, [sys.executable, *command["arguments"]], command["environment"])


def _serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for each command that is sent to the socket, and tell its caller how it ended. Returns in the forks, with the command."""
    with selectors.DefaultSelector() as events:
        events.register(listener, selectors.EVENT_READ)
        events.register(sys.stdin, selectors.EVENT_READ)
        callers: dict[int, tuple[int, socket.socket]] = {}
        while True:
            for key, _ in events.select():
                if key.fileobj is listener:
                    caller, _ = listener.accept()
                    message, files, _, _ = socket.recv_fds(caller, MOST, 3)
                    command: dict[str, Any] = json.loads(message)
                    if (child := os.fork()) == 0:
                        return command | {"files": files}
                    for each in files:
                        os.close(each)
                    caller.send(str(child).encode())
                    ended = os.pidfd_open(child)
                    callers[ended] = child, caller
                    events.register(ended, selectors.EVENT_READ)
                elif key.fileobj is sys.stdin:
                    os._exit(0)  # the last test process has ended
                else:
                    events.unregister(key.fd)
                    os.close(key.fd)
                    child, caller = callers.pop(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                    with suppress(OSError):  # it waits no longer
                        caller.send(str(status).encode())
                    caller.close()


def _become(command: dict[str, Any], loaded: _Loaded) -> None:
    """Give this fork the environment, folder, files, session and settings of its program."""
    if command["session"]:
        os.setsid()
    for number, each in enumerate(command["files"]):
        os.dup2(each, number)
    os.closerange(3, MOST_FILES)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update({**loaded.defaults, **command["environment"]})
    if not loaded.serves(command):
        _execute(command)
    loaded.check_settings(command)
    time.tzset()
    buffering = 1 if os.environ.get("PYTHONUNBUFFERED") else -1
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        file = os.fdopen(
            number, "w" if number else "r", buffering if number < 2 else 1, encoding="utf-8", closefd=False
        )
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    sys.path[:0] = [
        "",
        *(
            each
            for each in os.environ.get("PYTHONPATH", "").split(os.pathsep)
            if each and each not in sys.path
        ),
    ]


def _run(kind: str, *arguments: str) -> None:
    """Do what Python does with its arguments, in this process."""
    program, *rest = arguments if kind in ("-m", "-c") else (kind, *arguments)
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    if kind == "-m":
        sys.argv = [program, *rest]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest]
        exec(compile(program, "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [program, *rest]
        sys.path[0] = str(Path(program).resolve().parent)
        runpy.run_path(program, run_name="__main__")


class _Exit:
    """Ends a program without the time in which Python frees every object. What was registered to run at the end has run before."""

    status: int | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.status = 0
        elif isinstance(error, SystemExit):
            self.status = error.code if isinstance(error.code, int) else int(error.code is not None)

    def leave(self) -> None:
        if self.status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status & 255)


if __name__ == "__main__":
    quick_exit = _Exit()
    atexit.register(quick_exit.leave)  # before all others, so that it runs after them
    loaded = _Loaded()
    command = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(command, loaded)
    with quick_exit:
        _run(*command["arguments"])
