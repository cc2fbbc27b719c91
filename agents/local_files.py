"""Private folders of runs on this machine, and locks of files, which the kernel releases when their process ends."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

OWN_ONLY = 0o700  # the mode of a private folder


def delete_folder(folder: Path) -> bool:
    """Delete a folder, if there is one, whatever an agent has put into it. Return whether it is gone. Never fails.

    Some tools protect their folders from deletion. No link is followed, because it may lead to somebody else's files.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        with suppress(OSError):
            folder.chmod(OWN_ONLY)
            for path, inner, _ in os.walk(folder):
                for name in inner:
                    if not os.path.islink(inner_path := os.path.join(path, name)):
                        os.chmod(inner_path, OWN_ONLY)
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def lock_file(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Lock the file, which is created if necessary, until the returned descriptor is closed.

    Raises `BlockingIOError` if another process holds the lock and the call must not `wait`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
