"""Traces: what a run leaves on this machine if its worker is killed, and how that is removed.

    agents/runs/<run id>/trace.json    held locked by the worker as long as the run goes on
    agents/runs/<run id>/work/         the agent's folder; files/ what its arguments name

The lock belongs to the worker's process: the kernel takes it away however that ends. So whoever gets the lock knows that nobody attends to
the run any more, kills what is left of the agent (its processes carry the run's id in their environment), removes its worktree and its
folder. Any worker of the machine may do it at any time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings

from agents.command_line import users
from agents.command_line.processes import kill_all_of
from agents.command_line.users import OwnUser
from agents.exceptions import InputUnavailable

logger = logging.getLogger(__name__)

OWN_ONLY = 0o700
ABANDONED_SECONDS = 3600.0


@dataclass(slots=True)
class Trace:
    """Of one run, while it goes on."""

    folder: Path
    descriptor: int
    user: OwnUser | None = None  # to whom its folders belong; None: the worker's own

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def note(self, facts: dict[str, Any]) -> None:
        """What whoever comes after must know to remove everything. Written before it is made."""
        known = {} if self.user is None else {"user": [self.user.uid, self.user.gid, *self.user.groups]}
        os.pwrite(self.descriptor, orjson.dumps(known | facts), 0)


@contextmanager
def kept(run_id: UUID, user: OwnUser | None = None) -> Iterator[Trace]:
    """The run's folder, which exists inside the block and is gone after it. Raises `InputUnavailable` when it cannot be made."""
    try:
        trace = _made(_home() / str(run_id), user)
    except OSError as error:
        raise InputUnavailable(
            f"The run's folder cannot be made: {error.strerror}.", code="folder_unavailable"
        ) from error
    try:
        yield trace
    finally:
        _remove(trace.folder)
        os.close(trace.descriptor)


def _made(folder: Path, user: OwnUser | None) -> Trace:
    folder.mkdir(mode=OWN_ONLY, parents=True)
    # Locked before it has its name: a sweep must never meet it unlocked.
    descriptor = os.open(folder / "new", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (folder / "new").rename(folder / "trace.json")
    trace = Trace(folder, descriptor, user)
    trace.work.mkdir(mode=OWN_ONLY)
    trace.files.mkdir(mode=OWN_ONLY)
    if user is not None:
        trace.note({})
        users.give(trace.work, user)
    return trace


def sweep(undo: Callable[[dict[str, Any]], None]) -> int:
    """End and remove what dead workers have left behind; returns how many runs. `undo` gets what was noted of each."""
    swept = 0
    for folder in _home().iterdir() if _home().exists() else ():
        descriptor = _taken(folder)
        if descriptor is None:
            continue
        try:
            kill_all_of(folder.name)
            with suppress(orjson.JSONDecodeError):
                facts = orjson.loads(os.pread(descriptor, 1_000_000, 0) or b"{}")
                if "user" in facts:
                    users.end_left_behind(facts["user"][0])
                undo(facts)
            _remove(folder)
            swept += 1
            logger.warning("Left-over agent swept", extra={"action": "agent_swept", "run": folder.name})
        finally:
            os.close(descriptor)
    return swept


def _taken(folder: Path) -> int | None:
    """The lock of a run that nobody attends to; None while its worker lives, or when another sweeps it."""
    try:
        descriptor = os.open(folder / "trace.json", os.O_RDWR)
    except OSError:
        _remove_if_old(folder)
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_if_old(folder: Path) -> None:
    """Its worker died before it had a trace, or is just making one."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
            _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for path, inner, _ in os.walk(folder):
            for name in inner:
                with suppress(OSError):
                    os.chmod(os.path.join(path, name), OWN_ONLY)
        shutil.rmtree(folder, ignore_errors=True)


def _home() -> Path:
    return Path(settings.ORCHESTRATOR_HOME) / "agents" / "runs"
