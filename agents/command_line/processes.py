"""Runs the process of an agent with constant memory, and guarantees that it and all its child processes end.

The process leads a new session, so signals for the worker (Ctrl-C at a terminal) do not reach it, and a signal to its group reaches its
children. To stop it, it gets SIGTERM, and SIGKILL after a grace period. When `run` returns or raises, no process of the group is running.
"""

from __future__ import annotations

import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agents.command_line import launcher, users
from agents.command_line.options import Limits
from agents.command_line.users import OwnUser

CHUNK = 65_536
POLL_SECONDS = 0.1  # between checks of an agent that prints nothing
WATCH_SECONDS = 1.0  # between calls of `stop_reason`, which may cost a query
SAMPLE_SECONDS = 2.0
SAMPLE_COST = 50  # the time between samples is at least this many times their duration, because they read every process of the machine
LINGER_SECONDS = 1.0  # for output that children still write after the agent has ended

OVERDUE = "overdue"
RUN_ID = "ORCHESTRATOR_RUN_ID"  # in the environment of an agent and of all that it starts


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run. `arguments` begin with the absolute path of the program."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    prompt: bytes = b""
    limits: Limits = field(default_factory=Limits)
    seconds: float = 600.0
    grace_seconds: float = 5.0
    user: OwnUser | None = None  # None: the worker's own user


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How the process ended. `code` is negative for a signal; `stopped` is the reason why the worker stopped it, if it did."""

    code: int
    stopped: str | None
    resources: Resources


@dataclass(slots=True)
class Watch:
    """Receives the output, and says when to stop. Each callback may raise, which ends the agent and `run`."""

    on_output: Callable[[bytes], None]
    on_error: Callable[[bytes], None]
    stop_reason: Callable[[], str | None]
    on_sample: Callable[[Resources], None] = lambda resources: None


def run(command: Command, watch: Watch) -> ProcessEnd:
    """Run the command until it has ended. The kernel kills the agent when the calling thread ends."""
    process = subprocess.Popen(
        _launch_command(command), cwd=command.folder, env=dict(command.environment), start_new_session=True,
        stdin=subprocess.PIPE if command.prompt else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    running = _RunningProcess(process, command, watch, Meter(process.pid))
    try:
        return running.follow()
    finally:
        running.clean_up()


def _launch_command(command: Command) -> list[str]:
    limits = command.limits
    numbers = (os.getpid(), limits.memory_mb or 0, limits.cpu_seconds or 0, limits.nice)
    user = command.user
    ids = ",".join(map(str, (user.uid, user.gid, *user.groups))) if user else ""
    return [sys.executable, "-I", "-S", launcher.__file__, *map(str, numbers), ids, "--", *command.arguments]


def kill_all_of(run_id: str, *, session: int | None = None) -> int:
    """Kill every process of the session, or with the run's id in its environment. Return how many."""
    # The kernel reports 0 for every session outside of this container.
    if not run_id or session == 0:
        raise ValueError("a run or a session must be named")
    killed = 0
    for process in psutil.process_iter():
        try:
            ours = os.getsid(process.pid) == session or process.environ().get(RUN_ID) == run_id
            if ours and process.pid != os.getpid():
                process.kill()
                killed += 1
        except (psutil.Error, OSError):
            continue  # another user's process, or one that has ended
    return killed


