"""Gives each run of a program a separate user, if the worker may switch users, so that it can read neither the worker nor other runs.

    agents/users/<number>      locked exclusively for as long as a run has this user
    agents/users/lock          locked while a user is chosen; contains the number that was chosen last

A worker that is root and has the capabilities below takes the next number of `ORCHESTRATOR_CLI_USERS` that no run and no process uses. The
home of a tenant's role outlives its runs, so it has a group that nothing else uses: each run is only in the group of its own home.
The kernel releases the locks of a worker that dies. A number is chosen again only when no process uses it any more.

A worker protects its memory, environment and passwords from the programs that it runs. A program of another user cannot read any of
them. A program of the same user could, through /proc and ptrace. This module prevents that in two ways: it makes the process impossible to
inspect (Linux), and it overwrites the passwords in the initial environment once they have been read.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from django.conf import settings

from agents.exceptions import ConfigurationError
from agents.local_files import lock_file

#: The capabilities CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID: to change the owner of files, kill processes, and switch users.
NEEDED = (0, 1, 3, 5, 6, 7)
PASSABLE = 0o711  # others may pass through the folder, but not list it
OPEN_TO_GROUP = stat.S_IRWXU | stat.S_IRWXG | stat.S_ISGID  # new files in the folder inherit its group
# Writable by all users.
SHARED_FOLDERS = tuple(os.path.join(os.sep, *names) for names in (("var", "tmp"), ("dev", "shm")))


@dataclass(frozen=True, slots=True)
class OwnUser:
    """The user of one run. `gid` is the group of its home; `groups` are the groups of its repositories."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def with_group_of(self, repository: Path) -> OwnUser:
        """Return the same user with the group of this repository added."""
        return replace(self, groups=(*self.groups, repository.stat().st_gid))


def may_switch() -> bool:
    """Whether this process may switch users, with all capabilities that it needs for that."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    has = int(status.partition("CapEff:")[2].split(maxsplit=1)[0], 16)
    return all(has >> number & 1 for number in NEEDED)


@contextmanager
def allocate(home: Path) -> Iterator[OwnUser]:
    """Allocate a user for the block that no other run has, with access to the folder `home`. At the end, its remaining processes and
    files are removed.

    Raises `ConfigurationError` when all numbers are in use.
    """
    folder = _home()
    _make_passable(home.parent)
    with _lock_choice() as choice:
        uid, lock = _choose_user(folder, choice)
        try:
            gid = _group_of(home)
            home_lock, is_alone = _lock_home(home)
            _open_home(home, uid if is_alone else -1, gid)
        except BaseException:
            os.close(lock)
            raise
    try:
        yield OwnUser(uid, gid)
    finally:
        end_all_of(uid)
        _delete_files_of(uid)
        os.close(home_lock)
        os.close(lock)


def hand_over(folder: Path, user: OwnUser) -> None:
    """Make the user the owner of a folder and all its content. The user may then pass through the folders above."""
    _make_passable(folder.parent)
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(path, name), user.uid, user.gid, follow_symlinks=False)
    os.chown(folder, user.uid, user.gid)


def end_left_behind(uid: int) -> int:
    """Kill the remaining processes of a dead worker's run, unless another run now has its user. Return how many."""
    with _lock_choice():
        try:
            descriptor = lock_file(_home() / str(uid), wait=False)
        except BlockingIOError:
            return 0
        try:
            return end_all_of(uid)
        finally:
            os.close(descriptor)


