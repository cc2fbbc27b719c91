"""The process of an agent: bytes go in and out with constant memory, and it ends with all that it started, whatever happens.

It leads a session of its own, so signals for the worker (Ctrl-C at a terminal) do not reach it, and a signal to its group reaches whatever
it has started. When it shall end it is asked to, and killed after a grace. However `run` is left, nothing of the group is left running.
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
LOOK_SECONDS = 0.1  # between looks at an agent that says nothing
WATCH_SECONDS = 1.0  # asking whether anybody still wants the result may cost a query
SAMPLE_SECONDS = 2.0
SAMPLE_COST = 50  # times longer than a sample takes is the time to the next one: it looks at every process of the machine
LINGER_SECONDS = 1.0  # for output that others still write after the agent has ended

OVERDUE = "overdue"
RUN_ID = "ORCHESTRATOR_RUN_ID"  # in the environment of an agent and of all that it starts


@dataclass(frozen=True, slots=True)
class Command:
    """What is started. `arguments` begin with the absolute path of the program."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    prompt: bytes = b""
    limits: Limits = field(default_factory=Limits)
    seconds: float = 600.0
    grace_seconds: float = 5.0
    user: OwnUser | None = None  # whom it runs as; None: the worker's


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How it ended. `code` is negative for a signal; `stopped` says why we ended it, if we did."""

    code: int
    stopped: str | None
    resources: Resources


@dataclass(slots=True)
class Watch:
    """What happens with the output, and who is asked whether to go on. Each may raise, which ends the agent and `run`."""

    on_output: Callable[[bytes], None]
    on_error: Callable[[bytes], None]
    stop_reason: Callable[[], str | None]
    on_sample: Callable[[Resources], None] = lambda resources: None


def run(command: Command, watch: Watch) -> ProcessEnd:
    """Start it, and return when it has ended. Must stay in the thread that called: the agent's life is tied to it."""
    process = subprocess.Popen(
        _launch_command(command), cwd=command.folder, env=dict(command.environment), start_new_session=True,
        stdin=subprocess.PIPE if command.prompt else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    going = _Going(process, command, watch, Meter(process.pid))
    try:
        return going.follow()
    finally:
        going.clear_away()


def _launch_command(command: Command) -> list[str]:
    limits = command.limits
    numbers = (os.getpid(), limits.memory_mb or 0, limits.cpu_seconds or 0, limits.nice)
    user = command.user
    ids = ",".join(map(str, (user.uid, user.gid, *user.groups))) if user else ""
    return [sys.executable, "-I", "-S", launcher.__file__, *map(str, numbers), ids, "--", *command.arguments]


def kill_all_of(run_id: str, *, session: int | None = None) -> int:
    """Kill every process of the session, or with the run's id in its environment, wherever it has gone; returns how many."""
    # The kernel says 0 for a session outside of our container, whose processes are not ours.
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
            continue  # somebody else's, or gone
    return killed


@dataclass(slots=True)
class _Going:
    process: subprocess.Popen[bytes]
    command: Command
    watch: Watch
    meter: Meter
    began: float = field(default_factory=time.monotonic)
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
            self._register(selector)
            while not self._is_over():
                for key, _ in selector.select(LOOK_SECONDS):
                    self._transfer(selector, key)
                self._look()
        return self._reap()

    def _register(self, selector: selectors.BaseSelector) -> None:
        out, error, into = self.process.stdout, self.process.stderr, self.process.stdin
        for pipe, hear in ((out, self.watch.on_output), (error, self.watch.on_error)):
            assert pipe is not None  # noqa: S101 - asked for
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe.fileno(), selectors.EVENT_READ, hear)
            self.reading.add(pipe.fileno())
        if into is not None:
            os.set_blocking(into.fileno(), False)
            self.unsent = memoryview(self.command.prompt)
            selector.register(into.fileno(), selectors.EVENT_WRITE)

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
            # It does not want to read it; what it makes of that shows in the end.
            self.unsent = memoryview(b"")
        if not self.unsent and self.process.stdin is not None:
            selector.unregister(fd)
            self.process.stdin.close()

    def _look(self) -> None:
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
            self._stop_if_due(now)
        elif self.kill_at is not None and now >= self.kill_at:
            self.signal(signal.SIGKILL)

    def _stop_if_due(self, now: float) -> None:
        if now - self.began >= self.command.seconds:
            self.stopped = OVERDUE
        elif now - self.watched >= WATCH_SECONDS:
            self.watched = now
            self.stopped = self.watch.stop_reason()
        if self.stopped is not None:
            self.signal(signal.SIGTERM)
            self.kill_at = now + self.command.grace_seconds

    def _is_over(self) -> bool:
        if self.exited_at is None:
            return False
        return not self.reading or time.monotonic() - self.exited_at >= LINGER_SECONDS

    def _has_exited(self) -> bool:
        """Without reaping it: as long as its number is taken, a signal to its group can hit nobody else."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _reap(self) -> ProcessEnd:
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.resources = self.meter.complete(used)
        return ProcessEnd(self.process.returncode, self.stopped, self.resources)

    def signal(self, number: int) -> None:
        """Send the signal to the whole group. It is no error if the group has no members any more."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _kill_the_rest(self) -> None:
        self.signal(signal.SIGKILL)
        kill_all_of(self.command.environment[RUN_ID], session=self.process.pid)
        if self.command.user is not None:
            users.end_all_of(self.command.user.uid)

    def clear_away(self) -> None:
        """End what still runs: the group, and what has left the group but not the tree."""
        if self.process.returncode is None:
            self._kill_the_rest()
            self._reap()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


# What an agent and its children use of memory and processor: sampled while they run, completed by the kernel's account at the end.


@dataclass(frozen=True, slots=True)
class Resources:
    """`peak_rss_bytes` adds up the tree at its largest sample; pages that its processes share count for each of them."""

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
    """Of the tree below one process."""

    pid: int
    peak: int = 0
    most: int = 0
    _cpu: dict[tuple[int, float], float] = field(
        default_factory=dict
    )  # by process, which may end between two samples

    def sample(self) -> None:
        """Look at every process of the tree once; what has just ended is left out."""
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
        self.peak, self.most = max(self.peak, rss), max(self.most, count)

    def so_far(self) -> Resources:
        return Resources(self.peak, sum(self._cpu.values()), self.most)

    def complete(self, used: resource.struct_rusage) -> Resources:
        """With the kernel's account of the ended process and of the children that it waited for.

        Its account of memory begins with the fork, so it holds the size that this process had then. Only what is more than this process
        ever had is surely the program's; what is less is known from the samples.
        """
        kilobyte = 1024  # on Linux; the figure is bytes elsewhere, and then the samples are larger anyway
        maxrss, ours = used.ru_maxrss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Resources(
            peak_rss_bytes=max(self.peak, maxrss * kilobyte if maxrss > ours else 0),
            cpu_seconds=max(sum(self._cpu.values()), used.ru_utime + used.ru_stime),
            processes=max(self.most, 1),
        )


def _largest(pid: int) -> int:
    """The most memory that a running program has had since it began, as the kernel keeps it; 0 where nobody can tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def tree_of(pid: int) -> list[psutil.Process]:
    """The process and everything that it started and that still has it for an ancestor; nothing when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
