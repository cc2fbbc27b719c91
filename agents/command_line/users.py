"""A user of its own for each run of a program, where the worker may switch: it can then read neither the worker nor other runs.

    agents/users/<number>      held locked, shared by nobody, for as long as a run has this user
    agents/users/lock          held while a user is chosen; its content is the number that was chosen last

A worker that is root and has the capabilities below takes the next number of `ORCHESTRATOR_CLI_USERS` that no run and no process has. The
home of a tenant's role outlives its runs, so it belongs to a group that nothing else has: each run is in the group of its own home alone.
The locks are the kernel's: a worker that dies gives them back, and a number is chosen again only when no process has it any more.

A worker keeps its memory, environment and passwords of servers from the programs that it runs. A program of another user cannot read any of
them. A program of the same user could, through /proc and ptrace. Two things here prevent that: the process forbids others to look into it
(Linux), and the passwords are wiped from the environment that it was started with, once they have been read.
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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from django.conf import settings

from agents.exceptions import ConfigurationError

#: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID: to give files away, to take them back, to end what runs, and to switch.
NEEDED = (0, 1, 3, 5, 6, 7)
PASSABLE = 0o711  # a folder that others may go through, but not list
OPEN_TO_GROUP = stat.S_IRWXU | stat.S_IRWXG | stat.S_ISGID  # and what is made in it belongs to the same group
SHARED_FOLDERS = tuple(
    os.path.join(os.sep, *names) for names in (("var", "tmp"), ("dev", "shm"))
)  # where all may write


@dataclass(frozen=True, slots=True)
class OwnUser:
    """Of one run. `gid` is that of the home; `groups` are those of repositories that it works on."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def beside(self, repository: Path) -> OwnUser:
        """The same user with the group of this repository added."""
        return replace(self, groups=(*self.groups, repository.stat().st_gid))


def may_switch() -> bool:
    """Whether this process may become another user, with all that belongs to it."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    has = int(status.partition("CapEff:")[2].split(maxsplit=1)[0], 16)
    return all(has >> number & 1 for number in NEEDED)


@contextmanager
def own(home: Path) -> Iterator[OwnUser]:
    """Take a user that no other run has until the block ends, with access to the folder `home`. Processes and files that it leaves are
    removed then.

    Raises `ConfigurationError` when all numbers are taken.
    """
    folder = _home()
    _make_passable(home.parent)
    with _lock_file(folder / "lock") as choice:
        uid, lock = _choose_user(folder, choice)
        try:
            gid = _group_of(home)
            using, is_alone = _read_usage(home)
            _open_home(home, uid if is_alone else -1, gid)
        except BaseException:
            os.close(lock)
            raise
    try:
        yield OwnUser(uid, gid)
    finally:
        end_all_of(uid)
        _forget_files_of(uid)
        os.close(using)
        os.close(lock)


def give(folder: Path, user: OwnUser) -> None:
    """Give a folder of the worker, with all its content, to the user; the folders above become passable for it."""
    _make_passable(folder.parent)
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(path, name), user.uid, user.gid, follow_symlinks=False)
    os.chown(folder, user.uid, user.gid)


def end_left_behind(uid: int) -> int:
    """Kill what a dead worker's run has left running, unless another run has its user by now; returns how many processes."""
    with _lock_file(_home() / "lock"):
        try:
            descriptor = _try(_home() / str(uid))
        except BlockingIOError:
            return 0
        try:
            return end_all_of(uid)
        finally:
            os.close(descriptor)