def end_all_of(uid: int) -> int:
    """Kill every process of this user. Repeats until there is none, because a process may start another meanwhile. Return how many."""
    killed = 0
    while processes := [process for process, uids in _live_processes() if uid in uids]:
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
                killed += 1
        psutil.wait_procs(processes, timeout=1)
        if all(_is_dead(process) for process in processes):
            break
    return killed


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _live_processes() -> Iterator[tuple[psutil.Process, set[int]]]:
    """Yield the live processes of this machine, each with its users."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process, set(process.uids())


def _choose_user(folder: Path, choice: int) -> tuple[int, int]:
    first, last = settings.ORCHESTRATOR_CLI_USERS
    count = last - first + 1
    last_chosen = os.pread(choice, 20, 0).decode().strip()
    begin = int(last_chosen) + 1 - first if last_chosen.isdigit() else 0
    busy = set[int]().union(*(uids for _, uids in _live_processes()))
    for offset in range(count):
        uid = first + (begin + offset) % count
        if uid in busy:
            continue
        with suppress(BlockingIOError):
            lock = lock_file(folder / str(uid), wait=False)
            os.pwrite(choice, str(uid).encode().ljust(20), 0)
            return uid, lock
    raise ConfigurationError(f"All {count} users of ORCHESTRATOR_CLI_USERS are taken.", code="no_user_left")


def _group_of(home: Path) -> int:
    """Return the group of this home, which no other home has. Call it under the lock of the choice, because it may choose one."""
    first, last = settings.ORCHESTRATOR_CLI_USERS
    group = home.stat().st_gid
    if first <= group <= last:
        return group
    groups = {other.stat().st_gid for other in home.parent.parent.glob("*/*") if other.is_dir()}
    for number in range(first, last + 1):
        if number not in groups:
            os.chown(home, -1, number)
            return number
    raise ConfigurationError("All groups of ORCHESTRATOR_CLI_USERS are taken by homes.", code="no_user_left")


def _lock_home(home: Path) -> tuple[int, bool]:
    """Lock this home as in use, and return the lock and whether no other run uses it. Call it under the lock of the choice."""
    path = home.with_name(f".{home.name}.lock")
    try:
        descriptor = lock_file(path, wait=False)
    except BlockingIOError:
        return lock_file(path, shared=True), False
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor, True


def _open_home(home: Path, uid: int, gid: int) -> None:
    """Give the owner (-1: unchanged) and the group access to all files in the home, also to private files of earlier runs.

    Other runs of the role have filled it, and may still do so: no link is followed, and each file is changed through its open descriptor.
    """
    for _, folders, files, above in os.fwalk(home, follow_symlinks=False):
        for name in (*folders, *files):
            with suppress(OSError):
                descriptor = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above
                )
                try:
                    _open_to_group(descriptor, uid, gid)
                finally:
                    os.close(descriptor)
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, OPEN_TO_GROUP)
    finally:
        os.close(descriptor)


def _open_to_group(descriptor: int, uid: int, gid: int) -> None:
    status = os.fstat(descriptor)
    first, last = settings.ORCHESTRATOR_CLI_USERS
    is_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    is_folder = stat.S_ISDIR(status.st_mode)
    # Skip devices, files with a second name elsewhere, and files that never belonged to a run.
    if not (is_file or is_folder) or not (status.st_uid == 0 or first <= status.st_uid <= last):
        return
    os.fchown(descriptor, uid, gid)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    os.fchmod(descriptor, mode | (mode & 0o700) >> 3 | (stat.S_ISGID if is_folder else 0))


def _delete_files_of(uid: int) -> None:
    """Delete the user's files in shared folders, because a later run with the same number must not find them."""
    for folder in {tempfile.gettempdir(), *SHARED_FOLDERS}:
        with suppress(OSError):
            for entry in os.scandir(folder):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid != uid:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)


def _make_passable(folder: Path) -> None:
    """Let programs of other users pass through this folder and those above it, up to ORCHESTRATOR_HOME, without listing them."""
    top = Path(settings.ORCHESTRATOR_HOME)
    for each in (folder, *folder.parents):
        mode = stat.S_IMODE(each.stat().st_mode)
        new_mode = mode | 0o111 if each == top else PASSABLE
        if mode != new_mode:
            each.chmod(new_mode)
        if each == top:
            break


@contextmanager
def _lock_choice() -> Iterator[int]:
    """Hold the lock under which a user is chosen, and yield its descriptor."""
    descriptor = lock_file(_home() / "lock")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _home() -> Path:
    folder = Path(settings.ORCHESTRATOR_HOME) / "agents" / "users"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


logger = logging.getLogger(__name__)

#: Variables that are read into the settings when the process starts, and never again.
SECRETS = (
    "DATABASE_URL", "DATABASE_URL_SYSTEM", "REDIS_URL", "CELERY_BROKER_URL", "MONGODB_URI", "SECRET_KEY", "FIELD_ENCRYPTION_KEYS",
    "EMAIL_URL", "SLACK_SIGNING_SECRET", "SLACK_WEBHOOK_URL", "FLOWER_BASIC_AUTH",
)  # fmt: skip

_GET_DUMPABLE, _SET_DUMPABLE = 3, 4  # options of prctl


def forbid_inspection() -> None:
    """Make this process impossible to inspect: its files under /proc belong to root, and no debugger of its user can attach.

    Idempotent. Forked children inherit this, but not after an exec.
    """
    if sys.platform.startswith("linux") and ctypes.CDLL(None).prctl(_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def wipe_secrets() -> None:
    """Overwrite the values of `SECRETS` in the memory that /proc/<pid>/environ displays, and remove them from `os.environ`.

    Call it after the settings have been read, and before there are other threads that change the environment.
    """
    encoded_names = {name.encode() for name in SECRETS}
    if sys.platform.startswith("linux"):
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
        index = 0
        while address := entries[index]:
            key, _, value = ctypes.string_at(address).partition(b"=")
            if key in encoded_names:
                ctypes.memset(address + len(key) + 1, ord("-"), len(value))
            index += 1
    for name in SECRETS:
        os.environ.pop(name, None)


def begin_worker() -> None:
    """Protect the secrets of a worker that may run programs. Call it when the worker starts."""
    if settings.ORCHESTRATOR_CLI_COMMANDS:
        forbid_inspection()
        wipe_secrets()


def needs_own_user() -> bool:
    """Whether a program must run as a separate user instead of the worker's.

    Raises `ConfigurationError` if the worker cannot switch users and the settings do not allow programs to run as its own user.
    """
    forbid_inspection()
    if settings.ORCHESTRATOR_CLI_SHARED_USER:
        return False
    if may_switch():
        return True
    raise ConfigurationError(
        "A program would run as the worker's own user, and could read the files of other runs. Run this worker as root in a"
        " separate container, so that it can give each run a user; or, if the container is only for these agents, set"
        " ORCHESTRATOR_CLI_SHARED_USER=1.",
        code="shared_user",
    )