@dataclass(slots=True)
class _RunningProcess:
    process: subprocess.Popen[bytes]
    command: Command
    watch: Watch
    meter: Meter
    started: float = field(default_factory=time.monotonic)
    stopped: str | None = None
    kill_at: float | None = None
    exited_at: float | None = None
    watched: float = 0.0
    sample_at: float = 0.0
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    reading: set[int] = field(default_factory=set)
    resources: Resources | None = None

    def follow(self) -> ProcessEnd:
        with selectors.DefaultSelector() as selector:
            out, error, into = self.process.stdout, self.process.stderr, self.process.stdin
            for pipe, hear in ((out, self.watch.on_output), (error, self.watch.on_error)):
                assert pipe is not None  # noqa: S101 - Popen created both
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe.fileno(), selectors.EVENT_READ, hear)
                self.reading.add(pipe.fileno())
            if into is not None:
                os.set_blocking(into.fileno(), False)
                self.unsent = memoryview(self.command.prompt)
                selector.register(into.fileno(), selectors.EVENT_WRITE)
            while not self._is_over():
                for key, _ in selector.select(POLL_SECONDS):
                    self._transfer(selector, key)
                self._poll()
        return self._reap()

    def _transfer(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if key.events & selectors.EVENT_WRITE:
            self._send(selector, key.fd)
            return
        with suppress(BlockingIOError):
            if chunk := os.read(key.fd, CHUNK):
                key.data(chunk)
            else:
                selector.unregister(key.fd)
                self.reading.discard(key.fd)

    def _send(self, selector: selectors.BaseSelector, fd: int) -> None:
        try:
            self.unsent = self.unsent[os.write(fd, self.unsent[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            # The program does not read its input. Its own result decides whether that is an error.
            self.unsent = memoryview(b"")
        if not self.unsent and self.process.stdin is not None:
            selector.unregister(fd)
            self.process.stdin.close()

    def _poll(self) -> None:
        now = time.monotonic()
        if self.exited_at is None and self._has_exited():
            self.exited_at = now
            self._kill_the_rest()
        if self.exited_at is not None:
            return
        if now >= self.sample_at:
            self.meter.sample()
            self.sample_at = now + max(SAMPLE_SECONDS, SAMPLE_COST * (time.monotonic() - now))
            self.watch.on_sample(self.meter.so_far())
        if self.stopped is None:
            if now - self.started >= self.command.seconds:
                self.stopped = OVERDUE
            elif now - self.watched >= WATCH_SECONDS:
                self.watched = now
                self.stopped = self.watch.stop_reason()
            if self.stopped is not None:
                self.signal(signal.SIGTERM)
                self.kill_at = now + self.command.grace_seconds
        elif self.kill_at is not None and now >= self.kill_at:
            self.signal(signal.SIGKILL)

    def _is_over(self) -> bool:
        if self.exited_at is None:
            return False
        return not self.reading or time.monotonic() - self.exited_at >= LINGER_SECONDS

    def _has_exited(self) -> bool:
        """Whether it has exited. Does not reap it: while its id is in use, a signal to its group cannot reach another process."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _reap(self) -> ProcessEnd:
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.resources = self.meter.complete(used)
        return ProcessEnd(self.process.returncode, self.stopped, self.resources)

    def signal(self, number: int) -> None:
        """Send the signal to the whole group. A group without members is not an error."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _kill_the_rest(self) -> None:
        self.signal(signal.SIGKILL)
        kill_all_of(self.command.environment[RUN_ID], session=self.process.pid)
        if self.command.user is not None:
            users.end_all_of(self.command.user.uid)

    def clean_up(self) -> None:
        """Kill all processes that still run, in the group and outside of it."""
        if self.process.returncode is None:
            self._kill_the_rest()
            self._reap()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


# The memory and processor time of an agent and its children: sampled while they run, completed from the kernel's figures at the end.


@dataclass(frozen=True, slots=True)
class Resources:
    """`peak_rss_bytes` is the sum over the process tree at its largest sample. Shared pages count for each process."""

    peak_rss_bytes: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0

    def as_dict(self) -> dict[str, float | int]:
        return {
            "peak_rss_bytes": self.peak_rss_bytes,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "processes": self.processes,
        }


@dataclass(slots=True)
class Meter:
    """Measures the process tree below one process."""

    pid: int
    peak: int = 0
    most_processes: int = 0
    # By process, which may end between two samples.
    _cpu: dict[tuple[int, float], float] = field(default_factory=dict)

    def sample(self) -> None:
        """Read every process of the tree once. Processes that have just ended are omitted."""
        rss = count = 0
        for process in tree_of(self.pid):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss += max(
                        process.memory_info().rss, _largest(process.pid) if process.pid == self.pid else 0
                    )
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
                    count += 1
            except psutil.Error:
                continue
        self.peak, self.most_processes = max(self.peak, rss), max(self.most_processes, count)

    def so_far(self) -> Resources:
        return Resources(self.peak, sum(self._cpu.values()), self.most_processes)

    def complete(self, used: resource.struct_rusage) -> Resources:
        """Return the resources, with the kernel's figures for the ended process and the children that it waited for.

        The kernel's peak of memory begins with the fork, so it includes the size of the worker at that time. It is used only if it is above
        the worker's own peak; otherwise the samples count.
        """
        kilobyte = 1024  # on Linux; the figure is bytes elsewhere, and then the samples are larger anyway
        maxrss, ours = used.ru_maxrss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Resources(
            peak_rss_bytes=max(self.peak, maxrss * kilobyte if maxrss > ours else 0),
            cpu_seconds=max(sum(self._cpu.values()), used.ru_utime + used.ru_stime),
            processes=max(self.most_processes, 1),
        )


def _largest(pid: int) -> int:
    """Return the peak memory of a running process according to the kernel, or 0 where it is unknown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def tree_of(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants, or an empty list when it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
