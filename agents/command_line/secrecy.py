"""What a worker keeps from the programs that it runs: its memory, its environment, and what it was given to reach servers with.

A program of another user could read none of it; `users` gives each run one where the worker may switch. One of the same user could, by
/proc and by ptrace, but for two things that are done here: the process says that nobody may look into it (Linux), and the passwords are
wiped from the environment that it was started with, once they have been read.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterable

from django.conf import settings

from agents.command_line import users
from agents.exceptions import ConfigurationError

logger = logging.getLogger(__name__)

#: Read into the settings when the process starts, and by nothing after.
SECRETS = (
    "DATABASE_URL", "DATABASE_URL_SYSTEM", "REDIS_URL", "CELERY_BROKER_URL", "MONGODB_URI", "SECRET_KEY", "FIELD_ENCRYPTION_KEYS",
    "EMAIL_URL", "SLACK_SIGNING_SECRET", "SLACK_WEBHOOK_URL", "FLOWER_BASIC_AUTH",
)  # fmt: skip

_GET_DUMPABLE, _SET_DUMPABLE = 3, 4  # of prctl


def close() -> None:
    """Nobody may look into this process from now on: what /proc tells of it belongs to root, and no debugger of its user can attach.

    Idempotent. Children that are forked keep it, programs that are started do not.
    """
    if sys.platform.startswith("linux") and ctypes.CDLL(None).prctl(_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def forget(names: Iterable[str] = SECRETS) -> None:
    """Overwrite the values in the memory that the kernel shows as /proc/<pid>/environ, and take them out of `os.environ`.

    To be called when the settings have been read, and before there are other threads that change the environment.
    """
    wanted = {name.encode() for name in names}
    if sys.platform.startswith("linux"):
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
        place = 0
        while address := entries[place]:
            key, _, value = ctypes.string_at(address).partition(b"=")
            if key in wanted:
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
    if users.may_switch():
        return True
    raise ConfigurationError(
        "A program would run as the worker's own user, and could read the files of other runs. Run this worker as root in a"
        " container of its own, so that it can give each run a user; or, if the container is for these agents alone, set"
        " ORCHESTRATOR_CLI_SHARED_USER=1.",
        code="shared_user",
    )
