"""One supervised child: a process in a group of its own, with a log file, ended as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.embedded.identity import ProcessIdentity, wait_until
from orchestrator.embedded.logs import open_log, tail
from orchestrator.processes.specs import ProcessSpec

KILL_SECONDS = 10.0


@dataclass
class Child:
    """`asked_to_end` tells an end that we caused from one that the process came to by itself."""

    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    asked_to_end: bool = False

    @classmethod
    def launch(cls, spec: ProcessSpec, *, log: Path, environment: Mapping[str, str]) -> Child:
        with open_log(log) as file:
            start = file.tell()
            process = subprocess.Popen(
                spec.argv,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment, **spec.env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # a Ctrl-C in our terminal is not theirs: we end them in order
            )
        return cls(spec, process, log, start)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        """The end of what it wrote since this launch."""
        return tail(self.log, self.log_start)

    def send(self, number: signal.Signals, *, whole_group: bool) -> None:
        if whole_group:
            signal_group(self.process.pid, number)
        elif self.runs:
            self.process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM to the process, which ends its own children; after the bound SIGKILL to the group.

        Idempotent.
        """
        self.asked_to_end = True
        self.send(signal.SIGTERM, whole_group=False)
        signal_group(self.process.pid, signal.SIGCONT)  # one that is frozen would not see the first signal
        if not wait_until(lambda: not self.runs, self.spec.stop_seconds):
            self.send(signal.SIGKILL, whole_group=True)
            wait_until(lambda: not self.runs, KILL_SECONDS)
        signal_group(self.process.pid, signal.SIGKILL)  # what it left behind


def end_group(leader: ProcessIdentity, seconds: float) -> None:
    """End a group of an earlier supervisor that was killed, if its leader still is the same process."""
    if leader.is_alive():
        leader.send(signal.SIGTERM)
        wait_until(lambda: not leader.is_alive(), seconds)
        signal_group(leader.pid, signal.SIGKILL)
        wait_until(lambda: not leader.is_alive(), KILL_SECONDS)


def signal_group(leader: int, number: signal.Signals) -> None:
    # EPERM is what macOS answers for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