def end_all_of(uid: int) -> int:
    """Kill every process of this user, until there is none: one that is just being started must not slip through."""
    killed = 0
    while found := _processes_of(uid):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
                killed += 1
        psutil.wait_procs(found, timeout=1)
        if all(_is_dead(process) for process in found):
            break
    return killed


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _processes_of(uid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if uid in process.uids() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _choose_user(folder: Path, choice: int) -> tuple[int, int]:
    first, last = settings.ORCHESTRATOR_CLI_USERS
    count = last - first + 1
    before = os.pread(choice, 20, 0).decode().strip()
    begin = int(before) + 1 - first if before.isdigit() else 0
    busy = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                busy |= set(process.uids())
    for place in range(count):
        uid = first + (begin + place) % count
        if uid in busy:
            continue
        with suppress(BlockingIOError):
            lock = _try(folder / str(uid))
            os.pwrite(choice, str(uid).encode().ljust(20), 0)
            return uid, lock
    raise ConfigurationError(f"All {count} users of ORCHESTRATOR_CLI_USERS are taken.", code="no_user_left")


def _try(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _group_of(home: Path) -> int:
    """The group of this home, which no other home has. Made with the home, under the lock of the choice."""
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


def _read_usage(home: Path) -> tuple[int, bool]:
    """A lock that says that a run uses this home, and whether no other one does. To be called under the lock of the choice."""
    descriptor = os.open(home.with_name(f".{home.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_alone = True
    except BlockingIOError:
        is_alone = False
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor, is_alone


def _open_home(home: Path, uid: int, gid: int) -> None:
    """To the owner (-1: unchanged) and the group: what earlier runs kept for themselves, this one may read and change.

    An earlier run has filled it, and one of the same role may be doing so: no link is followed, and all is changed as it was opened.
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
    found = os.fstat(descriptor)
    first, last = settings.ORCHESTRATOR_CLI_USERS
    is_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    # Neither devices nor what has a second name elsewhere, nor what never belonged to a run.
    if not (is_file or stat.S_ISDIR(found.st_mode)) or not (
        found.st_uid == 0 or first <= found.st_uid <= last
    ):
        return
    os.fchown(descriptor, uid, gid)
    mode = stat.S_IMODE(found.st_mode) & 0o777
    os.fchmod(descriptor, mode | (mode & 0o700) >> 3 | (stat.S_ISGID if stat.S_ISDIR(found.st_mode) else 0))


def _forget_files_of(uid: int) -> None:
    """In the folders that all may write to: a later run must not find what an earlier one left under the same number."""
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
    """Programs of other users must be able to go through the folders above theirs, down from ORCHESTRATOR_HOME, and to list none."""
    top = Path(settings.ORCHESTRATOR_HOME)
    for each in (folder, *folder.parents):
        mode = stat.S_IMODE(each.stat().st_mode)
        new_mode = mode | 0o111 if each == top else PASSABLE
        if mode != new_mode:
            each.chmod(new_mode)
        if each == top:
            break


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _home() -> Path:
    folder = Path(settings.ORCHESTRATOR_HOME) / "agents" / "users"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


logger = logging.getLogger(__name__)

#: Read into the settings when the process starts, and not read again.
SECRETS = (
    "DATABASE_URL", "DATABASE_URL_SYSTEM", "REDIS_URL", "CELERY_BROKER_URL", "MONGODB_URI", "SECRET_KEY", "FIELD_ENCRYPTION_KEYS",
    "EMAIL_URL", "SLACK_SIGNING_SECRET", "SLACK_WEBHOOK_URL", "FLOWER_BASIC_AUTH",
)  # fmt: skip

_GET_DUMPABLE, _SET_DUMPABLE = 3, 4  # of prctl


def close() -> None:
    """From now on nobody may look into this process: its files under /proc belong to root, and no debugger of its user can attach.

    Idempotent. Forked children inherit this, programs that are started do not.
    """
    if sys.platform.startswith("linux") and ctypes.CDLL(None).prctl(_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def forget(names: Iterable[str] = SECRETS) -> None:
    """Overwrite the values in the memory that the kernel shows as /proc/<pid>/environ, and take them out of `os.environ`.

    To be called when the settings have been read, and before there are other threads that change the environment.
    """
    encoded_names = {name.encode() for name in names}
    if sys.platform.startswith("linux"):
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
        place = 0
        while address := entries[place]:
            key, _, value = ctypes.string_at(address).partition(b"=")
            if key in encoded_names:
                ctypes.memset(address + len(key) + 1, ord("-"), len(value))
            place += 1
    for name in names:
        os.environ.pop(name, None)


def begin_worker() -> None:
    """A worker that may run programs keeps its secrets from the first moment on."""
    if settings.ORCHESTRATOR_CLI_COMMANDS:
        close()
        forget()


def needs_own_user() -> bool:
    """Whether a program is to run as a user of its own (`users`), not as the worker's.

    Raises `ConfigurationError` where the worker cannot switch and nobody has said that programs may run as its own user.
    """
    close()
    if settings.ORCHESTRATOR_CLI_SHARED_USER:
        return False
    if may_switch():
        return True
    raise ConfigurationError(
        "A program would run as the worker's own user, and could read the files of other runs. Run this worker as root in a"
        " container of its own, so that it can give each run a user; or, if the container is for these agents alone, set"
        " ORCHESTRATOR_CLI_SHARED_USER=1.",
        code="shared_user",
    )
